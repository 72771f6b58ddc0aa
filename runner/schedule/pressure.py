"""Compare the memory that ranks measure with their limit, and decide when a row must end.

Pure. Rows are admitted by a formula for KV, so only a measurement shows that a rank exceeds its
limit. If a row is ended to free memory, the effect is visible late: the row leaves with the next
plan, and the batch shrinks some steps later. Measurements from before then do not end another row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from runner.engine import MemoryLook
from runner.schedule.rows import Row


@dataclass(slots=True)
class Pressure:
    """The ranks that use more memory than their limit. `over` has the latest measurement of each,
    and is empty while memory suffices; `ended` counts the rows that were ended to free memory."""

    over: dict[int, MemoryLook] = field(default_factory=dict[int, MemoryLook])
    ended: int = 0
    _counts_from: int = 0

    def take(self, rank: int, look: MemoryLook) -> None:
        """Record a rank's measurement. A rank within its limit is no longer in `over`."""
        if look.is_over:
            self.over[rank] = look
        else:
            self.over.pop(rank, None)

    def due(self) -> str | None:
        """Return a text that says why a row must end now, about the rank furthest above its limit.
        Return None if no rank was measured above its limit since the last action took effect."""
        counting = [entry for entry in self.over.items() if entry[1].step >= self._counts_from]
        if not counting:
            return None
        rank, look = max(
            counting, key=lambda entry: entry[1].used_bytes / max(1, entry[1].limit_bytes)
        )
        used, limit = look.used_bytes / 1e9, look.limit_bytes / 1e9
        return f"rank {rank} uses {used:.3f} GB of memory; its limit is {limit:.3f} GB"

    def relieved(self, step: int) -> None:
        """Record that a row was ended or prefixes were evicted, with effect from step `step` on. An
        ended row leaves a hole in the batch, which closes within as many steps as the batch has
        rows."""
        self._counts_from = step


def to_end(rows: Iterable[Row]) -> Row | None:
    """Return the row to end first if memory is short: the youngest row of the lowest priority in
    the engine; None if there is none."""
    holding = [row for row in rows if row.status != "ended" and row.row_id is not None]
    return max(holding, key=lambda row: row.order, default=None)
