"""Choose the prompt chunks of a step.

Pure. If no row decodes, chunks are as large as is efficient; otherwise the prefill account limits
them (`budget`). Rows are taken in their order; rows of similar length share one padded group.
"""

from __future__ import annotations

from dataclasses import dataclass

from runner.engine import PrefillChunk, PrefixInsert, PrefixSave
from runner.schedule.budget import DEAR, LEAST_CHUNK
from runner.schedule.costs import GroupSize
from runner.schedule.rows import Row
from runner.schedule.table import OpenPlan, RowTable

STRETCH = 1.5
"""A chunk may exceed its limit by this factor if that completes its prompt."""
SCORED_BYTES = 64 << 20
"""Limit on the float32 logits of a group whose prompts get log-probabilities. The arrays that are
computed from them take up to four times that, in addition to the model's own logits."""
SHORT_COUNTS = 4.0
"""A short prompt counts as this many rows when time is divided between prefill and decodes, because
it ends quickly."""

RowChunk = tuple[Row, int, int]


@dataclass(frozen=True, slots=True)
class Room:
    """How many tokens the chunks of a step may have together, padding included: `tokens`, or `most`
    if this many complete a prompt."""

    tokens: int
    most: int


def choose_prefill(table: RowTable, open_plan: OpenPlan) -> None:
    """Choose the step's prompt chunks: as large as is efficient if no row decodes, else as large as
    the prefill account can pay for."""
    rows = sorted(
        (row for row in table.live.values() if row.status == "prefilling"),
        key=lambda row: row.order,
    )
    account, costs = table.account, table.costs
    if not rows:
        account.unsettled_s += open_plan.decode_s
        return
    if open_plan.decode:
        room = _room_beside(table, open_plan, rows)
        if table.timekeeper.wants_quiet:
            return
    else:
        tokens = _tokens_within(table, rows, table.settings.longest_step_s)
        room = Room(tokens, int(STRETCH * tokens))
    groups = _choose_groups(table, rows, room)
    sizes = [_size(group) for group in groups]
    prefill_s = sum(costs.prefill_s(size) for size in sizes)
    if open_plan.decode:
        while len(groups) > 1 and not account.affords(prefill_s):
            groups.pop()
            prefill_s -= costs.prefill_s(sizes.pop())
        if not account.affords(prefill_s):
            return
        account.spend(prefill_s)
    else:
        account.forgive()
    open_plan.groups, open_plan.prefill_s = sizes, prefill_s
    for group in groups:
        for piece in _pieces(table, group) if group[0][0].scores else [group]:
            _compute(table, open_plan, piece)


def _room_beside(table: RowTable, open_plan: OpenPlan, rows: list[Row]) -> Room:
    """Return how many prefill tokens fit into a step with decodes if the longest inter-token
    latencies (ITL) stay bounded. Also add the seconds of prefill that these decodes earn to the
    account."""
    account, costs = table.account, table.costs
    share = account.share_among(_due(table, open_plan, rows), len(open_plan.decode))
    limit_s = min(account.chunk_limit_s(open_plan.decode_s, share), table.settings.longest_step_s)
    least_s = costs.prefill_s(GroupSize(LEAST_CHUNK, rows[0].computed))
    earned_s, chunk_s = account.earned_s(open_plan.decode_s, share), max(limit_s, least_s)
    account.earn(earned_s, chunk_s=chunk_s)
    tokens = _tokens_within(table, rows, limit_s)
    even = _tokens_within(
        table, rows, min(account.even_limit_s(open_plan.decode_s, share), limit_s)
    )
    if _token_s(table, even) <= DEAR * _token_s(table, table.settings.prefill_tokens):
        tokens = even
    stretched = _tokens_within(table, rows, chunk_s + earned_s)
    return Room(tokens, max(tokens, min(stretched, int(STRETCH * tokens))))


def _tokens_within(table: RowTable, rows: list[Row], limit_s: float) -> int:
    settings, costs = table.settings, table.costs
    most = settings.prefill_tokens if costs.prefill.is_measured else settings.first_chunk_tokens
    return costs.tokens_within(limit_s, least=LEAST_CHUNK, most=most, depth=rows[0].computed)


def _token_s(table: RowTable, tokens: int) -> float:
    return table.costs.prefill_s(GroupSize(tokens)) / tokens


def _due(table: RowTable, open_plan: OpenPlan, rows: list[Row]) -> float:
    """Return how many rows the prompts count as when time is divided between prefill and decode.
    Prompts of a lower priority than a decoding row do not count; short prompts count several
    times."""
    best = min(table.live[row_id].rank for row_id in open_plan.decode)
    short = table.settings.prefill_tokens // 2
    return sum(SHORT_COUNTS if _left(row) <= short else 1.0 for row in rows if row.rank <= best)


def _size(group: list[RowChunk]) -> GroupSize:
    longest = max(stop - start for _, start, stop in group)
    return GroupSize(len(group) * longest, max(start for _, start, _ in group))


def _choose_groups(table: RowTable, rows: list[Row], room: Room) -> list[list[RowChunk]]:
    """Return chunks that fit the room. A long prompt leaves up to half of the room to prompts of
    its priority that can be finished now, so that one document does not block all short
    questions."""
    first = rows[0]
    if _left(first) <= room.most:
        return _fill(table, rows, room)
    half = room.tokens // 2
    short = [row for row in rows[1:] if row.rank == first.rank and _left(row) <= half]
    groups = _fill(table, sorted(short, key=_left), Room(half, half)) if short else []
    rest = room.tokens - sum(_size(group).tokens for group in groups)
    return [*_fill(table, [first], Room(rest, rest)), *groups]


