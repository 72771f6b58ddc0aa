"""When a row that decodes alone gets a draft.

Pure. A drafter needs the row's last tokens, but plans are made one step ahead. So a plan waits for
the step in flight only where a draft is likely to follow it. A step with a draft is always read
before the next plan. Everything else about a row is as without drafts: a draft never reaches beyond
its longest permitted output, its reserved memory, or the point at which thinking must end.

The engine cuts off what a row's grammar forbids. It also tells the text that a grammar implies.
"""

from __future__ import annotations

from runner.schedule.drafting import LENGTHS, LONGEST_DRAFT, DraftTurns, NgramDrafter
from runner.schedule.rows import Row
from runner.schedule.table import OpenPlan, RowTable


def waits_for_tokens(table: RowTable) -> bool:
    """Return whether the steps in flight must be read before the next plan: one has a draft, or a
    draft is likely to follow."""
    if not table.issued:
        return False
    if table.issued[-1].guess is not None:
        return True
    row = _alone(table)
    if row is None or row.in_flight != 1 or row.paused_at is not None:
        return False
    return _turns(table, row).waits(room_of(table, row))


def add_draft(table: RowTable, open_plan: OpenPlan) -> None:
    """Add a draft to a plan that is a decode of one row and nothing else, if it is expected to
    pay."""
    if table.issued or len(open_plan.decode) != 1:
        return
    row = _alone(table)
    if row is None or row.row_id not in open_plan.decode or open_plan.does_more_than_decode:
        return
    draft = _turns(table, row).draft(room_of(table, row))
    if draft is None:
        return
    open_plan.guess = draft
    open_plan.decode_s *= table.draft_costs[LENGTHS.index(len(draft.tokens))]


def room_of(table: RowTable, row: Row) -> int:
    """Return the most tokens of a draft that follows the row's next token or is computed with its
    last one."""
    within = min(row.reserved, table.settings.draft_within or row.reserved)
    most = min(LONGEST_DRAFT, row.prepared.max_tokens - len(row.made) - 1, within - row.length)
    if row.thinking is not None:
        while most > 0 and row.thinking.may_be_due(1 + most):
            most -= 1
    return max(most, 0)


def _alone(table: RowTable) -> Row | None:
    """Return the only row in the engine if it decodes and may be drafted."""
    if not table.settings.drafts or not table.facts.verifies or len(table.live) != 1:
        return None
    (row,) = table.live.values()
    if row.status != "decoding" or row.forced:
        return None
    return row


def _turns(table: RowTable, row: Row) -> DraftTurns:
    """Return the row's drafts. A row that was not alone before gets the state that it would have if
    it had always been."""
    if row.drafts is None:
        prepared, before = row.prepared, row.made[:-1]
        drafter = NgramDrafter.after(prepared.tokens, before, prepared.prediction_tokens)
        row.drafts = DraftTurns(
            drafter, table.draft_costs, follows_grammar=prepared.grammar is not None
        )
        for token in row.made[-1:]:
            row.drafts.take(token, room_of(table, row) + 1, is_verified=False)
    return row.drafts
