"""The operator's settings for the cluster's shared memory (the pool).

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Settings of the pool.

    An instance in use has a minimum residency of `turn_s`, or of `turn_loads` times its load time
    if that is longer. So a busy machine spends at most 1 / (1 + `turn_loads`) of its time loading.
    A waiting claim becomes more urgent by `ageing_per_s` in priority each second.

    A model that has had `replica_rows` requests per instance for `replica_after_s` gets another
    instance, at most `replicas` beside its first (0: none). It loses that instance if, for
    `replica_gone_s`, one instance less would have had at most half as many requests each.
    """

    turn_s: float = 30.0
    turn_loads: float = 4.0
    ageing_per_s: float = 0.5
    replicas: int = 1
    replica_rows: int = 8
    replica_after_s: float = 30.0
    replica_gone_s: float = 120.0

    def turn_of(self, load_s: float) -> float:
        """Return the minimum residency, in seconds, of an instance with this load time."""
        return max(self.turn_s, self.turn_loads * load_s)