def _left(row: Row) -> int:
    """Return how many tokens of the row's prompt are not computed yet."""
    return row.life_tokens - row.computed


def _fill(table: RowTable, rows: list[Row], room: Room) -> list[list[RowChunk]]:
    """Return groups for the rows in order; the first row is always served. Rows of similar length
    share a group with at most a quarter of padding. Later prompts are not started for a tiny chunk.
    """
    groups: list[list[RowChunk]] = []
    waiting = list(rows)
    left = room
    while waiting and (not groups or left.tokens >= LEAST_CHUNK):
        first = waiting.pop(0)
        piece = _piece(table, first, left)
        if groups and piece < min(_in_one_go(table, first), room.tokens // 2):
            break
        group = [(first, first.computed, first.computed + piece)]
        longest, total = piece, piece
        for row in list(waiting):
            if len(group) >= table.settings.prefill_rows:
                break
            other = _piece(table, row, left)
            top, count = max(longest, other), len(group) + 1
            padded = top * count
            if row.scores != first.scores:
                continue
            whole = other == _in_one_go(table, row)
            fits = padded <= (left.most if whole else left.tokens)
            if not fits or total + other < (1 - table.settings.padding) * padded:
                continue
            group.append((row, row.computed, row.computed + other))
            waiting.remove(row)
            longest, total = top, total + other
        groups.append(group)
        taken = longest * len(group)
        left = Room(left.tokens - taken, left.most - taken)
    return groups


def _piece(table: RowTable, row: Row, room: Room) -> int:
    """Return how many tokens the next chunk of the row's prompt has, in this room."""
    left = _in_one_go(table, row)
    return left if left <= room.most else min(left, room.tokens)


def _in_one_go(table: RowTable, row: Row) -> int:
    """Return the longest possible next chunk of the row, in tokens. If caches cannot be trimmed,
    that chunk ends before the prompt's last token, so that the prefix up to that point can be
    kept."""
    end = row.life_tokens
    stops_before = not table.facts.trims and row.keeps_prompt and table.prefixes.limit_bytes > 0
    if stops_before and not row.made and row.computed < end - 1:
        end -= 1
    return end - row.computed


def _pieces(table: RowTable, group: list[RowChunk]) -> list[list[RowChunk]]:
    """Split a group of scored rows into pieces computed one after the other, because they need the
    logits of every position. A piece holds at most `SCORED_BYTES` of them, or one position per row.
    Each piece takes the same part of every row's chunk, so that padding does not grow; if rounding
    exceeds the limit, the rows of that piece run one by one."""
    positions = SCORED_BYTES // (4 * max(table.facts.vocabulary, 1))
    width = max(positions // len(group), 1)
    longest = max(stop - start for _, start, stop in group)
    count = -(-longest // width)
    pieces = [
        [
            (row, start + (stop - start) * at // count, start + (stop - start) * (at + 1) // count)
            for row, start, stop in group
        ]
        for at in range(count)
    ]
    pieces_of: list[list[RowChunk]] = []
    for piece in pieces:
        chunks = [chunk for chunk in piece if chunk[1] < chunk[2]]
        real = sum(stop - start for _, start, stop in chunks)
        filled = real >= (1 - table.settings.padding) * _size(chunks).tokens
        pieces_of.extend([chunks] if filled else [[chunk] for chunk in chunks])
    return pieces_of


def _compute(table: RowTable, open_plan: OpenPlan, group: list[RowChunk]) -> None:
    chunks: list[PrefillChunk] = []
    for row, start, stop in group:
        assert row.row_id is not None
        chunks.append(PrefillChunk(row.row_id, start, stop))
        row.computed = stop
        if row.scores:
            open_plan.scored[row.row_id] = row
        open_plan.progress.append((row, stop))
        if stop == row.life_tokens:
            row.move("prompt_done")
            open_plan.sample(row.row_id, row)
        kept_at = row.prompt.length if table.facts.trims else row.prompt.length - 1
        if stop == kept_at and not row.made and row.keeps_prompt:
            keep_prefix(table, open_plan, row, kept_at)
    open_plan.prefill.append(tuple(chunks))


def keep_prefix(table: RowTable, open_plan: OpenPlan, row: Row, length: int) -> bool:
    """Plan to keep the KV of the row's first `length` tokens as a prefix. Return False if that is
    not worth it."""
    if table.prefixes.limit_bytes <= 0 or table.pressure.over:
        return False
    if not 0 < length <= min(row.computed, row.length):
        return False
    decision = table.prefixes.keep(
        row.chain(),
        length,
        room_bytes=table.kv_bytes - table.live_bytes(),
        hit_now=open_plan.needed,
    )
    if decision is None:
        return False
    assert row.row_id is not None
    open_plan.evict.extend(decision.evict)
    open_plan.insert.append(PrefixInsert(decision.entry, row.row_id, length))
    if table.disk is not None and table.disk.wants(row.chain(), length, decision.evict):
        adapter = row.prepared.request.adapter or ""
        run = table.disk.save(decision.entry, row.chain(), length, adapter)
        open_plan.save.append(PrefixSave(decision.entry, run))
    open_plan.needed.add(decision.entry)
    open_plan.fresh.add(decision.entry)
    return True
