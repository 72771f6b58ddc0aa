"""Decide the next step of the engine from the rows.

Pure. Order of decisions:
- If measured memory is short, evict kept prefixes, or else end the youngest row of the lowest
priority.
- Release ended rows.
- Reserve memory for running rows. If KV is short, preempt a row of the requester with the most
rows: its youngest row of the lowest priority.
- Admit waiting rows: rows of the requester with the fewest rows first, then by priority, then by
age. A row that waits for memory is not overtaken. A row whose prefix is on disk waits until it is
read, if that takes less time than computing it.
- Preempt rows in favour of rows that have waited and whose requesters have fewer rows.
- Decode every row that can be decoded.
- Compute prompt chunks, up to the prefill share of the time.
- Keep the KV of finished prompts as prefixes.
- If the plan does nothing but decode, verify drafts in it.

Sources: iteration-level batching is Orca's, mixing chunks and decodes Sarathi-Serve's, preemption
by recomputation vLLM's.
"""

from __future__ import annotations

from collections.abc import Sequence

from bus.wire.shares import Sharer
from runner.engine import PrefixHit, StepPlan
from runner.schedule.prefill import choose_prefill, keep_prefix
from runner.schedule.prefixes import PrefixMatch
from runner.schedule.pressure import to_end
from runner.schedule.restoring import restore, waits_for_disk, will_keep
from runner.schedule.rows import Row, RowEvent, RowFailed, RowFinished, RowStarted
from runner.schedule.speculation import add_drafts
from runner.schedule.table import OpenPlan, RowTable


def plan_step(table: RowTable, now: float) -> tuple[StepPlan | None, list[RowEvent]]:
    """Return the next step and the row events of deciding it; None if there is nothing to do.

    A returned plan counts as issued: its result must be committed.
    """
    open_plan = OpenPlan(table.step + 1, now)
    if table.pressure.over:
        _relieve(table, open_plan)
    _retire(table, open_plan)
    _grow(table, open_plan)
    if len(table.live) < len(table.rows) + len(table.retiring):  # rows wait
        _admit(table, open_plan)
    if len(table.live) < len(table.rows) + len(table.retiring):  # some still do
        _give_way(table, open_plan)
    _decode(table, open_plan)
    choose_prefill(table, open_plan)
    if not (table.issued or any(row.rules.why_not for row in table.live.values())):
        add_drafts(table, open_plan)
    if open_plan.is_empty:
        return None, open_plan.events
    guesses = open_plan.guesses.items()
    plan = StepPlan(
        step=open_plan.step,
        release=tuple(open_plan.release),
        preempt=tuple(open_plan.preempt),
        evict=tuple(open_plan.evict),
        admit=tuple(open_plan.admit),
        hits=tuple(open_plan.hits),
        prefill=tuple(open_plan.prefill),
        decode=tuple(open_plan.decode),
        insert=tuple(open_plan.insert),
        digest=table.digest,
        forced=tuple(open_plan.forced),
        drafts=tuple((row, draft.tokens) for row, draft in guesses if draft.tokens),
        propose=tuple((row, draft.length) for row, draft in guesses if not draft.tokens),
        save=tuple(open_plan.save),
        restore=tuple(open_plan.restore),
    )
    table.issue(open_plan)
    return plan, open_plan.events


def _relieve(table: RowTable, open_plan: OpenPlan) -> None:
    """Free memory if a rank of the group measured more than its limit. Evict kept prefixes first,
    because they can be recomputed; then end one row with the text so far."""
    why = table.pressure.due()
    if why is None:
        return
    closes_in = 0
    if evicted := table.prefixes.make_room(0):
        open_plan.evict.extend(evicted)
    elif (row := to_end(table.live.values())) is not None:
        table.pressure.ended += 1
        closes_in = len(table.live) if row.status == "decoding" else 0
        row.finish = "memory_pressure"
        table.end(row)
        open_plan.events.append(_ended_for_memory(row, why, open_plan.now))
    table.pressure.relieved(open_plan.step + closes_in)


