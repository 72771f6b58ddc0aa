"""Which variants of a test run in the gate, and which in `make prove` alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def mostly_proof(every: Iterable[Any], gate: Collection[Any]) -> list[Any]:
    """Return all variants, those that are not in `gate` marked as proof. Raises AssertionError
    where `gate` names one that there is not."""
    found = list(every)
    assert all(one in found for one in gate), gate
    return [one if one in gate else pytest.param(one, marks=pytest.mark.proof) for one in found]
