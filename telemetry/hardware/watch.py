"""Talks to the sensor sources, each in its own thread. If a read fails or hangs, only the figures
of that source are missing.

The figures of a read are valid until the next read has finished. A source that failed or does not
answer has no figures; the reading has the reason instead.
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
    """`silent_s` is the longest time that a read may take; then its source counts as silent."""

    silent_s: float = 8.0


@dataclass(slots=True)
class _Watched:
    """A sensor source, the result or failure of its last read, and the start of the read in
    progress. Only the source's own thread writes these fields."""

    source: SensorSource
    sensed: Sensed | None = None
    failure: str = ""
    began_at: float | None = None


class HardwareWatch:
    """Reads every sensor source periodically, each in a thread of its own, until it is closed."""

    def __init__(
        self, node: NodeId, sources: Sequence[SensorSource], timing: WatchTiming | None = None
    ) -> None:
        self._node = node
        self._timing = timing or WatchTiming()
        self._stop = threading.Event()
        self._watched = [_Watched(source) for source in sources]
        for watched in self._watched:
            name = f"sensors-{watched.source.name}"
            threading.Thread(target=self._look, args=(watched,), name=name, daemon=True).start()

    def close(self) -> None:
        """Start no further read; the thread of a hanging read is abandoned."""
        self._stop.set()

    def reading(self) -> HardwareReading:
        """Return the latest figures of all sources, without waiting for any."""
        troubles = self.troubles()
        sensed = [
            watched.sensed
            for watched in self._watched
            if watched.sensed is not None and watched.source.name not in troubles
        ]
        temperatures = (figures.cpu_temperature_c for figures in sensed)
        powers = (figures.cpu_power_w for figures in sensed)
        return HardwareReading(
            node=self._node,
            accelerators=tuple(card for figures in sensed for card in figures.accelerators),
            cpu_temperature_c=next((c for c in temperatures if c is not None), None),
            cpu_power_w=next((w for w in powers if w is not None), None),
            untold=(
                *(missing for figures in sensed for missing in figures.untold),
                *(UntoldFigures(source=name, why=why) for name, why in troubles.items()),
            ),
            measured_at_s=wall(),
        )

    def troubles(self) -> Mapping[str, str]:
        """Return the current fault of each source that has one, by the source's name."""
        at = now()
        troubles = {watched.source.name: self._trouble(watched, at) for watched in self._watched}
        return {name: trouble for name, trouble in troubles.items() if trouble}

    def _trouble(self, watched: _Watched, at: float) -> str:
        began_at, silent_s = watched.began_at, self._timing.silent_s
        if began_at is not None and at - began_at >= silent_s:
            return f"reading it has taken more than {silent_s:g} s and has not finished"
        return watched.failure

    def _look(self, watched: _Watched) -> None:
        while not self._stop.is_set():
            began_at = watched.began_at = now()
            try:
                watched.sensed, watched.failure = watched.source.read(began_at), ""
            except Exception as error:
                # A driver may raise anything, and the next read may succeed.
                watched.failure = f"{type(error).__name__}: {error}"
            watched.began_at = None
            self._stop.wait(watched.source.period_s)