def _ended_for_memory(row: Row, why: str, now: float) -> RowFinished | RowFailed:
    """Return the end event of a row: a failure if its request has no other row and no output."""
    if row.made or len(row.prepared.choices) > 1:
        return RowFinished(row.key, "memory_pressure", row.cost(now), why)
    return RowFailed(row.key, "memory_pressure", f"low memory: {why}", row.cost(now))


def _retire(table: RowTable, open_plan: OpenPlan) -> None:
    """Release ended rows. The KV of a complete output is kept as a prefix one step before the
    release, so that the next turn of its conversation can reuse it."""
    for row in tuple(table.retiring):
        table.drop_held(row)
        if row.prepared.may_be_kept and not row.kept_output and row.finish in ("stop", "length"):
            row.kept_output = True
            # A text may end inside a draft, of which more is computed.
            whole = min(row.computed, row.length)
            if keep_prefix(table, open_plan, row, row.length - 1 if table.facts.trims else whole):
                continue
        open_plan.release.append(table.release(row))


def _grow(table: RowTable, open_plan: OpenPlan) -> None:
    """Reserve KV memory for the rows that decode in this step, the highest priority first."""
    growing = [
        row for row in table.live.values() if row.wants_token and row.computed >= row.reserved
    ]
    for row in sorted(growing, key=lambda row: row.order):
        if row.status != "decoding":
            continue  # it was just preempted for another row
        reserved = row.reserved
        row.reserved = min(row.longest, reserved + table.settings.headroom_tokens)
        while not _fits(table, open_plan):
            victim = max(
                (other for other in table.live.values() if other.status != "ended"),
                key=lambda other: _victim_order(table, other),
            )
            if victim is row:
                row.reserved = reserved
                _yield_or_fail(table, open_plan, row)
                break
            _preempt(table, open_plan, victim)


def _yield_or_fail(table: RowTable, open_plan: OpenPlan, row: Row) -> None:
    """Preempt a row that other rows keep from growing; fail it if it cannot even grow alone."""
    needed_bytes = table.cost_bytes([row.reserve_for(table.settings.headroom_tokens)])
    if needed_bytes <= table.kv_bytes:
        _preempt(table, open_plan, row)
        return
    table.end(row)
    message = f"KV memory is exhausted: {needed_bytes} bytes needed; the limit is {table.kv_bytes}"
    open_plan.events.append(RowFailed(row.key, "memory_pressure", message, row.cost(open_plan.now)))


def _victim_order(
    table: RowTable, row: Row
) -> tuple[bool, tuple[int, ...], tuple[int, float, int]]:
    """Return the sort key of preemption, largest first: paused rows, then rows of the requester
    with the most rows, then rows of the lowest priority, then the youngest."""
    return (row.paused_at is not None, table.shares.weight(row.sharer), row.order)


def _preempt(table: RowTable, open_plan: OpenPlan, row: Row) -> None:
    assert row.row_id is not None
    open_plan.preempt.append(row.row_id)
    table.put_out(row, open_plan.now)


def _fits(table: RowTable, open_plan: OpenPlan, *more: int) -> bool:
    """Return whether live rows plus rows of the lengths `more` fit into the KV memory; evicts
    prefixes if needed."""
    lengths = [row.reserved for row in table.live.values()]
    spare_bytes = table.kv_bytes - table.cost_bytes([*lengths, *more])
    if spare_bytes < 0:
        return False
    if table.prefixes.used_bytes > spare_bytes:
        open_plan.evict.extend(table.prefixes.make_room(spare_bytes, hit_now=open_plan.needed))
    return table.prefixes.used_bytes <= spare_bytes


