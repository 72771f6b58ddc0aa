"""What the engine does next: one step, decided from the rows.

Pure. The order of deciding: let ended rows go; make sure that running rows may grow (the
lowest, youngest is preempted where KV is short); admit waiting rows, first rank, then age,
nobody overtaken for memory; decode every row that can; fill what prefill may take; keep finished
prompts. Iteration-level batching is Orca's, the mix of chunks and decodes Sarathi-Serve's,
preemption by recomputation vLLM's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from runner.budget import CHUNK_STEP
from runner.engine import (
    EntryId,
    PrefillChunk,
    PrefillGroup,
    PrefixHit,
    PrefixInsert,
    RowId,
    RowSpec,
    StepPlan,
)
from runner.prefix import PrefixMatch
from runner.rows import Row, RowEvent, RowFailed, RowStarted
from runner.schedule_rows import Issued, RowTable


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
    samples: dict[RowId, Row] = field(default_factory=dict[RowId, Row])
    progress: list[tuple[Row, int]] = field(default_factory=list[tuple[Row, int]])
    groups: list[int] = field(default_factory=list[int])
    decode_s: float = 0.0
    prefill_s: float = 0.0
    events: list[RowEvent] = field(default_factory=list[RowEvent])

    @property
    def is_empty(self) -> bool:
        return not (
            self.decode
            or self.prefill
            or self.release
            or self.preempt
            or self.evict
            or self.admit
            or self.insert
        )


def plan_step(table: RowTable, now: float) -> tuple[StepPlan | None, list[RowEvent]]:
    """The next step and what became of rows in deciding it; None when nothing can be done.

    A plan returned is taken as issued: its result must be committed.
    """
    draft = Draft(now)
    _retire(table, draft)
    _grow(table, draft)
    _admit(table, draft)
    _decode(table, draft)
    _prefill(table, draft)
    if draft.is_empty:
        return None, draft.events
    table.step += 1
    plan = StepPlan(
        step=table.step,
        release=tuple(draft.release),
        preempt=tuple(draft.preempt),
        evict=tuple(draft.evict),
        admit=tuple(draft.admit),
        hits=tuple(draft.hits),
        prefill=tuple(draft.prefill),
        decode=tuple(draft.decode),
        insert=tuple(draft.insert),
        digest=table.digest,
    )
    table.issued.append(
        Issued(
            step=table.step,
            samples=draft.samples,
            progress=tuple(draft.progress),
            decode_rows=len(draft.decode),
            groups=tuple(draft.groups),
            decode_s=draft.decode_s,
            prefill_s=draft.prefill_s,
        )
    )
    return plan, draft.events


def _retire(table: RowTable, draft: Draft) -> None:
    """Ended rows leave; the output of a conversation is kept first, a step before its row
    goes, so that the next turn finds it."""
    staying: list[Row] = []
    for row in table.retiring:
        assert row.row_id is not None
        table.drop_held(row)
        if not row.kept_output and row.finish in ("stop", "length"):
            row.kept_output = True
            if _keep(table, draft, row, row.length - 1 if table.facts.trims else row.computed):
                staying.append(row)
                continue
        draft.release.append(row.row_id)
        del table.live[row.row_id]
    table.retiring = staying


def _keep(table: RowTable, draft: Draft, row: Row, length: int) -> bool:
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
    return True


def _grow(table: RowTable, draft: Draft) -> None:
    """Reserve KV for the rows that decode in this step, the first in order first."""
    growing = [
        row for row in table.live.values() if row.wants_token and row.computed >= row.reserved
    ]
    for row in sorted(growing, key=lambda row: row.order):
        if row.status != "decoding":
            continue  # preempted for one before it
        reserved = row.reserved
        row.reserved = min(row.longest, reserved + table.settings.headroom_tokens)
        while not _fits(table, draft):
            victim = max(
                (other for other in table.live.values() if other.status != "ended"),
                key=_victim_order,
            )
            if victim is row:
                row.reserved = reserved
                _yield_or_fail(table, draft, row)
                break
            _preempt(table, draft, victim)


def _yield_or_fail(table: RowTable, draft: Draft, row: Row) -> None:
    """A row that cannot grow makes way for the others; alone, it can never go on."""
    needed_bytes = table.cost_bytes([row.reserve_for(table.settings.headroom_tokens)])
    if needed_bytes <= table.kv_bytes:
        _preempt(table, draft, row)
        return
    table.end(row)
    message = f"KV memory is exhausted: {needed_bytes} bytes needed, {table.kv_bytes} allowed"
    draft.events.append(RowFailed(row.key, "memory_pressure", message, row.cost(draft.now)))


def _victim_order(row: Row) -> tuple[bool, tuple[int, float, int]]:
    """Largest goes first: paused rows, then the lowest, then the youngest."""
    return (row.paused_at is not None, row.order)


def _preempt(table: RowTable, draft: Draft, row: Row) -> None:
    assert row.row_id is not None
    draft.preempt.append(row.row_id)
    table.put_out(row, draft.now)


def _fits(table: RowTable, draft: Draft, *more: int) -> bool:
    """Whether live rows, and rows of the lengths `more`, fit; prefixes make way."""
    lengths = [row.reserved for row in table.live.values()]
    spare_bytes = table.kv_bytes - table.cost_bytes([*lengths, *more])
    if spare_bytes < 0:
        return False
    if table.prefixes.used_bytes > spare_bytes:
        draft.evict.extend(table.prefixes.make_room(spare_bytes, hit_now=draft.needed))
    return table.prefixes.used_bytes <= spare_bytes


def _admit(table: RowTable, draft: Draft) -> None:
    """Admit in order while there are places and memory. One that must wait for memory is not
    overtaken; those that wait for a reader, a sibling's prompt or an unread token are."""
    if len(table.live) == len(table.rows) + len(table.retiring):
        return
    for row in table.waiting():
        if row.in_flight or row.paused_at is not None:
            continue
        match = table.prefixes.find(row.chain())
        if _shares_soon(table, row, match):
            continue
        if not _make_place(table, draft, row):
            return
        _enter(table, draft, row)


