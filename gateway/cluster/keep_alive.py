"""How long instances may idle, as the last requests wished it; the holder hears of it seldom.

Pure: time arrives as `now`. What the holder is told is an event in the log of the cluster, and
every request may wish for something else: a wish is told at once where none was told for a
while, else the last of them when that while is over, unless the state has it by then.
"""

from __future__ import annotations

from collections.abc import Mapping

from bus.wire.ids import InstanceId
from bus.wire.instances import Instance

APART_S = 30.0


class KeepAliveWishes:
    """The wishes of one HTTP process's clients."""

    def __init__(self) -> None:
        self._wished: dict[InstanceId, float] = {}
        self._told_at: dict[InstanceId, float] = {}

    def wish(self, instance: InstanceId, seconds: float) -> None:
        """Take the latest wish; below 0 means for ever."""
        self._wished[instance] = seconds

    def due(self, instances: Mapping[str, Instance], now: float) -> list[tuple[InstanceId, float]]:
        """Return the wishes to tell now, as if they were told."""
        self._told_at = {name: at for name, at in self._told_at.items() if now - at < APART_S}
        found: list[tuple[InstanceId, float]] = []
        for name in [name for name in self._wished if name not in self._told_at]:
            seconds, one = self._wished.pop(name), instances.get(name)
            if one is not None and max(one.keep_alive_s, -1.0) != max(seconds, -1.0):
                self._told_at[name] = now
                found.append((name, seconds))
        return found
