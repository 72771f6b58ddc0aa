"""Seeds of tests that draw: the same in every run, drawn anew when proving, and always printed.

`SHOAL_TEST_<NAME>=<seed>` gives one again; pytest shows what a failed test printed.
"""

from __future__ import annotations

import os
import random

PROVING = bool(os.environ.get("SHOAL_PROVE"))


def seed_for(name: str, usual: int) -> int:
    """Return the seed of a test, and print how to run it again. `name` in capital letters."""
    variable = f"SHOAL_TEST_{name}"
    drawn = random.SystemRandom().randrange(10**6) if PROVING else usual
    seed = int(os.environ.get(variable) or drawn)
    print(f"seed: {variable}={seed}")
    return seed