def _shares_soon(table: RowTable, row: Row, match: PrefixMatch | None) -> bool:
    """Whether a row ahead of this one is computing a prompt of which this one can use more
    than it could now (the choices of one request, or a common beginning)."""
    have = match.length if match is not None else 0
    block_tokens = table.settings.block_tokens
    mine = row.prompt
    for other in table.live.values():
        if other.status != "prefilling" or other.made or other.order > row.order:
            continue
        theirs = other.prompt
        if min(theirs.length, mine.length) < block_tokens + 1:
            continue
        if mine.hashes[0] != theirs.hashes[0] or not _will_keep(table, theirs.length):
            continue
        if table.facts.trims:
            pairs = zip(mine.hashes, theirs.hashes, strict=False)
            shared = block_tokens * sum(a == b for a, b in pairs)
            gain = min(shared, mine.length - 1) - have
        else:
            whole = theirs.length - 1
            begins = whole < mine.length and mine.end_hash(whole) == theirs.end_hash(whole)
            gain = whole - have if begins else 0
        if gain >= block_tokens:
            return True
    return False


def _will_keep(table: RowTable, length: int) -> bool:
    return table.cost_bytes([length]) <= min(
        table.prefixes.limit_bytes, table.kv_bytes - table.live_bytes()
    )


def _make_place(table: RowTable, draft: Draft, row: Row) -> bool:
    """Find a slot and memory for the row, preempting idle readers' rows and, for memory, rows
    of lower rank; nothing is preempted unless it suffices."""
    grace_at = draft.now - table.settings.paused_grace_s
    idle = [
        other
        for other in table.live.values()
        if other.status != "ended" and other.paused_at is not None and other.paused_at <= grace_at
    ]
    lower = [
        other
        for other in table.live.values()
        if other.status != "ended" and other.rank > row.rank and other not in idle
    ]
    running = len(table.live) - len(table.retiring)
    if running >= table.max_rows:
        if not idle:
            return False
        lower = []
    need = row.reserve_for(table.settings.headroom_tokens)
    victims = sorted([*idle, *lower], key=_victim_order, reverse=True)
    staying = [other.reserved for other in table.live.values() if other not in victims]
    if table.cost_bytes([*staying, need]) > table.kv_bytes:
        return False
    for victim in victims:
        if len(table.live) - len(table.retiring) < table.max_rows and _fits(table, draft, need):
            return True
        _preempt(table, draft, victim)
    return _fits(table, draft, need)


