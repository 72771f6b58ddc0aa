"""The law of decisions: every number has one section and one row, and every citation resolves.

Reads files and nothing else. Pages in `docs/decisions/` hold one section per decision, with an
anchor and a heading that carry its number; `README.md` there maps numbers to pages. A citation is
`decision 0007`, `decisions 0007 and 0012`, or a link into that folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

UNUSED = frozenset({"0058", "0064", "0069", "0070"})
"""Numbers that no decision ever had."""

SECTION = re.compile(r'^<a id="(\w+)"></a>\n\n## (\w+) ', re.MULTILINE)
HEADING = re.compile(r"^## (\w+)", re.MULTILINE)
ROW = re.compile(
    r"^\| \[(\w+)\]\(([\w-]+\.md)#(\w+)\) \| .* \| \[[\w-]+\]\(([\w-]+\.md)\) \|$", re.M
)
NEXT = re.compile(r"next number, (\d{4})")
MORE = r"(?:,|,? and| or| to)[\s#*]+\[?\d{4}\b\]?(?:\([^)\s]*\))?"
WORDS = re.compile(rf"\b[Dd]ecisions?[\s#*]+(\[?\d+\]?(?:\([^)\s]*\))?(?:{MORE})*)")
"""`MORE` takes four digits alone: "decision 0007, 30 s later" cites one decision."""
LINK = re.compile(r"decisions/([\w-]+\.md)(?:#([\w-]+))?")
INSIDE = re.compile(r"\]\(([\w-]+\.md)?#([\w-]+)\)")


def sections(folder: Path) -> dict[str, str]:
    """Return the page of each number: `0007` to `election.md`."""
    return {
        number: page.name
        for page in decision_pages(folder)
        for number, _heading in SECTION.findall(page.read_text())
    }


def decision_pages(folder: Path) -> list[Path]:
    """Return the pages that hold decisions, which is all but the README."""
    return [page for page in sorted(folder.glob("*.md")) if page.name != "README.md"]


def wrong_sections(folder: Path) -> list[str]:
    """Return numbers that are missing, doubled, or whose anchor and heading differ."""
    faults: list[str] = []
    count: dict[str, int] = {}
    for page in decision_pages(folder):
        text = page.read_text()
        pairs = SECTION.findall(text)
        for anchor, heading in pairs:
            count[anchor] = count.get(anchor, 0) + 1
            if anchor != heading:
                faults.append(f"{page.name}: the anchor {anchor} stands above {heading}")
        if [heading for _anchor, heading in pairs] != HEADING.findall(text):
            faults.append(f"{page.name}: a heading has no anchor above it")
    faults += [f"{number} has {times} sections" for number, times in count.items() if times > 1]
    missing = expected(max(count, default="0000")) - count.keys()
    faults += [f"{number} has no section" for number in sorted(missing)]
    return faults + [f"{number} is said to be unused" for number in sorted(UNUSED & count.keys())]


def expected(last: str) -> set[str]:
    """Return the numbers from 0001 to at least 0081 that must have a section."""
    return {f"{number:04}" for number in range(1, max(int(last), 81) + 1)} - UNUSED


def wrong_rows(folder: Path) -> list[str]:
    """Return the faults of the README's table, and of the next number that it gives."""
    text = (folder / "README.md").read_text()
    pages = sections(folder)
    rows = ROW.findall(text)
    faults = [
        f"the row of {number} does not lead to its section"
        for number, page, anchor, shown in rows
        if anchor != number or pages.get(number) != page or shown != page
    ]
    if [row[0] for row in rows] != sorted(pages):
        faults.append("the rows are not all numbers, each once and in order")
    following = f"{int(max(pages)) + 1:04}"
    if set(NEXT.findall(text)) != {following}:
        faults.append(f"the next number is {following}")
    return faults


def wrong_citations(files: Iterable[Path], root: Path) -> list[str]:
    """Return the citations in files of a tree that name no decision."""
    folder = root / "docs" / "decisions"
    pages = sections(folder)
    return [
        f"{file.relative_to(root).as_posix()}: {fault}"
        for file in files
        for fault in faults_in(file.read_text(), pages, file if file.parent == folder else None)
    ]


def faults_in(text: str, pages: Mapping[str, str], page: Path | None) -> Iterator[str]:
    """Yield the unresolved citations of a text; `page` is given for a page of decisions."""
    for match in WORDS.finditer(text):
        for number in re.findall(r"(?<![\w./#-])\[?(\d+)", match.group(1)):
            if number not in pages:
                yield f"decision {number}"
    for name, anchor in LINK.findall(text):
        yield from broken(name, anchor, pages)
    for name, anchor in INSIDE.findall(text) if page else ():
        yield from broken(name or page.name, anchor, pages)


def broken(name: str, anchor: str, pages: Mapping[str, str]) -> Iterator[str]:
    """Yield a link to a page that does not exist, or to a section that is not on it."""
    if name != "README.md" and name not in pages.values():
        yield f"decisions/{name}"
    elif anchor and pages.get(anchor) != name:
        yield f"decisions/{name}#{anchor}"
