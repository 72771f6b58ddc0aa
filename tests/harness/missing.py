"""What a test does where something that it needs from elsewhere is not there: a package of PyPI or
npm, a network of its own."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

STRICT = ("SHOAL_PROVE", "SKIPS_ARE_FAILURES")
"""Where one of these is set, nothing may be missing: `make prove` sets the first, `.ci/run` the
second on machines that have a package manager."""


def missing(why: object) -> NoReturn:
    """Skip the test in words, or fail it in the same words where nothing may be missing."""
    if any(map(os.environ.get, STRICT)):
        pytest.fail(str(why))
    pytest.skip(str(why))
