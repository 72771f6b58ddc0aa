"""How many shapes a prompt's attention has, with and without padding to a power of two.

    python -m tests.bench.prompt_shapes [--requests 400]

The scheduler plans the mixed load of `tests.bench.serve` with a fake engine, in virtual time. A
shape is a pair: the width of a chunk, and the keys that it sees. On NVIDIA's GPUs MLX prepares code
for each new pair. Decodes are not counted, because their attention is another kernel.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Sequence

from runner.engine import PrefillGroup
from runner.mlx.model.device import bounded_width
from tests.bench.serve import mixed_jobs
from tests.harness.engine import StepCosts, facts
from tests.harness.scheduling import Loop, prepared

ROWS = 16
GPU = StepCosts(0.006, 0.0001, 0.004, 0.00003)
"""Roughly a model of 8 B parameters on a large GPU."""


def groups_of(requests: int) -> Iterator[PrefillGroup]:
    """Plan the requests, of which at most `ROWS` are open; yield the groups of prompt chunks."""
    chance = random.Random(1)
    loop = Loop(facts(context_tokens=4096), costs=GPU)
    waiting = [
        prepared(str(number), [chance.randrange(1, 200) for _ in job.prompt.split()], max_tokens=32)
        for number, job in enumerate(mixed_jobs(chance, requests, 32))
    ]
    while waiting or loop.turn():
        while waiting and len(loop.made) - len(loop.ends) < ROWS:
            loop.submit(waiting.pop())
            loop.turn()
        loop.turn()
    for plan in loop.plans:
        yield from plan.prefill


def shape(group: PrefillGroup, *, padded: bool) -> tuple[int, int]:
    """Return the width of a group's chunks and the keys that they see."""
    widest = max(chunk.stop - chunk.start for chunk in group)
    width = bounded_width(widest) if padded else widest
    return width, max(chunk.start for chunk in group) + width


def main(words: Sequence[str]) -> int:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=400)
    groups = list(groups_of(parser.parse_args(words).requests))
    plain = {shape(group, padded=False) for group in groups}
    bounded = {shape(group, padded=True) for group in groups}
    fresh = [group for group in groups if not any(chunk.start for chunk in group)]
    sys.stdout.write(
        f"{len(groups)} groups of chunks: {len(plain)} shapes, {len(bounded)} if padded; of "
        f"{len(fresh)} that begin prompts: {len({shape(group, padded=False) for group in fresh})}, "
        f"{len({shape(group, padded=True) for group in fresh})} if padded\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
