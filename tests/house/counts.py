"""Laws that hold figures instead of lists of breaches, with one file of ceilings for all.

    python -m tests.house.counts [--write [--raise]]

Plain: print each figure beside its aim, and each figure over its ceiling; exit 1 on a fault.
`--write` lowers the ceilings of this file and of the prose checker to today's figures, and refuses
to lift one; with `--raise` it lifts them and prints each.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence

from tests.house import ceilings, circles, distributions, names, prose
from tests.house.trees import ROOT, Tree

CEILINGS = ROOT / "tests" / "house" / "ceilings.toml"
COMMAND = "python -m tests.house.counts --write"
LAWS: Mapping[str, Callable[[Tree], ceilings.Counts]] = {
    "names": names.of_product,
    "circles": circles.circles,
    "distributions": distributions.beyond_aims,
    "small rooms": distributions.small_rooms,
}
"""Each law's counts; subjects of different laws have different names."""


def counted(tree: Tree) -> dict[str, dict[str, int]]:
    """Return the counts of all laws."""
    found: dict[str, dict[str, int]] = {}
    for law in LAWS.values():
        found |= {subject: dict(figures) for subject, figures in law(tree).items()}
    return found


def faults(tree: Tree, law: str) -> list[str]:
    """Return the figures of one law that exceed their ceilings."""
    return ceilings.faults(LAWS[law](tree), ceilings.read(CEILINGS), "python -m tests.house.counts")


def aims(tree: Tree) -> list[str]:
    """Return one line for each figure with an aim: figure, aim, ceiling."""
    limits = ceilings.read(CEILINGS)
    return [
        f"{group}: {name}: {figure} (aim {distributions.AIMS[group][name]}, "
        f"ceiling {limits.get(group, {}).get(name, distributions.AIMS[group][name])})"
        for group, figures in distributions.figures(tree).items()
        for name, figure in figures.items()
    ]


def write(tree: Tree, lift: bool) -> int:
    """Write both files of ceilings; return 1 where a figure would rise."""
    figures = prose.counted(prose.check(tree.root))
    refused = 0
    for path, now, command in (
        (CEILINGS, counted(tree), COMMAND),
        (prose.EXCEPTIONS, figures, prose.COMMAND),
    ):
        over = ceilings.write(path, now, command, lift=lift)
        print("\n".join([*over, f"{path.name}: {len(over)} figures above their ceilings"]))
        refused += len(over) if not lift else 0
    if refused:
        print("a file with such figures is not written (--raise writes them)")
    return int(refused > 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures, or write the ceilings; return 1 on a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.house.counts")
    parser.add_argument("--write", action="store_true", help="lower the ceilings to the figures")
    parser.add_argument("--raise", action="store_true", dest="lift", help="also lift ceilings")
    chosen = parser.parse_args(arguments)
    tree = Tree()
    if chosen.write:
        return write(tree, chosen.lift)
    found = [fault for law in LAWS for fault in faults(tree, law)]
    slack = ceilings.room_to_shrink(counted(tree), ceilings.read(CEILINGS))
    print("\n".join([*aims(tree), f"{slack} below the ceilings (`{COMMAND}`)", *found]))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
