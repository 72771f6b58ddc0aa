"""The laws of pages and contracts: paths that exist, words with one row, layers that are whole.

Reads files and nothing else. A page names a path in backquotes, in a link, or bare with a file's
ending; a `*` stands for anything; what follows a colon or a hash is no part of it.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterator
from pathlib import Path

from tests.house.judging import Breach
from tests.house.trees import FLOORS, PACKAGES, Tree, dotted

TOPS = "|".join([*PACKAGES, "tests", "docs"])
CODE = re.compile(rf"`((?:{TOPS})/[\w./*-]*)[^`]*`")
BARE = re.compile(rf"(?<![\w./-])((?:{TOPS})/[\w./*-]+\.(?:py|md|toml|json|sh))\b")
LINK = re.compile(r"\]\((?!\w+:|#|/)([^)#\s]+)[^)]*\)")
FILE = re.compile(r"`([\w*]+\.py)`")
"""A python file by its name alone, as the tour has them: it must be the name of some file."""


def pages(root: Path) -> list[Path]:
    """Return the pages that are held to the paths they name: those at the top, all under docs/."""
    tops = (root / "README.md", root / "CONTRIBUTING.md")
    return [*tops, *sorted((root / "docs").rglob("*.md"))]


def missing_paths(root: Path) -> list[Breach]:
    """Return the paths that pages name and that do not exist."""
    found: dict[str, Breach] = {}
    for page in pages(root):
        if not page.exists():
            continue
        where = page.relative_to(root).as_posix()
        for path, base in named_paths(page.read_text(), page.parent, root):
            if not exists(base, path):
                subject = f"{where}: {path}"
                found[subject] = Breach(subject, "there is no such path")
    return list(found.values())


def named_paths(text: str, folder: Path, root: Path) -> Iterator[tuple[str, Path]]:
    """Yield what a page in `folder` names, each with the folder that the path starts from."""
    for pattern in (CODE, BARE):
        for match in pattern.finditer(text):
            yield match.group(1).rstrip("."), root
    for match in LINK.finditer(text):
        yield match.group(1), folder
    for match in FILE.finditer(text):
        yield f"**/{match.group(1)}", root


def exists(base: Path, path: str) -> bool:
    """Return whether a path, or anything that fits its `*`, exists."""
    if path.startswith("**/"):
        tops = [*PACKAGES, "tests"]
        return any(next((base / top).glob(path), None) is not None for top in tops)
    if "*" in path:
        return next(base.glob(path.rstrip("/")), None) is not None
    there = base / path
    return there.is_dir() if path.endswith("/") else there.exists()


def words_twice(text: str) -> list[Breach]:
    """Return the words that have two rows in a glossary; a row may hold `several, words`."""
    rows: dict[str, int] = {}
    for line in text.splitlines():
        if line.startswith("|") and not line.startswith(("| word |", "|--")):
            for word in line.split("|")[1].split(","):
                key = word.strip().strip("`").lower()
                rows[key] = rows.get(key, 0) + 1
    return [Breach(word, f"has {count} rows", count) for word, count in rows.items() if count > 1]


def without_layers(tree: Tree, contracts: str) -> list[Breach]:
    """Return the packages with rooms that no exhaustive contract of layers holds.

    `contracts` is the text of `.importlinter`. An exhaustive contract names every room and file
    of the package's floor in an order, and fails for one that it does not name.
    """
    parser = configparser.ConfigParser()
    parser.read_string(contracts)
    held = {
        container
        for section in parser.values()
        if section.get("type") == "layers" and section.get("exhaustive", "").lower() == "true"
        for container in section.get("containers", "").split()
    }
    what = "has rooms and no contract of type layers, exhaustive = True, with it as container"
    return [
        Breach(package, what)
        for package in map(dotted, FLOORS)
        if tree.folders_of(package) and package not in held
    ]