def _admit(table: RowTable, open_plan: OpenPlan) -> None:
    """Admit rows in order while slots and memory last. A row that waits for memory is not
    overtaken. A row is overtaken if it waits for its client to read, for the same prompt in another
    row, or for an unread token. During the trial of a suspect, no row of another request begins."""
    if _holds_back(table) or (table.is_full and not _idle(table, open_plan)):
        return
    waiting = table.ready_to_enter()
    while waiting:
        row = _next(table, waiting)
        if table.live and table.has_trial_beside(row):
            continue
        if _waits_for_prefix(table, open_plan, row):
            continue
        if not _make_place(table, open_plan, row, ()):
            return
        _enter(table, open_plan, row)


def _give_way(table: RowTable, open_plan: OpenPlan) -> None:
    """Admit rows that waited `give_way_s` by preempting rows of requesters with more rows. This is
    checked only from time to time, so that the check delays no token."""
    settings = table.settings
    if _holds_back(table) or open_plan.now - table.looked_at < settings.look_s:
        return
    table.looked_at = open_plan.now
    long_ago = open_plan.now - settings.give_way_s
    waiting = [row for row in table.ready_to_enter() if row.waiting_since <= long_ago]
    have_theirs: set[Sharer] = set()
    while waiting:
        row = _next(table, waiting)
        waits = table.has_trial_beside(row) or _waits_for_prefix(table, open_plan, row)
        if row.sharer in have_theirs or waits:
            continue
        givers = _givers(table, row, long_ago)
        if not givers or not _make_place(table, open_plan, row, givers):
            have_theirs.add(row.sharer)
            continue
        _enter(table, open_plan, row)


def _holds_back(table: RowTable) -> bool:
    """Return whether no row may be admitted now, because a rank measured too much memory."""
    going = (row.status != "ended" and row.paused_at is None for row in table.live.values())
    return bool(table.pressure.over) and any(going)


def _givers(table: RowTable, row: Row, long_ago: float) -> list[Row]:
    """Return the rows to preempt for `row`, as many as it needs. They belong to the requesters with
    the most rows: first rows whose client does not read, then the rows that were preempted least
    often, then the youngest."""
    shares, givers = table.shares.copy(), list[Row]()
    need = row.reserve_for(table.settings.headroom_tokens)
    while (sharer := shares.gives_way(row.sharer)) is not None:
        able = [
            other
            for other in table.live.values()
            if other.sharer == sharer
            and other.status != "ended"
            and other.entered_at <= long_ago
            and other not in givers
        ]
        if not able:
            break
        givers.append(max(able, key=_giver_order))
        shares.give_back(sharer)
        staying = [other.reserved for other in table.live.values() if other not in givers]
        if table.cost_bytes([*staying, need]) <= table.kv_bytes:
            break
    return givers


def _giver_order(row: Row) -> tuple[bool, int, tuple[int, float, int]]:
    return (row.paused_at is not None, -row.gave_way, row.order)


def _next(table: RowTable, waiting: list[Row]) -> Row:
    """Remove and return the row to admit next: a row that has waited so long that it is promoted,
    else the first row of the requester with the fewest rows."""
    row = min(
        waiting,
        key=lambda candidate: (not candidate.promoted, table.shares.weight(candidate.sharer)),
    )
    waiting.remove(row)
    return row


def _waits_for_prefix(table: RowTable, open_plan: OpenPlan, row: Row) -> bool:
    if row.scores:
        return False
    match = table.prefixes.find(row.chain())
    comes = match is not None and match.entry in open_plan.fresh
    if comes or (table.live and _shares_soon(table, row, match)):
        return True
    have = 0 if match is None else match.length
    return table.may_be_on_disk(row) and waits_for_disk(table, open_plan, row, have)


