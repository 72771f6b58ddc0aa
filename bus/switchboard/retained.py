"""The retained values of a switchboard: the latest value for each (origin, topic), until it
expires.

Pure. A later boot of the same process replaces an earlier one; within a boot the higher sequence
number wins. Expired values are not returned.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.wire.ids import Boot


@dataclass(frozen=True, slots=True)
class RetainedValue:
    """One value as it was received, and the time when it expires."""

    boot: Boot
    seq: int
    payload: bytes
    expires_at: float


@dataclass(slots=True)
class Retained:
    """The retained values of one plane. Keys are (topic, origin)."""

    values: dict[tuple[str, str], RetainedValue] = field(
        default_factory=dict[tuple[str, str], RetainedValue]
    )

    def keep(self, topic: str, origin: str, value: RetainedValue) -> bool:
        """Store a value unless there is a later one of the same boot; return whether it was
        stored."""
        previous = self.values.get((topic, origin))
        if previous is not None and previous.boot == value.boot and previous.seq >= value.seq:
            return False
        self.values[topic, origin] = value
        return True

    def replace(self, topic: str, origin: str, value: RetainedValue) -> None:
        """Store a value and drop all earlier values of its topic, of any origin."""
        for key in [key for key in self.values if key[0] == topic]:
            del self.values[key]
        self.values[topic, origin] = value

    def matching(self, prefix: str, now: float, origin: str = "") -> list[tuple[str, bytes]]:
        """Return (topic, payload) of each valid value whose topic begins with `prefix` and whose
        origin begins with `origin`."""
        return [
            (topic, value.payload)
            for (topic, by), value in self.values.items()
            if topic.startswith(prefix) and by.startswith(origin) and now < value.expires_at
        ]

    def expire(self, now: float) -> int:
        """Delete expired values; return how many."""
        gone = [key for key, value in self.values.items() if now >= value.expires_at]
        for key in gone:
            del self.values[key]
        return len(gone)
