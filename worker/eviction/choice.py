"""Choose the models to delete: least recently used first, until the fetched models fit.

Pure. Never chooses a model that has a reason to stay, and never more models than needed.
"""

from __future__ import annotations

from collections.abc import Iterable

from worker.eviction.holdings import Holding


def fetched_bytes(holdings: Iterable[Holding]) -> int:
    """Return the bytes of fetched models on the disk, those in use included."""
    return sum(holding.size_bytes for holding in holdings if holding.what == "fetched")


def in_order(holdings: Iterable[Holding]) -> list[Holding]:
    """Return the models that may be deleted, least recently used first."""
    may_go = (holding for holding in holdings if not holding.why and holding.what == "fetched")
    return sorted(may_go, key=lambda holding: (holding.used_at_s, holding.model, holding.path))


def plan(holdings: Iterable[Holding], limit_bytes: int) -> tuple[Holding, ...]:
    """Return the models to delete, in order, so that the fetched models take at most `limit_bytes`.
    If too many models must stay, the fetched models exceed the limit."""
    listed = tuple(holdings)
    over_bytes = fetched_bytes(listed) - limit_bytes
    going: list[Holding] = []
    for holding in in_order(listed):
        if over_bytes <= 0:
            break
        if holding.size_bytes:
            going.append(holding)
            over_bytes -= holding.size_bytes
    return tuple(going)