def _shares_soon(table: RowTable, row: Row, match: PrefixMatch | None) -> bool:
    """Return whether `row` should wait for a row that is computing a prompt with the same
    beginning, such as another choice of its request. It should if that prompt's prefix will save
    `row` at least a block more than `match`, the prefix that is kept now."""
    have = match.length if match is not None else 0
    block_tokens = table.settings.block_tokens
    mine = row.prompt
    for other in table.live.values():
        if other.status != "prefilling" or other.made or other.order > row.order:
            continue
        theirs = other.prompt
        if not other.keeps_prompt or mine.length <= block_tokens:
            continue
        if mine.hashes[0] != theirs.hashes[0] or not will_keep(table, theirs.length):
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


def _make_place(table: RowTable, open_plan: OpenPlan, row: Row, givers: Sequence[Row]) -> bool:
    """Find a slot and memory for the row. First idle rows are preempted, then (for memory) rows of
    lower priority, then `givers`. No row is preempted unless that is enough."""
    idle = _idle(table, open_plan)
    lower: list[Row] = []
    if not table.is_full:
        lower = [
            other
            for other in table.live.values()
            if other.status != "ended"
            and other.rank > row.rank
            and other not in idle
            and _may_be_asked(table, open_plan, other, row)
        ]
    elif not idle and not givers:
        return False
    need = row.reserve_for(table.settings.headroom_tokens)
    first = sorted(
        [*idle, *lower], key=lambda candidate: _victim_order(table, candidate), reverse=True
    )
    victims = [*first, *(giver for giver in givers if giver not in first)]
    staying = [other.reserved for other in table.live.values() if other not in victims]
    if table.cost_bytes([*staying, need]) > table.kv_bytes:
        return False
    for victim in victims:
        if not table.is_full and _fits(table, open_plan, need):
            return True
        victim.gave_way += victim in givers
        _preempt(table, open_plan, victim)
    return _fits(table, open_plan, need)


def _may_be_asked(table: RowTable, open_plan: OpenPlan, other: Row, row: Row) -> bool:
    """Return whether `other` may be preempted for `row`, which has a higher priority. It may not if
    it has just entered. Neither may it if it belongs to another requester that does not have more
    rows, because then `other` would soon preempt `row`."""
    weight = table.shares.weight
    mine = other.sharer == row.sharer or weight(other.sharer) > weight(row.sharer)
    return mine and all(spec.row != other.row_id for spec in open_plan.admit)


def _idle(table: RowTable, open_plan: OpenPlan) -> list[Row]:
    """Return the paused rows in the engine: their clients have read nothing for a while."""
    grace_at = open_plan.now - table.settings.paused_grace_s
    return [
        other
        for other in table.live.values()
        if other.paused_at is not None and other.paused_at <= grace_at and other.status != "ended"
    ]


def _enter(table: RowTable, open_plan: OpenPlan, row: Row) -> None:
    """Start the row in the engine, from a kept prefix if one fits."""
    # Looked up again, for making a place may have evicted the first.
    match = None if row.scores else table.prefixes.find(row.chain())
    row_id = table.enter(row, open_plan.now)
    if not row.scores and table.may_be_on_disk(row):
        match = restore(table, open_plan, row, match.length if match else 0) or match
    guessed = row.rules.asks_model and not row.rules.why_not
    open_plan.admit.append(row.spec(row_id, guessed=guessed))
    if match is not None and match.entry not in open_plan.fresh:
        open_plan.hits.append(PrefixHit(row_id, match.entry, match.length))
        open_plan.needed.add(match.entry)
        table.hold(row, match.entry, match.length)
    if row.admitted_at is None:
        row.admitted_at = open_plan.now
        row.cached_tokens = row.computed
        open_plan.events.append(RowStarted(row.key, row.cached_tokens))


def _decode(table: RowTable, open_plan: OpenPlan) -> None:
    for row_id, row in table.live.items():
        if row.wants_token:
            open_plan.decode.append(row_id)
            open_plan.sample(row_id, row)
            row.computed += 1
    open_plan.decode_s = table.costs.decode_s(len(open_plan.decode))
