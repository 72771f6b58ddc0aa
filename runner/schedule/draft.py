"""A plan in the making, and what must be remembered of it until its result is read.

Pure. Deciding is in `schedule_plan` and `schedule_prefill`; both write here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from runner.engine import EntryId, PrefillGroup, PrefixHit, PrefixInsert, RowId, RowSpec
from runner.schedule.costs import GroupSize
from runner.schedule.rows import Row, RowEvent
from runner.schedule.table import RowTable


@dataclass(slots=True)
class Draft:
    """A plan being made, with what must be remembered until its result is read."""

    now: float
    release: list[RowId] = field(default_factory=list[RowId])
    preempt: list[RowId] = field(default_factory=list[RowId])
    evict: list[EntryId] = field(default_factory=list[EntryId])
    admit: list[RowSpec] = field(default_factory=list[RowSpec])
    hits: list[PrefixHit] = field(default_factory=list[PrefixHit])
    prefill: list[PrefillGroup] = field(default_factory=list[PrefillGroup])
    decode: list[RowId] = field(default_factory=list[RowId])
    insert: list[PrefixInsert] = field(default_factory=list[PrefixInsert])
    needed: set[EntryId] = field(default_factory=set[EntryId])
    """Entries that this step reads or makes: not to be evicted by it."""
    fresh: set[EntryId] = field(default_factory=set[EntryId])
    """Entries that this step makes: to be hit from the next one on."""
    samples: dict[RowId, Row] = field(default_factory=dict[RowId, Row])
    progress: list[tuple[Row, int]] = field(default_factory=list[tuple[Row, int]])
    groups: list[GroupSize] = field(default_factory=list[GroupSize])
    decode_s: float = 0.0
    prefill_s: float = 0.0
    events: list[RowEvent] = field(default_factory=list[RowEvent])

    @property
    def is_empty(self) -> bool:
        """Return whether the step would do nothing."""
        return not (
            self.decode
            or self.prefill
            or self.release
            or self.preempt
            or self.evict
            or self.admit
            or self.insert
        )


def keep_prefix(table: RowTable, draft: Draft, row: Row, length: int) -> bool:
    """Plan to keep the row's first `length` tokens; False where it is not worth it."""
    if table.prefixes.limit_bytes <= 0 or not 0 < length <= min(row.computed, row.length):
        return False
    kept = table.prefixes.keep(
        row.chain(),
        length,
        room_bytes=table.kv_bytes - table.live_bytes(),
        hit_now=draft.needed,
    )
    if kept is None:
        return False
    assert row.row_id is not None
    draft.evict.extend(kept.evict)
    draft.insert.append(PrefixInsert(kept.entry, row.row_id, length))
    draft.needed.add(kept.entry)
    draft.fresh.add(kept.entry)
    return True
