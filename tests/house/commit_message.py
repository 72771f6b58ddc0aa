"""Check commit messages: `area: imperative summary`, at most 72 characters, in plain English.

    python -m tests.house.commit_message RANGE      for example origin/main..HEAD
    python -m tests.house.commit_message FILE       as a commit-msg hook

An area is `docs`, `ci`, `tests`, a package, or a folder or module below one (`gateway/records`).
Prints each breach after the commit, or the file; exits 1 when there is one. As a hook:

    echo 'exec .venv/bin/python -m tests.house.commit_message "$1"' > .git/hooks/commit-msg
    chmod +x .git/hooks/commit-msg
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.house import prose_rules
from tests.house.passages import Sentence, plain_text
from tests.house.trees import PACKAGES, ROOT

MOST = 72
TOPS = frozenset((*PACKAGES, "docs", "ci", "tests"))
FORM = re.compile(r"(?P<area>[^\s:]+): (?P<summary>\S.*)")
UNCHECKED = re.compile(r"(?:Merge |Revert \"|fixup! |squash! )")
NO_VERB = re.compile(
    r"(?:a|an|the|this|that|these|those|what|who|which|when|where|how|why|if|no|not|one|two|three|"
    r"each|every|all|some|its?|it|they|we|our|there|and|or|as|at|by|for|from|in|of|on|to|with|more|"
    r"less|fewer|new|several|tests?|docs?)\b",
    re.IGNORECASE,
)
INFLECTED = re.compile(r"\w{2,}(?:ed|ing|[^su\W]s)\b")
IMPERATIVES = frozenset(
    ("bring", "embed", "exceed", "feed", "need", "ping", "proceed", "seed", "shed", "speed",
     "string", "succeed", "spring", "swing", "alias")
)  # fmt: skip
"""Verbs whose plain form looks inflected."""


def breaches(message: str, exists: Callable[[str], bool]) -> list[str]:
    """Return what is wrong with a message; `exists` tells whether a path is in the tree."""
    lines = [line for line in message.split("\n") if not line.startswith("#")]
    subject = lines[0]
    if UNCHECKED.match(subject):
        return []
    found: list[str] = []
    if len(subject) > MOST:
        found.append(f"the subject has {len(subject)} characters; the limit is {MOST}")
    if len(lines) > 1 and lines[1]:
        found.append("the second line is not blank")
    match = FORM.fullmatch(subject)
    if match is None:
        return [*found, "the subject is not `area: imperative summary`"]
    area, summary = match["area"], match["summary"]
    if area.partition("/")[0] not in TOPS:
        found.append(f"the area {area} is none of {', '.join(sorted(TOPS))} or below one")
    elif "/" in area and not (exists(area) or exists(area + ".py")):
        found.append(f"the area {area} is no folder or module")
    return [*found, *_of_summary(summary)]


def _of_summary(summary: str) -> list[str]:
    word = re.split(r"[^\w-]", summary)[0]
    found: list[str] = []
    if NO_VERB.match(summary) or (INFLECTED.fullmatch(word) and word not in IMPERATIVES):
        found.append(f'"{word}" is no imperative: begin with a verb, such as add, fix or remove')
    elif not word[:1].islower():
        found.append(f'the summary begins with "{word}": begin with a verb in small letters')
    if summary.endswith("."):
        found.append("the summary ends with a full stop")
    sentence = Sentence("", 1, "message", plain_text(summary), summary)
    return found + [f"{rule}: {what}" for rule, what in prose_rules.findings(sentence)]


def of_range(span: str, root: Path) -> list[str]:
    """Return `commit: breach` for each commit of a range. Raises CalledProcessError."""
    found: list[str] = []
    for commit in _git(root, "rev-list", "--no-merges", "--reverse", span, "--").split():
        message = _git(root, "log", "-1", "--format=%B", commit)

        def exists(path: str, commit: str = commit) -> bool:
            return any(_has(root, f"{at}:{path}") for at in (commit, f"{commit}^"))

        subject = message.partition("\n")[0]
        found += [f"{commit[:10]} {subject!r}: {what}" for what in breaches(message, exists)]
    return found


def of_file(file: Path, root: Path) -> list[str]:
    """Return `file: breach` for the message that a file holds."""

    def exists(path: str) -> bool:
        return (root / path).exists() or _has(root, f"HEAD:{path}")

    return [f"{file}: {what}" for what in breaches(file.read_text(), exists)]


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _has(root: Path, name: str) -> bool:
    command = ["git", "-C", str(root), "cat-file", "-e", name]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Check a range or a file; return 1 on a breach, 2 on arguments that name neither."""
    if len(arguments) != 1:
        print("give a range of commits (origin/main..HEAD) or a file with a message")
        return 2
    file = Path(arguments[0])
    try:
        found = of_file(file, root) if file.is_file() else of_range(arguments[0], root)
    except subprocess.CalledProcessError as error:
        print(f"{arguments[0]}: no file, and no range of commits: {error.stderr.strip()}")
        return 2
    print("\n".join(found) or "every message is as it should be")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
