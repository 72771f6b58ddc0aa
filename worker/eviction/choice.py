"""What of a node's store goes: oldest last use first, until what was fetched fits.

Pure. Nothing goes that has a reason to stay, and nothing once the rest fits.
"""

from __future__ import annotations

from collections.abc import Iterable

from worker.eviction.holdings import Holding


def fetched_bytes(holdings: Iterable[Holding]) -> int:
    """Return what the models that were fetched take on the disk, those in use included."""
    return sum(one.size_bytes for one in holdings if one.what == "fetched")


def in_order(holdings: Iterable[Holding]) -> list[Holding]:
    """Return what may go, that which was used longest ago first."""
    may_go = (one for one in holdings if not one.why and one.what == "fetched")
    return sorted(may_go, key=lambda one: (one.used_at_s, one.model, one.path))


def plan(holdings: Iterable[Holding], limit_bytes: int) -> tuple[Holding, ...]:
    """Return what is to go, in order, so that what was fetched takes `limit_bytes` at most; fewer
    bytes go only where too much has to stay."""
    known = tuple(holdings)
    over_bytes = fetched_bytes(known) - limit_bytes
    going: list[Holding] = []
    for one in in_order(known):
        if over_bytes <= 0:
            break
        if one.size_bytes:
            going.append(one)
            over_bytes -= one.size_bytes
    return tuple(going)
