"""Every law with its list of exceptions; as a script, every breach as an entry for those lists.

    python -m tests.house.breaches

What is printed is what `exceptions.py` would have to say today, with the reasons that it has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from tests.house import exceptions, laws, pages, private_names, purity
from tests.house.judging import Breach, Excused, faults
from tests.house.tables import DOORED_ROOMS
from tests.house.trees import Tree

LAWS: Mapping[str, tuple[Callable[[Tree], list[Breach]], Mapping[str, Excused]]] = {
    "FLOORS": (laws.floors, exceptions.FLOORS),
    "DOORED_ROOMS": (lambda tree: laws.doors(tree, DOORED_ROOMS), {}),
    "ROOMS_WITHOUT_A_DOOR": (
        lambda tree: laws.without_a_door(tree, DOORED_ROOMS),
        exceptions.ROOMS_WITHOUT_A_DOOR,
    ),
    "NAMES_IN_TWO_MODULES": (laws.names, exceptions.NAMES_IN_TWO_MODULES),
    "WIDE_CLASSES": (laws.wide_classes, exceptions.WIDE_CLASSES),
    "WIDE_CONSTRUCTORS": (laws.wide_constructors, exceptions.WIDE_CONSTRUCTORS),
    "IMPURE_MODULES": (purity.purity, exceptions.IMPURE_MODULES),
    "OPENINGS": (purity.openings, {}),
    "DOCSTRINGS": (purity.docstrings, exceptions.DOCSTRINGS),
    "PRIVATE_NAMES": (private_names.scattered, exceptions.PRIVATE_NAMES),
    "MISSING_PATHS": (lambda tree: pages.missing_paths(tree.root), exceptions.MISSING_PATHS),
    "WORDS_TWICE": (
        lambda tree: pages.words_twice((tree.root / "docs" / "glossary.md").read_text()),
        exceptions.WORDS_TWICE,
    ),
    "WITHOUT_LAYERS": (
        lambda tree: pages.without_layers(tree, (tree.root / ".importlinter").read_text()),
        exceptions.WITHOUT_LAYERS,
    ),
}


def unexcused(tree: Tree, law: str) -> list[str]:
    """Return the faults of one law in a tree: breaches without an excuse, excuses used up."""
    find, excused = LAWS[law]
    return faults(find(tree), excused)


def entries(tree: Tree, law: str) -> list[str]:
    """Return one law's breaches as lines of its list, each with the reason that stands there."""
    find, excused = LAWS[law]
    lines: list[str] = []
    for breach in find(tree):
        why = excused[breach.subject].why if breach.subject in excused else f"WHY? {breach.what}"
        size = f", {breach.size}" if breach.size > 1 else ""
        lines.append(f'    "{breach.subject}": Excused("{why}"{size}),')
    return lines


def main() -> int:
    """Print the entries of every list, and what is wrong today; return 1 when something is."""
    tree, wrong = Tree(), 0
    for law in LAWS:
        print("\n".join([f"{law} = {{", *entries(tree, law), "}"]))
        for fault in unexcused(tree, law):
            wrong += 1
            print(f"!! {fault}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
