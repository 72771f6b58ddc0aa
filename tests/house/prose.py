"""Check the English of pages, docstrings and messages against tests/house/prose_exceptions.toml.

    python -m tests.house.prose [--all] [--write [--raise]] [--draw COUNT SEED] [PATH ...]

Prints findings as `path:line: rule: text`. Plain: those of paths and rules over their ceiling.
`--all` prints each finding; a PATH prints each finding below it. `--write` lowers the ceilings to
today's figures and refuses to lift one; with `--raise` it lifts them. Exits 1 on a fault.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.house import ceilings, passages, prose_rules
from tests.house.trees import ROOT, Tree

EXCEPTIONS = ROOT / "tests" / "house" / "prose_exceptions.toml"
COMMAND = "python -m tests.house.prose --write"


class Finding(NamedTuple):
    """One breach of a rule at a place."""

    path: str
    line: int
    rule: str
    what: str
    source: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.what}: {self.source[:160]}"


def check(root: Path) -> list[Finding]:
    """Return each finding under a root, in the order of paths and lines."""
    found: list[Finding] = []
    for page in passages.pages(root):
        path = page.relative_to(root).as_posix()
        found += of_sentences(passages.page_sentences(path, page.read_text()))
    settings = root / "conf" / "default.toml"
    if settings.exists():
        name = settings.relative_to(root).as_posix()
        found += of_sentences(passages.comment_sentences(name, settings.read_text()))
    for module in Tree(root).product:
        found += of_sentences(passages.module_sentences(module))
        found += of_docstrings(passages.function_docstrings(module))
    return sorted(found)


def of_sentences(sentences: Iterable[passages.Sentence]) -> list[Finding]:
    """Return the findings of sentences."""
    return [
        Finding(sentence.path, sentence.line, rule, what, sentence.source)
        for sentence in sentences
        for rule, what in prose_rules.findings(sentence)
    ]


def of_docstrings(docstrings: Iterable[passages.Docstring]) -> list[Finding]:
    """Return the docstrings that only repeat name and types."""
    return [
        Finding(one.path, one.line, "repeats-name", "says no more than the name", one.text)
        for one in docstrings
        if prose_rules.repeats(one)
    ]


def counted(findings: Iterable[Finding]) -> dict[str, dict[str, int]]:
    """Return path to rule to number of findings."""
    counts: dict[str, dict[str, int]] = {}
    for path, rule in ((finding.path, finding.rule) for finding in findings):
        rules = counts.setdefault(path, {})
        rules[rule] = rules.get(rule, 0) + 1
    return counts


def over_ceiling(findings: Sequence[Finding], limits: ceilings.Counts) -> list[Finding]:
    """Return all findings of each path and rule whose figure exceeds its ceiling."""
    over = {(path, rule) for path, rule, _, _ in ceilings.raised(counted(findings), limits)}
    return [finding for finding in findings if (finding.path, finding.rule) in over]


def summary(findings: Sequence[Finding], limits: ceilings.Counts) -> str:
    """Return one line: findings by rule, and how far ceilings may be lowered."""
    rules = ", ".join(
        f"{rule} {n}" for rule, n in sorted(Counter(f.rule for f in findings).items())
    )
    slack = ceilings.room_to_shrink(counted(findings), limits)
    lower = f"; {slack} below the ceilings: run `{COMMAND}`" if slack else ""
    return f"prose: {len(findings)} findings ({rules}){lower}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, print or write; return 1 on a figure over its ceiling."""
    parser = argparse.ArgumentParser(prog="python -m tests.house.prose")
    parser.add_argument("paths", nargs="*", help="print each finding below these paths")
    parser.add_argument("--all", action="store_true", help="print each finding")
    parser.add_argument(
        "--write", action="store_true", help="lower the ceilings to today's figures"
    )
    parser.add_argument("--raise", action="store_true", dest="lift", help="also lift ceilings")
    parser.add_argument("--draw", nargs=2, type=int, metavar=("COUNT", "SEED"))
    chosen = parser.parse_args(arguments)
    findings, limits = check(ROOT), ceilings.read(EXCEPTIONS)
    if chosen.write:
        over = ceilings.write(EXCEPTIONS, counted(findings), COMMAND, lift=chosen.lift)
        print("\n".join(over))
        if over and not chosen.lift:
            print(f"{len(over)} figures would rise; nothing is written (--raise writes them)")
            return 1
        print(f"{len(findings)} findings are the ceilings in {EXCEPTIONS.name}")
        return 0
    if chosen.draw:
        drawn = random.Random(chosen.draw[1]).sample(findings, chosen.draw[0])
        print("\n".join(map(str, drawn)))
        return 0
    over_limits = over_ceiling(findings, limits)
    shown = findings if chosen.all else over_limits
    if chosen.paths:
        shown = [f for f in findings if f.path.startswith(tuple(chosen.paths))]
    faults = ceilings.faults(counted(findings), limits, "python -m tests.house.prose PATH")
    of = f" in {', '.join(chosen.paths)}, {len(findings)} in all" if chosen.paths else ""
    last = f"prose: {len(shown)} findings{of}" if of else summary(findings, limits)
    print("\n".join([*map(str, shown), *faults, last]))
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
