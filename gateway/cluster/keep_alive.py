"""How long instances may idle, as the last requests wished it; the holder hears of it seldom.

Pure: time arrives as `now`. What the holder is told becomes an event in the log of the cluster,
and every request may wish for something else: a wish is told at once where none was told lately,
else the last of them a little later, unless the state has it by then. It waits half as long as the
state lets the copy idle, so that none is unloaded that was wished to stay.
"""

from __future__ import annotations

from collections.abc import Mapping

from bus.wire.ids import InstanceId
from bus.wire.instances import LEAST_IDLE_S, Instance

APART_S = 30.0
"""The longest time between two that are told of one instance."""
FOR_EVER = -1.0


class KeepAliveWishes:
    """The wishes of one HTTP process's clients."""

    def __init__(self) -> None:
        self._wished: dict[InstanceId, float] = {}
        self._told_at: dict[InstanceId, float] = {}

    def wish(self, instance: InstanceId, seconds: float) -> None:
        """Take the latest wish; below 0 and infinite mean for ever."""
        for_ever = seconds < 0 or seconds == float("inf")
        self._wished[instance] = FOR_EVER if for_ever else seconds

    def due(self, instances: Mapping[str, Instance], now: float) -> list[tuple[InstanceId, float]]:
        """Return the wishes to tell now, and take them for told."""
        self._told_at = {name: at for name, at in self._told_at.items() if now - at < APART_S}
        found: list[tuple[InstanceId, float]] = []
        for name, seconds in list(self._wished.items()):
            instance = instances.get(name)
            if instance is None or max(instance.keep_alive_s, FOR_EVER) == seconds:
                del self._wished[name]
            elif now - self._told_at.get(name, float("-inf")) >= _apart_s(instance):
                del self._wished[name]
                self._told_at[name] = now
                found.append((name, seconds))
        return found


def _apart_s(instance: Instance) -> float:
    if instance.keep_alive_s < 0:
        return APART_S
    return min(max(instance.keep_alive_s, LEAST_IDLE_S) / 2, APART_S)
