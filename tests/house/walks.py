"""The walks of the tour: how many files each opens, and that those files know each other.

Pure. A walk is a heading `### ...` under `## Walks` with a table; the files in backquotes in it are
what a newcomer opens. A file is joined to a walk when it imports another file of the walk or is
imported by one, directly or through a door.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tests.house.judging import Breach
from tests.house.trees import PACKAGES, Tree

FILE = re.compile(rf"`((?:{'|'.join(PACKAGES)})/[\w/]+\.py)`")


def walks_of(tour: str) -> dict[str, list[str]]:
    """Return the files that each walk of the tour opens, each once, in order."""
    _, _, rest = tour.partition("\n## Walks\n")
    walks, _, _ = rest.partition("\n## ")
    found: dict[str, list[str]] = {}
    for walk in walks.split("\n### ")[1:]:
        name, _, text = walk.partition("\n")
        found[name] = list(dict.fromkeys(FILE.findall(text)))
    return found


def walks(tree: Tree, tour: str, most: Mapping[str, int]) -> list[Breach]:
    """Return the walks that are missing or open more files than `most` says, and loose files."""
    there = walks_of(tour)
    found = [Breach(name, "is no walk of the tour") for name in most if name not in there]
    for name, files in there.items():
        if len(files) > most.get(name, 0):
            what = f"opens {len(files)} files where {most.get(name, 0)} may be"
            found.append(Breach(name, what, len(files)))
        loose = loose_files(tree, files)
        found += [Breach(f"{name}: {path}", "is joined to no other file of it") for path in loose]
    return found


def loose_files(tree: Tree, files: list[str]) -> list[str]:
    """Return those of some files that neither import nor are imported by another of them."""
    names = {module.name: module.path for module in tree.product if module.path in files}
    joined: set[str] = set()
    for one in tree.imports:
        home = tree.home_of(one.target, one.name)
        if one.source in names and home in names and one.source != home:
            joined |= {names[one.source], names[home]}
    return [path for path in files if path not in joined]
