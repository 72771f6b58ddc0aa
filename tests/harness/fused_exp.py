"""Compares the `exp` and `erf` of the kernels that MLX compiles with those that it came with.

    LD_PRELOAD=FILE python -m tests.harness.fused_exp

Prints one JSON object: how many numbers were tried and of how many the bits differ; they are spread
over all bit patterns, with the neighbours of the edges.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import cast

import mlx.core as mx
import numpy as np

EDGES = (0.0, 0.5, 1.0, 2.0, 4.0, 86.0, 87.0, 88.0, 89.0, np.inf)
STEP = 4099
"""A prime, so that all exponents meet all kinds of fractions."""


def numbers() -> mx.array:
    """Return about a million float32 numbers of all kinds."""
    patterns = [np.arange(0, 1 << 32, STEP, dtype=np.uint64).astype(np.uint32)]
    for edge in EDGES:
        for sign in (1.0, -1.0):
            at = np.array(sign * edge, np.float32).view(np.uint32)
            near = np.arange(-500, 500, dtype=np.int64) + int(at)
            patterns.append((near % (1 << 32)).astype(np.uint32))
    return mx.array(np.concatenate(patterns).view(np.float32))


def unlike(function: Callable[[mx.array], mx.array], tried: mx.array) -> int:
    """Return of how many numbers the compiled function has other bits; all NaN are alike."""

    def negated(x: mx.array) -> mx.array:  # two operations, for one alone is not compiled
        return -function(x)

    compiled, plain = -mx.compile(negated)(tried), function(tried)
    differ = compiled.view(mx.uint32) != plain.view(mx.uint32)
    wrong = differ & ~(mx.isnan(compiled) & mx.isnan(plain))
    return int(cast(int, mx.sum(wrong).item()))


def main() -> int:
    """Print what was found."""
    mx.set_default_device(mx.Device(mx.cpu))
    tried = numbers()
    found = {"tried": tried.size, "exp": unlike(mx.exp, tried), "erf": unlike(mx.erf, tried)}
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