def _enter(table: RowTable, draft: Draft, row: Row) -> None:
    """Give the row its next life in the engine."""
    table.last_row_id += 1
    row_id = RowId(table.last_row_id)
    match = table.prefixes.find(row.chain())  # making a place may have evicted the first
    row.move("admit")
    row.row_id = row_id
    row.life_tokens = row.length
    row.reserved = row.reserve_for(table.settings.headroom_tokens)
    row.waited_s += draft.now - row.waiting_since
    table.live[row_id] = row
    draft.admit.append(row.spec(row_id))
    if match is not None:
        draft.hits.append(PrefixHit(row_id, match.entry, match.length))
        draft.needed.add(match.entry)
        table.prefixes.hold(match.entry)
        row.held = match.entry
        row.computed = match.length
    if row.admitted_at is None:
        row.admitted_at = draft.now
        row.cached_tokens = row.computed
        draft.events.append(RowStarted(row.key, row.cached_tokens))


def _decode(table: RowTable, draft: Draft) -> None:
    for row_id, row in table.live.items():
        if row.wants_token:
            draft.decode.append(row_id)
            draft.samples[row_id] = row
            row.in_flight += 1
            row.computed += 1
    draft.decode_s = table.costs.decode_s(len(draft.decode))


def _prefill(table: RowTable, draft: Draft) -> None:
    """Choose chunks: as much as is efficient alone, as much as is paid for beside decodes."""
    rows = sorted(
        (row for row in table.live.values() if row.status == "prefilling"),
        key=lambda row: row.order,
    )
    account, settings, costs = table.account, table.settings, table.costs
    if draft.decode:
        limit_s = min(account.chunk_limit_s(draft.decode_s), settings.longest_step_s)
        account.earn(draft.decode_s, most_s=max(limit_s, costs.prefill_s(CHUNK_STEP)))
    else:
        limit_s = settings.longest_step_s
    if not rows:
        return
    most = settings.prefill_tokens if costs.knows_prefill else settings.first_chunk_tokens
    tokens = costs.tokens_within(limit_s, least=CHUNK_STEP, most=most)
    groups = _choose_groups(table, rows, tokens)
    sizes = [len(group) * max(stop - start for _, start, stop in group) for group in groups]
    prefill_s = sum(costs.prefill_s(size) for size in sizes)
    if draft.decode:
        while len(groups) > 1 and not account.affords(prefill_s):
            groups.pop()
            prefill_s -= costs.prefill_s(sizes.pop())
        if not account.affords(prefill_s):
            return
        account.spend(prefill_s)
    else:
        account.forgive()
    draft.groups, draft.prefill_s = sizes, prefill_s
    for group in groups:
        _advance(table, draft, group)


RowChunk = tuple[Row, int, int]


def _choose_groups(table: RowTable, rows: list[Row], tokens: int) -> list[list[RowChunk]]:
    """Chunks of at most `tokens` in all, padding counted; the first row is always served, and
    rows of like length share a group with at most a quarter of it padding."""
    groups: list[list[RowChunk]] = []
    waiting = list(rows)
    left = tokens
    while waiting and (not groups or left >= CHUNK_STEP):
        first = waiting.pop(0)
        piece = _piece(table, first, left)
        group = [(first, first.computed, first.computed + piece)]
        longest, total = piece, piece
        for row in list(waiting):
            if len(group) >= table.settings.prefill_rows:
                break
            other = _piece(table, row, max(left, piece))
            top, count = max(longest, other), len(group) + 1
            padded = top * count
            if padded > left or total + other < (1 - table.settings.padding) * padded:
                continue
            group.append((row, row.computed, row.computed + other))
            waiting.remove(row)
            longest, total = top, total + other
        groups.append(group)
        left -= longest * len(group)
    return groups


def _piece(table: RowTable, row: Row, most: int) -> int:
    """How much of the row's prompt the next chunk may take. Where caches do not trim, a
    chunk ends before the prompt's last token, to be kept there."""
    end = row.life_tokens
    if not table.facts.trims and not row.made and row.computed < end - 1:
        end = end - 1 if _keeps_prompt(table, row) else end
    return min(end - row.computed, most)


def _keeps_prompt(table: RowTable, row: Row) -> bool:
    return row.prompt.length > table.settings.block_tokens and table.prefixes.limit_bytes > 0


def _advance(table: RowTable, draft: Draft, group: list[RowChunk]) -> None:
    chunks: list[PrefillChunk] = []
    for row, start, stop in group:
        assert row.row_id is not None
        chunks.append(PrefillChunk(row.row_id, start, stop))
        row.computed = stop
        draft.progress.append((row, stop))
        if stop == row.life_tokens:
            row.move("prompt_done")
            row.in_flight += 1
            draft.samples[row.row_id] = row
        kept_at = row.prompt.length if table.facts.trims else row.prompt.length - 1
        if stop == kept_at and not row.made:
            _keep(table, draft, row, kept_at)
    draft.prefill.append(tuple(chunks))
