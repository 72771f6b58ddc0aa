"""Memory that ranks measure, compared with what they were promised: when rows have to end for it.

Pure. KV is admitted by formula; that a rank takes more than it may can only be seen. What was done
about it shows late: an ended row leaves with the next plan, and its batch closes up some steps
after that. So what was measured before then is no reason to end another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from runner.engine import MemoryLook
from runner.schedule.rows import Row


@dataclass(slots=True)
class Pressure:
    """The latest measure of each rank that takes more than it may, by rank; `ended` counts the rows
    that ended for it."""

    over: dict[int, MemoryLook] = field(default_factory=dict[int, MemoryLook])
    ended: int = 0
    _counts_from: int = 0

    @property
    def is_on(self) -> bool:
        """Return whether any rank takes more than it may."""
        return bool(self.over)

    def take(self, rank: int, look: MemoryLook) -> None:
        """Take what a rank measured."""
        if look.is_over:
            self.over[rank] = look
        else:
            self.over.pop(rank, None)

    def due(self) -> str | None:
        """Return why something has to be done now, in words: of the rank that is furthest over.
        None where nothing has been measured since what was done last took effect."""
        counting = [one for one in self.over.items() if one[1].step >= self._counts_from]
        if not counting:
            return None
        rank, look = max(counting, key=lambda one: one[1].used_bytes / max(1, one[1].limit_bytes))
        used, limit = look.used_bytes / 1e9, look.limit_bytes / 1e9
        return f"rank {rank} takes {used:.3f} GB of memory, and may take {limit:.3f} GB"

    def relieved(self, step: int) -> None:
        """Note that something is done about it which shows from step `step` on: an ended row leaves
        a hole in the batch, which is closed within as many steps as that has rows."""
        self._counts_from = step


def to_end(rows: Iterable[Row]) -> Row | None:
    """Return the row that ends first where memory is short: of the lowest class the youngest, among
    those that hold memory. None where none does."""
    holding = [row for row in rows if row.status != "ended" and row.row_id is not None]
    return max(holding, key=lambda row: row.order, default=None)
