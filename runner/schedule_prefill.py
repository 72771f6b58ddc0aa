"""Which chunks of which prompts a step computes: what prefill may take, well filled.

Pure. Alone, prefill takes large chunks; beside decodes it takes what its account affords
(`budget`), rows first in order first, and rows of like length share one padded group.
"""

from __future__ import annotations

from runner.budget import LEAST_CHUNK
from runner.engine import PrefillChunk
from runner.rows import Row
from runner.schedule_draft import Draft, keep_prefix
from runner.schedule_rows import RowTable

RowChunk = tuple[Row, int, int]


def choose_prefill(table: RowTable, draft: Draft) -> None:
    """Choose chunks: as much as is efficient alone, as much as is paid for beside decodes."""
    rows = sorted(
        (row for row in table.live.values() if row.status == "prefilling"),
        key=lambda row: row.order,
    )
    account, settings, costs = table.account, table.settings, table.costs
    if draft.decode:
        limit_s = min(account.chunk_limit_s(draft.decode_s), settings.longest_step_s)
        account.earn(draft.decode_s, chunk_s=max(limit_s, costs.prefill_s(LEAST_CHUNK)))
    else:
        limit_s = settings.longest_step_s
    if not rows or (draft.decode and table.timekeeper.wants_quiet):
        return
    most = settings.prefill_tokens if costs.knows_prefill else settings.first_chunk_tokens
    tokens = costs.tokens_within(limit_s, least=LEAST_CHUNK, most=most)
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


def _choose_groups(table: RowTable, rows: list[Row], tokens: int) -> list[list[RowChunk]]:
    """Chunks of at most `tokens` in all, padding counted. A long prompt leaves up to half of
    them to those of its rank that can be finished now: one long document must not keep every
    short question waiting."""
    first = rows[0]
    if _left(first) <= tokens:
        return _fill(table, rows, tokens)
    half = tokens // 2
    short = [row for row in rows[1:] if row.rank == first.rank and _left(row) <= half]
    groups = _fill(table, sorted(short, key=_left), half) if short else []
    rest = tokens - sum(
        len(group) * max(stop - start for _, start, stop in group) for group in groups
    )
    return [*_fill(table, [first], rest), *groups]


def _left(row: Row) -> int:
    """Prompt tokens that are still to be computed."""
    return row.life_tokens - row.computed


def _fill(table: RowTable, rows: list[Row], tokens: int) -> list[list[RowChunk]]:
    """Groups for the rows in order, the first always served; rows of like length share a group
    with at most a quarter of it padding."""
    groups: list[list[RowChunk]] = []
    waiting = list(rows)
    left = tokens
    while waiting and (not groups or left >= LEAST_CHUNK):
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
    stops_before = not table.facts.trims and row.keeps_prompt and table.prefixes.limit_bytes > 0
    if stops_before and not row.made and row.computed < end - 1:
        end -= 1
    return min(end - row.computed, most)


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
        if stop == kept_at and not row.made and row.keeps_prompt:
            keep_prefix(table, draft, row, kept_at)
    draft.prefill.append(tuple(chunks))
