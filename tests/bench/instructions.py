"""Instructions that the gateway's HTTP process executes for a chat request and for a token.

Unlike microseconds, the count hardly depends on what else the machine does. valgrind's callgrind
counts; everything in the testbed runs under it, some fifty times slower. The same gateway and the
same synthetic runner as in `dialects_flat_out`. Run:

    python -m tests.bench.instructions [--before COMMIT] [--requests N]

A token's figure is that of a long stream less that of a short one; a request's is that of a stream
of one token. Needs valgrind with `callgrind_control`. Prints a table; never fails for a figure.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.dialects_flat_out import Gateway, cost_of, dialects, gateway_of
from tests.harness.nodes import ROOT
from tests.harness.other_trees import tree_of

SHORT, LONG = 1, 201
"""Tokens of the streams that are compared."""
ROUNDS = 8
"""How often both are counted; the least count of each is taken."""


def instructions(gateway: Gateway, folder: Path, tokens: int, requests: int) -> int:
    """Return the instructions of so many streams, one after the other."""
    control("--zero", gateway.pid)
    for _ in range(requests):
        cost_of(gateway, dialects(f"tokens={tokens}")["chat"], 1, tokens)
    before = set(folder.iterdir())
    control("--dump", gateway.pid)
    new = [path for path in set(folder.iterdir()) - before if f".{gateway.pid}" in path.name]
    return sum(
        int(n) for path in new for n in re.findall(r"^totals: (\d+)", path.read_text(), re.M)
    )


def control(verb: str, pid: int) -> None:
    """Tell callgrind in a process to forget or to write its counts."""
    subprocess.run(["callgrind_control", verb, str(pid)], check=True, capture_output=True)


def measured(tree: Path, requests: int) -> tuple[float, float]:
    """Return the instructions of a request and of a token, in a gateway of a tree."""
    with tempfile.TemporaryDirectory(prefix="shoal-callgrind-") as name:
        folder = Path(name)
        under = (
            "valgrind",
            "--tool=callgrind",
            "--trace-children=yes",
            "--trace-children-skip=*/callgrind_control,*/perl",
            "--quiet",
            f"--callgrind-out-file={folder}/out.%p",
        )
        with gateway_of(tree, under) as gateway:
            instructions(gateway, folder, LONG, 3)  # warms up
            counts = [
                [instructions(gateway, folder, tokens, requests) for tokens in (SHORT, LONG)]
                for _ in range(ROUNDS)
            ]
    # timers run beside a request, and a slow process has more of them
    short, long = (min(column) / requests for column in zip(*counts, strict=True))
    return short, (long - short) / (LONG - SHORT)


def main() -> int:
    """Measure today's tree, and an older one if it is named."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--requests", type=int, default=4)
    arguments.add_argument("--before", default="", help="a commit")
    given = arguments.parse_args()
    if shutil.which("callgrind_control") is None:
        print("valgrind is not installed")
        return 0
    with tempfile.TemporaryDirectory(prefix="shoal-before-") as folder:
        trees = {"now": ROOT}
        older = tree_of(given.before, Path(folder), "tests") if given.before else None
        if older is not None:
            trees[given.before] = older
        print(f"{'tree':<12} {'a request':>14} {'a token':>12}   instructions")
        for name, tree in trees.items():
            request, token = measured(tree, given.requests)
            print(f"{name:<12} {request:>14,.0f} {token:>12,.0f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
