"""Which retained values a switchboard keeps: the latest per (origin, topic), until they expire.

Pure. A later boot of the same process replaces an earlier one; within a boot the higher
sequence number wins. Expired values are not given out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.wire.ids import Boot


@dataclass(frozen=True, slots=True)
class RetainedValue:
    """One value as it came, and when it expires."""

    boot: Boot
    seq: int
    payload: bytes
    expires_at: float


@dataclass(slots=True)
class Retained:
    """The values of one plane. Keys are (topic, origin)."""

    values: dict[tuple[str, str], RetainedValue] = field(
        default_factory=dict[tuple[str, str], RetainedValue]
    )

    def keep(self, topic: str, origin: str, value: RetainedValue) -> bool:
        """Keep a value unless a later one of the same boot is kept. Whether it was."""
        known = self.values.get((topic, origin))
        if known is not None and known.boot == value.boot and known.seq >= value.seq:
            return False
        self.values[topic, origin] = value
        return True

    def matching(self, prefix: str, now: float, origin: str = "") -> list[tuple[str, bytes]]:
        """Return (topic, payload) of every living value whose topic begins with `prefix`, and
        whose origin with `origin`."""
        return [
            (topic, kept.payload)
            for (topic, by), kept in self.values.items()
            if topic.startswith(prefix) and by.startswith(origin) and now < kept.expires_at
        ]

    def expire(self, now: float) -> int:
        """Forget what has expired; returns how many."""
        gone = [key for key, kept in self.values.items() if now >= kept.expires_at]
        for key in gone:
            del self.values[key]
        return len(gone)
