"""All rows of a runner: which wait, which are in the engine, and the KV memory they may use.

Pure. `RowTable` is the scheduler's state. Only its methods write its fields; each keeps the
invariants. KV memory is counted by formula, never measured: (live rows) x (longest reservation) x
bytes per token, as a padded batch takes, plus the fixed part per row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bus.wire.ids import RequestId, TokenId
from bus.wire.messages.requests import Speculate
from bus.wire.shares import AGED_S, Shares
from runner.engine import (
    EngineFacts,
    EntryId,
    PrefillGroup,
    PrefixHit,
    PrefixInsert,
    PrefixRestore,
    PrefixSave,
    RowId,
    RowSpec,
    StepResult,
)
from runner.group.lockstep import digested
from runner.schedule.budget import PrefillAccount, Timekeeper
from runner.schedule.costs import CostModel, GroupSize
from runner.schedule.drafting import Draft, DraftRules, SharedCosts, again_of, costs_of, draft_rules
from runner.schedule.prefixes import BLOCK_TOKENS, DiskIndex, PrefixIndex
from runner.schedule.pressure import Pressure
from runner.schedule.rows import Row, RowEvent, RowKey


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    """The operator's settings. Times in seconds, sizes in tokens and bytes.

    `kv_bytes` None: the engine's memory limit less the weights, less a tenth. `promote_after_s`: a
    row that waited this long in total precedes every priority. `give_way_s`: a row that ran this
    long may be preempted for a row that waited as long, if its requester has more rows than that
    row's; checked every `look_s`. A row that was paused for `paused_grace_s` may be preempted;
    after `paused_limit_s` it ends. `speculate`: the choice of drafts for requests that make none.
    `parity_is_exact`: the setting `runner.parity` is "exact". `has_followers`: other ranks check
    the digest of all tokens.
    """

    max_rows: int = 32
    max_waiting: int = 8
    prefill_share: float = 0.7
    prefill_tokens: int = 512
    prefill_rows: int = 8
    first_chunk_tokens: int = 128
    longest_step_s: float = 0.4
    headroom_tokens: int = 256
    promote_after_s: float = AGED_S
    give_way_s: float = 1.0
    look_s: float = 0.1
    paused_grace_s: float = 0.5
    paused_limit_s: float = 60.0
    padding: float = 0.25
    block_tokens: int = BLOCK_TOKENS
    prefix_bytes: int = 256 * 2**20
    kv_bytes: int | None = None
    speculate: Speculate = "off"
    parity_is_exact: bool = True
    has_followers: bool = True


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
    save: list[PrefixSave] = field(default_factory=list[PrefixSave])
    restore: list[PrefixRestore] = field(default_factory=list[PrefixRestore])
    needed: set[EntryId] = field(default_factory=set[EntryId])
    """The kept prefixes that this step reads or makes, and therefore must not evict."""
    fresh: set[EntryId] = field(default_factory=set[EntryId])
    """The kept prefixes that this step makes; only later steps can use them."""
    samples: dict[RowId, Row] = field(default_factory=dict[RowId, Row])
    scored: dict[RowId, Row] = field(default_factory=dict[RowId, Row])
    """The rows for whose prompts this step computes log-probabilities."""
    forced: list[tuple[RowId, TokenId]] = field(default_factory=list[tuple[RowId, TokenId]])
    guesses: dict[RowId, Draft] = field(default_factory=dict[RowId, Draft])
    """The guessed next tokens of rows, which the step verifies."""
    draft_cost: float = 1.0
    """The expected cost of the step's decode with the guesses, as a multiple of the cost without
    them."""
    progress: list[tuple[Row, int]] = field(default_factory=list[tuple[Row, int]])
    groups: list[GroupSize] = field(default_factory=list[GroupSize])
    decode_s: float = 0.0
    prefill_s: float = 0.0
    events: list[RowEvent] = field(default_factory=list[RowEvent])

    def sample(self, row_id: RowId, row: Row) -> None:
        """Plan that the row yields a token in this step. If the row's thinking has reached its
        limit, the token is forced."""
        if row.thinking is not None and (token := row.next_forced()) is not None:
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


@dataclass(slots=True)
class RowTable:
    """`rows` holds every open row, `requests` the same by request. `live` holds the rows in the
    engine; ended ones (`retiring`) stay until their release is planned.

    `issued` has the plans whose results have not arrived; `step` is the number of the last plan,
    `digest` a hash of all tokens in the results so far. `kv_bytes` limits rows and kept prefixes
    together. `shares` counts the open rows in the engine by requester. `looked_at` is the time of
    the last check whether a row must be preempted for another requester. `disk` None: prefixes are
    kept in memory only.
    """

    facts: EngineFacts
    settings: ScheduleSettings
    rows: dict[RowKey, Row] = field(default_factory=dict[RowKey, Row])
    requests: dict[RequestId, list[Row]] = field(default_factory=dict[RequestId, list[Row]])
    live: dict[RowId, Row] = field(default_factory=dict[RowId, Row])
    retiring: list[Row] = field(default_factory=list[Row])
    issued: deque[OpenPlan] = field(default_factory=deque[OpenPlan])
    costs: CostModel = field(default_factory=CostModel)
    step: int = 0
    digest: int = 0
    preemptions: int = 0
    shares: Shares = field(default_factory=Shares)
    looked_at: float = float("-inf")
    pressure: Pressure = field(default_factory=Pressure)
    _last_row_id: int = 0
    prefixes: PrefixIndex = field(init=False)
    account: PrefillAccount = field(init=False)
    timekeeper: Timekeeper = field(init=False)
    kv_bytes: int = field(init=False)
    max_rows: int = field(init=False)
    """The most rows in the engine; one if rows of different length cannot share a batch."""
    draft_costs: Sequence[float] = field(init=False)
    """The cost of a step that verifies a draft, for each of `LENGTHS`, as a multiple of the cost of
    a plain step. Measured at load."""
    again_costs: Sequence[float] = field(init=False)
    """The cost of computing 1, 2, ... tokens again after a wrong guess, in the same unit; empty if
    KV can be cut, because then none is computed again."""
    shared_costs: SharedCosts = field(init=False)
    draft_rules: Mapping[Speculate, DraftRules] = field(init=False)
    disk: DiskIndex | None = field(init=False)

    def __post_init__(self) -> None:
        facts, settings = self.facts, self.settings
        self.max_rows = settings.max_rows if facts.batches_ragged else 1
        spare_bytes = max(facts.memory_limit_bytes - facts.weights_bytes, 0)
        self.kv_bytes = (
            spare_bytes - spare_bytes // 10 if settings.kv_bytes is None else settings.kv_bytes
        )
        self.draft_costs = costs_of(facts.draft_costs)
        self.again_costs = () if facts.trims else again_of(facts.draft_costs)
        self.shared_costs = SharedCosts([(1, facts.draft_costs), *facts.shared_draft_costs])
        self.draft_rules = draft_rules(facts, is_exact=settings.parity_is_exact)
        self.account = PrefillAccount(settings.prefill_share)
        self.timekeeper = Timekeeper(self.costs, self.account)
        least = facts.disk_tokens
        self.disk = DiskIndex(least, settings.block_tokens) if least else None
        self.prefixes = PrefixIndex(
            limit_bytes=min(settings.prefix_bytes, self.kv_bytes // 2),
            bytes_per_token=facts.kv_bytes_per_token,
            bytes_fixed=facts.kv_bytes_fixed,
            trims=facts.trims,
            block_tokens=settings.block_tokens,
        )

    @property
    def is_full(self) -> bool:
        return len(self.live) - len(self.retiring) >= self.max_rows

    def cost_bytes(self, lengths: Iterable[int]) -> int:
        """Return the KV bytes of rows reserved to these lengths, in one padded batch. If KV cannot
        be cut, the state of one row is saved before a step with a draft."""
        count = longest = 0
        for length in lengths:
            count += 1
            longest = max(longest, length)
        facts = self.facts
        drafts = longest * facts.draft_kv_bytes_per_token  # for one row at a time
        if count and facts.verifies and not facts.trims:
            drafts += facts.kv_bytes_fixed
        return drafts + count * (longest * facts.kv_bytes_per_token + facts.kv_bytes_fixed)

    def live_bytes(self) -> int:
        """Return the KV bytes reserved for all live rows."""
        return self.cost_bytes(row.reserved for row in self.live.values())

    def ready_to_enter(self) -> list[Row]:
        """Return the waiting rows that only need a slot, by priority, then age."""
        waiting = (row for row in self.rows.values() if row.status == "waiting")
        ready = (row for row in waiting if not row.in_flight and row.paused_at is None)
        return sorted(ready, key=lambda row: row.order)

    def queue(self) -> list[RequestId]:
        """Return the requests without a started row that find no free slot, in order."""
        started: set[RequestId] = set()
        unstarted: dict[RequestId, int] = {}
        places = self.max_rows
        for row in self.rows.values():
            if row.admitted_at is not None:
                started.add(row.key.request_id)
        for row in sorted(self.rows.values(), key=lambda row: row.order):
            request_id = row.key.request_id
            if request_id in started:
                places -= 1
            else:
                unstarted[request_id] = unstarted.get(request_id, 0) + 1
        queued: list[RequestId] = []
        for request_id, count in unstarted.items():
            if places > 0:
                places -= count
            else:
                queued.append(request_id)
        return queued

    def has_trial_beside(self, row: Row) -> bool:
        """Return whether a suspect of another request is on trial in the engine, so that the row
        must wait (decision 0098)."""
        mine = row.key.request_id
        others = (other for other in self.live.values() if other.key.request_id != mine)
        return any(other.is_on_trial and other.status != "ended" for other in others)

    def may_be_on_disk(self, row: Row) -> bool:
        """Return whether files may have a prefix of the row; new files have `least_tokens`."""
        disk = self.disk
        return disk is not None and (disk.figures.runs > 0 or row.length >= disk.least_tokens)

    # --- the life of a row -----------------------------------------------------------------

    def open(self, request_id: RequestId, rows: list[Row]) -> None:
        """Add the rows of a new request as waiting rows."""
        self.requests[request_id] = rows
        for row in rows:
            self.rows[row.key] = row

    def enter(self, row: Row, now: float) -> RowId:
        """Move a waiting row into the engine with reserved memory; return its new row id."""
        self._last_row_id += 1
        row_id = row.row_id = RowId(self._last_row_id)
        row.move("admit")
        row.life_tokens = row.length
        row.reserved = row.reserve_for(self.settings.headroom_tokens)
        row.waited_s += now - row.waiting_since
        row.entered_at = now
        self.live[row_id] = row
        self.shares.take(row.sharer)
        return row_id

    def hold(self, row: Row, entry: EntryId, length: int) -> None:
        """Make an entered row start from the first `length` tokens of a kept prefix."""
        self.prefixes.hold(entry)
        row.held = entry
        row.computed = length

    def put_out(self, row: Row, now: float) -> None:
        """Preempt a row: the engine drops it, and it waits to be admitted again."""
        assert row.row_id is not None
        del self.live[row.row_id]
        self.shares.give_back(row.sharer)
        self.drop_held(row)
        row.move("preempt")
        row.row_id = None
        row.computed = row.reserved = row.life_tokens = 0
        self.preemptions += 1
        row.waiting_since = now

    def end(self, row: Row) -> None:
        """End the row; the next plan releases it in the engine."""
        row.move("end")
        del self.rows[row.key]
        siblings = self.requests[row.key.request_id]
        siblings.remove(row)
        if not siblings:
            del self.requests[row.key.request_id]
        if row.row_id is not None:
            self.retiring.append(row)
            self.shares.give_back(row.sharer)

    def withdraw(self, request_id: RequestId) -> None:
        """Remove a request none of whose rows has begun; do nothing if the request is unknown."""
        for row in list(self.requests.get(request_id, ())):
            assert row.admitted_at is None
            self.end(row)

    def drop_held(self, row: Row) -> None:
        """Release the kept prefix that the row started from, if any."""
        if row.held is not None:
            self.prefixes.release(row.held)
            row.held = None

    def release(self, row: Row) -> RowId:
        """Release an ended row from the engine; return its row id."""
        assert row.row_id is not None
        self.retiring.remove(row)
        del self.live[row.row_id]
        return row.row_id

    # --- steps -----------------------------------------------------------------------------

    def issue(self, issued: OpenPlan) -> None:
        """Record a plan as issued. Requires the number after that of the previous plan."""
        assert issued.step == self.step + 1
        self.step = issued.step
        self.issued.append(issued)

    def read(self, result: StepResult) -> OpenPlan:
        """Return the open plan of the oldest unread step, whose result this is. If there are
        followers, add its tokens to the digest.

        Raises ValueError if the result belongs to another step.
        """
        issued = self.issued.popleft()
        if issued.step != result.step:
            raise ValueError(f"result of step {result.step}; step {issued.step} was expected")
        if self.settings.has_followers:
            for sampled in result.tokens:
                self.digest = digested(self.digest, sampled.row, sampled.token)
        return issued

    def validate_state(self) -> None:
        """Raise AssertionError if an invariant is broken (tests call this after each step)."""
        self.prefixes.validate_state()
        assert len(self.issued) <= 2
        assert len(self.live) <= self.max_rows + len(self.retiring)
        assert [row for rows in self.requests.values() for row in rows] == list(self.rows.values())
        assert self.live_bytes() + self.prefixes.used_bytes <= self.kv_bytes
        shares = Shares(row.sharer for row in self.live.values() if row.status != "ended")
        assert shares.held(()) == self.shares.held(())
        for row_id, row in self.live.items():
            assert shares.weight(row.sharer) == self.shares.weight(row.sharer)
            assert row.row_id == row_id
            assert row.computed <= row.reserved <= row.longest
            assert (row.status == "ended") == (row in self.retiring)
            assert row.status != "waiting"
        for key, row in self.rows.items():
            assert row.key == key
            assert row.status != "ended"
            assert (row.row_id is None) == (row.status == "waiting")
            assert (row.status == "prefilling") == (row.computed < row.life_tokens)
            assert len(row.made) + row.in_flight <= max(row.prepared.max_tokens, 1)
            assert 0 <= row.scored <= row.prompt.length
            assert row.in_flight == sum(row in issued.samples.values() for issued in self.issued)
