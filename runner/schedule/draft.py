"""A plan in the making, and what must be remembered of it until its result is read.

Pure. Deciding is in `plan` and `prefill`; both write here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.wire.ids import TokenId
from runner.engine import EntryId, PrefillGroup, PrefixHit, PrefixInsert, RowId, RowSpec
from runner.schedule.costs import GroupSize
from runner.schedule.rows import Row, RowEvent


@dataclass(slots=True)
class Draft:
    """A plan being made, with what must be remembered until its result is read: who gives a token
    (`samples`), how far prompts are (`progress`), and what the step was expected to cost."""

    step: int
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
    scored: dict[RowId, Row] = field(default_factory=dict[RowId, Row])
    """Rows whose prompts are scored by chunks of this step."""
    forced: list[tuple[RowId, TokenId]] = field(default_factory=list[tuple[RowId, TokenId]])
    progress: list[tuple[Row, int]] = field(default_factory=list[tuple[Row, int]])
    groups: list[GroupSize] = field(default_factory=list[GroupSize])
    decode_s: float = 0.0
    prefill_s: float = 0.0
    events: list[RowEvent] = field(default_factory=list[RowEvent])

    def sample(self, row_id: RowId, row: Row) -> None:
        """Have the row give a token in this step: a certain one, where its thinking is at its
        limit."""
        token = row.next_forced()
        if token is not None:
            self.forced.append((row_id, token))
        self.samples[row_id] = row
        row.in_flight += 1

    @property
    def is_empty(self) -> bool:
        """Return whether the step would do nothing."""
        does = (self.release, self.preempt, self.evict, self.admit, self.prefill, self.decode)
        return not any((*does, self.insert))
