"""A plan under construction, and the facts that are needed when its result arrives. Pure: `plan`
and `prefill` decide what the plan contains; both write into the same `OpenPlan`."""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.wire.ids import TokenId
from runner.drafting import Draft
from runner.engine import EntryId, PrefillGroup, PrefixHit, PrefixInsert, RowId, RowSpec
from runner.schedule.costs import GroupSize
from runner.schedule.rows import Row, RowEvent


@dataclass(slots=True)
class OpenPlan:
    """A plan under construction, and the facts that are needed when its result arrives: rows that
    yield a token (`samples`), progress of prompts (`progress`), and the step's expected cost."""

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
    """The kept prefixes that this step reads or makes, and therefore must not evict."""
    fresh: set[EntryId] = field(default_factory=set[EntryId])
    """The kept prefixes that this step makes; only later steps can use them."""
    samples: dict[RowId, Row] = field(default_factory=dict[RowId, Row])
    scored: dict[RowId, Row] = field(default_factory=dict[RowId, Row])
    """The rows of whose prompts this step computes log-probabilities."""
    forced: list[tuple[RowId, TokenId]] = field(default_factory=list[tuple[RowId, TokenId]])
    guess: Draft | None = None
    """The guessed next tokens of the only row of this step, which the step verifies."""
    progress: list[tuple[Row, int]] = field(default_factory=list[tuple[Row, int]])
    groups: list[GroupSize] = field(default_factory=list[GroupSize])
    decode_s: float = 0.0
    prefill_s: float = 0.0
    events: list[RowEvent] = field(default_factory=list[RowEvent])

    def sample(self, row_id: RowId, row: Row) -> None:
        """Plan that the row yields a token in this step. If the row's thinking has reached its
        limit, the token is forced."""
        token = row.next_forced()
        if token is not None:
            self.forced.append((row_id, token))
        self.samples[row_id] = row
        row.in_flight += 1

    @property
    def does_more_than_decode(self) -> bool:
        """Return whether the step has other work than decoding rows, or forces a token."""
        does = (self.release, self.preempt, self.evict, self.admit, self.prefill, self.insert)
        return any((*does, self.forced))

    @property
    def is_empty(self) -> bool:
        does = (self.release, self.preempt, self.evict, self.admit, self.prefill, self.decode)
        return not any((*does, self.insert))
