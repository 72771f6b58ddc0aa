"""How long clients want idle instances to stay loaded, and when these times are sent to the leader.

Pure: time arrives as `now`. Each change sent to the leader becomes an event in the cluster's log,
and every client request may ask for another time. So the latest time is sent immediately only if
none was sent shortly before; otherwise it is sent after a pause. It is not sent if the state
already has it. The pause is at most half of the instance's current idle time, so that the instance
is not unloaded before its extension arrives.
"""

from __future__ import annotations

from collections.abc import Mapping

from bus.wire.ids import InstanceId
from bus.wire.instances import LEAST_IDLE_S, Instance

APART_S = 30.0
"""The longest pause between two messages about one instance."""
FOR_EVER = -1.0


class KeepAliveWishes:
    """For each instance, how long clients of this HTTP process want it to stay loaded while
    idle."""

    def __init__(self) -> None:
        self._wished: dict[InstanceId, float] = {}
        self._told_at: dict[InstanceId, float] = {}

    def wish(self, instance: InstanceId, seconds: float) -> None:
        """Store how long a client wants the instance to stay loaded while idle; it replaces earlier
        times. Below 0 and infinity mean for ever."""
        for_ever = seconds < 0 or seconds == float("inf")
        self._wished[instance] = FOR_EVER if for_ever else seconds

    def due(self, instances: Mapping[str, Instance], now: float) -> list[tuple[InstanceId, float]]:
        """Return the instances and times to send to the leader now, and count them as sent."""
        self._told_at = {name: at for name, at in self._told_at.items() if now - at < APART_S}
        due: list[tuple[InstanceId, float]] = []
        for name, seconds in list(self._wished.items()):
            instance = instances.get(name)
            if instance is None or max(instance.keep_alive_s, FOR_EVER) == seconds:
                del self._wished[name]
            elif now - self._told_at.get(name, float("-inf")) >= _apart_s(instance):
                del self._wished[name]
                self._told_at[name] = now
                due.append((name, seconds))
        return due


def _apart_s(instance: Instance) -> float:
    if instance.keep_alive_s < 0:
        return APART_S
    return min(max(instance.keep_alive_s, LEAST_IDLE_S) / 2, APART_S)
