"""Decisions and their citations: the law of `tests/house/decisions.py`, and that it can fail."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.house.decisions import (
    expected,
    sections,
    wrong_citations,
    wrong_rows,
    wrong_sections,
)
from tests.house.trees import ROOT

FOLDER = ROOT / "docs" / "decisions"
OWN = {"tests/house/decisions.py", "tests/house/test_decisions.py", "docs/decisions/README.md"}
"""Files whose examples are no citations."""


def tracked() -> list[Path]:
    """Return the text files of the checkout that may cite a decision."""
    endings = ["*.py", "*.md", "*.toml", "*.cfg", "*.yml", "*.js", "*.sh", "Makefile"]
    command = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "-z", *endings]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    return [ROOT / name for name in listed if name and name not in OWN and (ROOT / name).is_file()]


def house(tmp_path: Path, text: str) -> list[str]:
    """Return the faults of a page with `text`, beside one decision 0001."""
    folder = tmp_path / "docs" / "decisions"
    folder.mkdir(parents=True)
    (folder / "a.md").write_text('# A\n\n<a id="0001"></a>\n\n## 0001 First (2026-11-20)\n')
    page = tmp_path / "page.md"
    page.write_text(text)
    return wrong_citations([page], tmp_path)


def test_each_decision_has_one_section_with_its_anchor() -> None:
    assert wrong_sections(FOLDER) == []
    assert sections(FOLDER).keys() == expected("0081") | set(sections(FOLDER))


def test_the_readme_leads_to_each_decision() -> None:
    assert wrong_rows(FOLDER) == []


def test_each_citation_in_the_tree_resolves() -> None:
    files = tracked()
    assert len(files) > 1000
    assert wrong_citations(files, ROOT) == []


@pytest.mark.parametrize(
    "text",
    [
        "as decision 0001 says",
        "(decisions 0001 and 0001)",
        "[decision 0001](docs/decisions/a.md#0001)",
        "see decisions/a.md",
        "decision 0001, 30 s later",
    ],
)
def test_a_citation_that_resolves_is_no_fault(tmp_path: Path, text: str) -> None:
    assert house(tmp_path, text) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("as decision 0002 says", "decision 0002"),
        ("as decision\n0002 says", "decision 0002"),
        ("    # ... (decision\n    # 0002)", "decision 0002"),
        ("decisions 0001 and 0003", "decision 0003"),
        ("decisions 0001, 0003 and 0001", "decision 0003"),
        ("[decision 1](docs/decisions/a.md#0001)", "decision 1"),
        ("decisions/0001-first.md", "decisions/0001-first.md"),
        ("decisions/a.md#0002", "decisions/a.md#0002"),
    ],
)
def test_a_citation_that_leads_nowhere_is_seen(tmp_path: Path, text: str, fault: str) -> None:
    assert house(tmp_path, text) == [f"page.md: {fault}"]


def test_a_section_without_its_anchor_and_a_missing_row_are_seen(tmp_path: Path) -> None:
    section = '<a id="0002"></a>\n\n## 0001 First (2026-11-20)\n\n## 0003 Third\n'
    (tmp_path / "a.md").write_text(section)
    (tmp_path / "README.md").write_text("Take the next number, 0002.\n")
    faults = wrong_sections(tmp_path)
    assert "a.md: the anchor 0002 stands above 0001" in faults
    assert "a.md: a heading has no anchor above it" in faults
    assert "0001 has no section" in faults
    assert "0058 has no section" not in faults
    assert wrong_rows(tmp_path) == [
        "the rows are not all numbers, each once and in order",
        "the next number is 0003",
    ]
