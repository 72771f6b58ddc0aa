"""Instants of other nodes' clocks, by the clock of the node that was asked.

Pure. Each switchboard measures the clocks of its peers with every hello (`PeersReading`). As with
traces, a bound is wider by what clocks may drift between then and the instant
(`bus.links.clock_offset`). Of a node whose clock was not measured instants are its own, with no
error stated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bus.links.clock_offset import ClockEstimate, ClockOffsets, ClockSample
from bus.wire.messages.peers import PeersReading

TIMES = ("at_s", "since_s")
"""The instants of an entry."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of nodes as `own` knows them."""

    own: str
    offsets: Mapping[str, ClockOffsets]

    def here(self, node: str, at_s: float) -> tuple[float, float | None]:
        """Return the instant by our clock, and by how much it may be wrong; None: not known."""
        found = self._estimate(node, at_s)
        if found is not None:
            found = self._estimate(node, at_s - found.offset_s)
        return (at_s, None) if found is None else (at_s - found.offset_s, found.error_s)

    def entry(self, node: str, told: Mapping[str, Any]) -> dict[str, Any]:
        """Return an entry of a flight recorder with its instants by our clock, and their error."""
        times = {name: self.here(node, told[name]) for name in TIMES if name in told}
        _, error_s = times["at_s"]
        return {
            **told,
            **{name: at_s for name, (at_s, _) in times.items()},
            "error_s": None if error_s is None else round(error_s, 6),
        }

    def told(self, node: str, now_s: float) -> dict[str, float | None]:
        """Return by how much a node's clock is ahead of ours, and by how much that may be wrong;
        None where it was not measured."""
        found = self._estimate(node, now_s)
        if found is None:
            return {"offset_s": None, "error_s": None}
        return {"offset_s": round(found.offset_s, 6), "error_s": round(found.error_s, 6)}

    def _estimate(self, node: str, at_s: float) -> ClockEstimate | None:
        """Return what holds of a node's clock at an instant of ours."""
        if node == self.own:
            return ClockEstimate(0.0, 0.0)
        known = self.offsets.get(node)
        return None if known is None else known.estimate(at_s, at_s)


def clocks_of(own: str, readings: Iterable[PeersReading], now_s: float) -> Clocks:
    """Return what our switchboard has measured of its peers' clocks, as it told a moment ago."""
    offsets: dict[str, ClockOffsets] = {}
    for peer in (peer for reading in readings if reading.node == own for peer in reading.peers):
        if peer.clock_offset_s is None or peer.round_trip_s is None:
            continue
        answered_s = now_s - peer.silent_s
        theirs_s = answered_s - peer.round_trip_s / 2 + peer.clock_offset_s
        sent_s = answered_s - peer.round_trip_s
        known = offsets.setdefault(str(peer.node), ClockOffsets())
        known.add(ClockSample(sent_s, theirs_s, theirs_s, answered_s))
    return Clocks(own, offsets)
