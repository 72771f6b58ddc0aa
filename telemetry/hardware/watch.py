"""Talks to the sources of sensors, to each in a thread of its own: a look that fails, or never
ends, costs that source's figures alone.

What a look brought counts until the next one is over; of a source that failed, or does not answer,
nothing counts, and why is told instead.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bus.process.clock import now, wall
from bus.wire.accelerators import HardwareReading, UntoldFigures
from bus.wire.ids import NodeId
from telemetry.hardware.sensed import Sensed, SensorSource


@dataclass(frozen=True, slots=True)
class WatchTiming:
    """How long one look may take before its source is said not to answer."""

    silent_s: float = 8.0


@dataclass(slots=True)
class _Watched:
    """A source, what its last look brought or what was wrong with it, and since when a look is
    under way; written by the source's own thread."""

    source: SensorSource
    told: Sensed | None = None
    failure: str = ""
    began_at: float | None = None


class HardwareWatch:
    """Looks at every source, over and over, until it is closed."""

    def __init__(
        self, node: NodeId, sources: Sequence[SensorSource], timing: WatchTiming | None = None
    ) -> None:
        self._node = node
        self._timing = timing or WatchTiming()
        self._stop = threading.Event()
        self._watched = [_Watched(source) for source in sources]
        for one in self._watched:
            name = f"sensors-{one.source.name}"
            threading.Thread(target=self._look, args=(one,), name=name, daemon=True).start()

    def close(self) -> None:
        """Begin no further look; one that never ends is left behind."""
        self._stop.set()

    def reading(self) -> HardwareReading:
        """Return what all sources tell, without waiting for any."""
        troubles = self.troubles()
        found = [
            one.told
            for one in self._watched
            if one.told is not None and one.source.name not in troubles
        ]
        temperatures = (one.cpu_temperature_c for one in found)
        powers = (one.cpu_power_w for one in found)
        return HardwareReading(
            node=self._node,
            accelerators=tuple(card for one in found for card in one.accelerators),
            cpu_temperature_c=next((c for c in temperatures if c is not None), None),
            cpu_power_w=next((w for w in powers if w is not None), None),
            untold=(
                *(figures for one in found for figures in one.untold),
                *(UntoldFigures(source=name, why=why) for name, why in troubles.items()),
            ),
            measured_at_s=wall(),
        )

    def troubles(self) -> Mapping[str, str]:
        """Return what is wrong now with sources, by their names."""
        at = now()
        found = {one.source.name: self._trouble(one, at) for one in self._watched}
        return {name: trouble for name, trouble in found.items() if trouble}

    def _trouble(self, one: _Watched, at: float) -> str:
        began_at, silent_s = one.began_at, self._timing.silent_s
        if began_at is not None and at - began_at >= silent_s:
            return f"reading it has taken more than {silent_s:g} s and has not finished"
        return one.failure

    def _look(self, one: _Watched) -> None:
        while not self._stop.is_set():
            began_at = one.began_at = now()
            try:
                one.told, one.failure = one.source.read(began_at), ""
            except Exception as error:
                # A driver may raise anything, and the next look may be well.
                one.failure = f"{type(error).__name__}: {error}"
            one.began_at = None
            self._stop.wait(one.source.period_s)
