"""When a row that decodes alone gets a draft.

Pure. A drafter needs the row's last tokens, but plans are made one step ahead. So a plan waits for
the step in flight only where a draft is likely to follow it. A step with a draft is always read
before the next plan. Everything else about a row is as without drafts: a draft never reaches beyond
its longest permitted output, its reserved memory, or the point at which thinking must end.

Rows with a grammar are not drafted yet: the grammar would have to be taken back with the tokens.
"""

from __future__ import annotations

from runner.schedule.drafting import (
    LONGEST_DRAFT,
    Draft,
    Drafter,
    NgramDrafter,
    best_length,
    worth_waiting,
)
from runner.schedule.rows import Row
from runner.schedule.table import OpenPlan, RowTable

TRIED_AGAIN = 128
"""After this many guesses that seemed too expensive to verify, their costs are measured anew."""


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
    draft = _drafter(row).draft(LONGEST_DRAFT)
    if draft is None:
        return False
    rates, costs = draft.rates[: 1 + _room(table, row)], table.costs
    return worth_waiting(rates, costs.decode_s(1), costs.drafts_s())


def add_draft(table: RowTable, open_plan: OpenPlan) -> None:
    """Add a draft to a plan that is a decode of one row and nothing else, if it is expected to
    pay."""
    if table.issued or len(open_plan.decode) != 1:
        return
    row = _alone(table)
    if row is None or row.row_id not in open_plan.decode or open_plan.does_more_than_decode:
        return
    # The sample of this plan is already counted as computed.
    draft = _drafter(row).draft(_room(table, row))
    if draft is None:
        return
    costs = table.costs
    length, _ = best_length(draft.rates, costs.decode_s(1), costs.drafts_s())
    if not length:
        table.drafts_declined += 1
        if table.drafts_declined >= TRIED_AGAIN:
            table.drafts_declined = 0
            costs.forget_verify()
        return
    open_plan.guess = Draft(draft.tokens[:length], draft.rates[:length], draft.source)
    open_plan.decode_s = costs.verify_s(1 + length)


def _alone(table: RowTable) -> Row | None:
    """Return the only row in the engine if it decodes and may be drafted."""
    if not table.settings.drafts or not table.facts.verifies or len(table.live) != 1:
        return None
    (row,) = table.live.values()
    if row.status != "decoding" or row.prepared.grammar is not None or row.forced:
        return None
    return row


def _room(table: RowTable, row: Row) -> int:
    """Return the most tokens that a draft of the next step may have. `row` has one sample in
    flight, which is the step's own token or the one before it."""
    most = min(
        LONGEST_DRAFT,
        row.prepared.max_tokens - len(row.made) - row.in_flight,
        row.reserved - row.computed,
    )
    if row.thinking is not None:
        while most > 0 and row.thinking.may_be_due(row.in_flight + most):
            most -= 1
    return max(most, 0)


def _drafter(row: Row) -> Drafter:
    if row.drafter is None:
        row.drafter = NgramDrafter.after(
            row.prepared.tokens, row.made, row.prepared.prediction_tokens
        )
    return row.drafter
