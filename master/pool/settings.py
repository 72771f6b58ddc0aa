"""The operator's choices for the pool.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """A copy in use keeps its turn for `turn_s`, or `turn_loads` times what loading it took, where
    that is longer: so that at most 1 / (1 + `turn_loads`) of a busy machine's time is spent
    loading. What waits rises by `ageing_per_s` in priority each second.

    A model that has `replica_rows` requests a copy for `replica_after_s` gets another copy, at most
    `replicas` beside its first (0: none), and loses it when one copy less would have had at most
    half as many for `replica_gone_s`."""

    turn_s: float = 30.0
    turn_loads: float = 4.0
    ageing_per_s: float = 0.5
    replicas: int = 1
    replica_rows: int = 8
    replica_after_s: float = 30.0
    replica_gone_s: float = 120.0

    def turn_of(self, load_s: float) -> float:
        """Return the seconds for which a copy in use that took so long to load keeps its turn."""
        return max(self.turn_s, self.turn_loads * load_s)
