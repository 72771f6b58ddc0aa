"""Converts instants of other nodes' clocks to the clock of the answering node.

Pure. The switchboard of each node measures the clocks of other nodes with every hello message
(`PeersReading`). The error of an offset grows with the time since the measurement, because clocks
drift (`bus.links.clock_offset`). If a node's clock has not been measured, its instants are left
unchanged and have no `error_s`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bus.links.clock_offset import ClockEstimate, ClockOffsets, ClockSample
from bus.wire.messages.peers import PeersReading

TIMES = ("at_s", "since_s")
"""The fields of a flight recorder's entry that are instants."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Measured offsets of the nodes' clocks from the clock of `own`."""

    own: str
    offsets: Mapping[str, ClockOffsets]

    def here(self, node: str, at_s: float) -> tuple[float, float | None]:
        """Convert an instant of a node's clock to our clock. Return it with its error; None if that
        clock has not been measured."""
        estimate = self._estimate(node, at_s)
        if estimate is not None:
            estimate = self._estimate(node, at_s - estimate.offset_s)
        return (at_s, None) if estimate is None else (at_s - estimate.offset_s, estimate.error_s)

    def entry(self, node: str, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return an entry of a flight recorder with its instants in our clock, and `error_s`."""
        times = {name: self.here(node, row[name]) for name in TIMES if name in row}
        _, error_s = times["at_s"]
        return {
            **row,
            **{name: at_s for name, (at_s, _) in times.items()},
            "error_s": None if error_s is None else round(error_s, 6),
        }

    def offset(self, node: str, now_s: float) -> dict[str, float | None]:
        """Return how far a node's clock is ahead of ours, and the error; None if that clock has not
        been measured."""
        estimate = self._estimate(node, now_s)
        if estimate is None:
            return {"offset_s": None, "error_s": None}
        return {"offset_s": round(estimate.offset_s, 6), "error_s": round(estimate.error_s, 6)}

    def _estimate(self, node: str, at_s: float) -> ClockEstimate | None:
        """Return the offset of a node's clock at an instant of our clock."""
        if node == self.own:
            return ClockEstimate(0.0, 0.0)
        offsets = self.offsets.get(node)
        return None if offsets is None else offsets.estimate(at_s, at_s)


def clocks_of(own: str, readings: Iterable[PeersReading], now_s: float) -> Clocks:
    """Return the clocks from the latest readings of our own switchboard."""
    offsets: dict[str, ClockOffsets] = {}
    for peer in (peer for reading in readings if reading.node == own for peer in reading.peers):
        if peer.clock_offset_s is None or peer.round_trip_s is None:
            continue
        answered_s = now_s - peer.silent_s
        theirs_s = answered_s - peer.round_trip_s / 2 + peer.clock_offset_s
        sent_s = answered_s - peer.round_trip_s
        of_peer = offsets.setdefault(str(peer.node), ClockOffsets())
        of_peer.add(ClockSample(sent_s, theirs_s, theirs_s, answered_s))
    return Clocks(own, offsets)
