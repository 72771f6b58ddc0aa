"""What a commit message may be, over texts and over a repository that is made up."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.house.commit_message import breaches, main

ROOMS = {"gateway/records", "bus/client.py", "docs/operations"}


def of(message: str) -> list[str]:
    return breaches(message, ROOMS.__contains__)


@pytest.mark.parametrize(
    "message",
    [
        "gateway/records: store the request log in one table",
        "bus/client: close the socket first\n\nA late close kept the port for 60 s.\n",
        "docs: explain limits\n# Please enter the commit message\n",
        "ci: pass the address of the node",
        "tests: embed the model's card",
        "runner: bring back the spare runner",
        "Merge branch 'main' into w-laws",
        'Revert "docs: explain limits"',
    ],
)
def test_a_good_message_has_no_breach(message: str) -> None:
    assert of(message) == []


@pytest.mark.parametrize(
    ("message", "what"),
    [
        ("bus/service: two lines", "no imperative"),
        ("A runner ends as before", "not `area: imperative summary`"),
        ("docs: " + "explain " * 9, "78 characters; the limit is 72"),
        ("kitchen: add a spoon", "the area kitchen is none of"),
        ("gateway/kitchen: add a spoon", "is no folder or module"),
        ("tests: added a case", "no imperative"),
        ("tests: adds a case", "no imperative"),
        ("tests: adding a case", "no imperative"),
        ("tests: what shows that the last defects are gone", "no imperative"),
        ("docs: Explain limits", "in small letters"),
        ("docs: explain limits.", "full stop"),
        ("docs: explain limits\nand more", "second line is not blank"),
        ("docs: explain which models make way", "vocabulary"),
        ("docs: answer those that wait", "no-noun"),
    ],
)
def test_a_bad_message_says_what_is_wrong(message: str, what: str) -> None:
    assert any(what in breach for breach in of(message)), of(message)


def git(root: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(root), *identity, *arguments], check=True, capture_output=True)


def test_each_commit_of_a_range_is_checked_and_a_file_as_a_hook_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "bus").mkdir()
    (tmp_path / "bus" / "old.py").write_text("")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "An old subject that nobody checks")
    git(tmp_path, "rm", "-q", "bus/old.py")
    git(tmp_path, "commit", "-qm", "bus/old: remove the old client")
    assert main(["HEAD~1..HEAD"], tmp_path) == 0
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "two lines")
    assert main(["HEAD~2..HEAD"], tmp_path) == 1
    assert "'two lines': the subject is not" in capsys.readouterr().out
    file = tmp_path / "COMMIT_EDITMSG"
    file.write_text("bus/old: restore the old client\n")
    assert main([str(file)], tmp_path) == 1
    file.write_text("bus: restore the old client\n")
    assert main([str(file)], tmp_path) == 0
    assert main(["no-such-range"], tmp_path) == 2 and main([], tmp_path) == 2
