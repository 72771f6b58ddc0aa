"""Decides when rows get drafts: a row that decodes alone, or rows that decode together.

Pure. A drafter needs the row's last token, but plans are made one step ahead. So the next plan
waits for the result of the step in flight only if a draft is likely to follow it. A step with
drafts is always read before the next plan. A draft changes no limit of its row: it never reaches
beyond the longest permitted output, the reserved memory, or the point at which thinking must end.

The drafts of rows that decode together share one step, so the lengths depend on all these rows. No
row gets a draft in a step that computes a prompt or does anything else than decode.

The engine removes drafted tokens that a row's grammar forbids. It also reports the text if the
grammar allows only one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bus.wire.messages.requests import Drafter as DrafterName
from bus.wire.messages.requests import ProposalCost
from runner.engine import Proposal, RowId, StepResult
from runner.schedule.drafting import (
    LENGTHS,
    LONGEST_DRAFT,
    WAIT_SHARE,
    AskingRow,
    Draft,
    Drafter,
    DraftTurns,
    ModelTurns,
    NgramDrafter,
    NoDrafter,
    RemoteDrafter,
    best_shared_length,
    chances_of,
)
from runner.schedule.rows import Row
from runner.schedule.table import OpenPlan, RowTable


def waits_for_tokens(table: RowTable) -> bool:
    """Return whether the steps in flight must be read before the next plan, because one of them
    verifies a draft, or because a draft is likely to follow."""
    if table.issued[-1].guesses:
        return True
    row = _alone(table)
    if row is None:
        return _wait_together(table, _together(table))
    if row.in_flight != 1 or row.paused_at is not None:
        return False
    return _turns(table, row).waits(room_of(table, row), left_of(row))


def add_drafts(table: RowTable, open_plan: OpenPlan) -> None:
    """Add drafts to a plan that does nothing but decode, if they are expected to make it faster. No
    step is unread."""
    if open_plan.does_more_than_decode:
        return
    row = _alone(table)
    if row is not None:
        draft = _turns(table, row).draft(room_of(table, row), left_of(row))
        if open_plan.decode and draft is not None:
            open_plan.guesses[open_plan.decode[0]] = draft
            open_plan.draft_cost = table.draft_costs[LENGTHS.index(draft.length)]
            if draft.source == "draft_model":
                facts = table.facts
                open_plan.draft_cost += draft.length * facts.draft_token_cost
                open_plan.draft_cost += facts.draft_block_cost
    else:
        rows = _together(table)
        if rows and [row.row_id for row in rows] == open_plan.decode:
            _draft_together(table, open_plan, rows)
    open_plan.decode_s *= open_plan.draft_cost


def count_drafts(
    table: RowTable, issued: OpenPlan, result: StepResult, taken: dict[RowId, int]
) -> None:
    """Count the drafted and accepted tokens of a step that was read. `taken` says how many of each
    row's tokens belong to its text: those after its end do not count."""
    tokens: dict[RowId, int] = {}
    proposed = dict(result.proposed)
    for token in result.tokens:
        tokens[token.row] = tokens.get(token.row, 0) + 1
    for row_id, row in issued.samples.items():
        if row.drafts is not None and len(issued.samples) > 1:
            row.drafts.lag += issued.draft_cost - tokens.get(row_id, 0)
        if (guess := issued.guesses.get(row_id)) is not None:
            accepted = max(min(taken.get(row_id, 0), tokens.get(row_id, 0) - 1), 0)
            drafter: DrafterName = guess.source
            cost: ProposalCost | None = None
            if drafter == "draft_model":
                proposal = proposed.get(row_id, Proposal())
                guess = replace(guess, tokens=proposal.tokens)
                drafter = _proposer(table)
                cost = proposal.passes, proposal.peak_bytes
                if row.drafts is not None and row.drafts.model is not None:
                    row.drafts.model.learn(len(guess.tokens), accepted)
                if not guess.tokens:
                    continue
            row.draft_counts = row.draft_counts.plus(drafter, len(guess.tokens), accepted, cost)


def asking_rows(table: RowTable) -> list[AskingRow]:
    """Return the rows that may get drafts now, so that each can ask another runner for one."""
    row = _alone(table)
    return [
        AskingRow(
            row=row.row_id,
            turns=_turns(table, row),
            prompt=row.prepared.tokens,
            made=row.made,
            seed=row.seed,
            sampling=row.prepared.request.sampling,
            left=min(left_of(row), room_of(table, row, 4 * LONGEST_DRAFT) + 1),
        )
        for row in (_together(table) if row is None else [row])
        if row.row_id is not None
    ]


def left_of(row: Row) -> int:
    """Return how many more tokens the row may get."""
    return row.prepared.max_tokens - len(row.made)


def room_of(table: RowTable, row: Row, longest: int = LONGEST_DRAFT) -> int:
    """Return how many tokens, at most `longest`, the row's next draft may have."""
    within = min(row.reserved, row.rules.within or row.reserved)
    most = min(longest, row.prepared.max_tokens - len(row.made) - 1, within - row.length)
    if row.thinking is not None:
        while most > 0 and row.thinking.may_be_due(1 + most):
            most -= 1
    return max(most, 0)


def _proposer(table: RowTable) -> DrafterName:
    """Return the kind of the proposer in this runner."""
    if not table.facts.no_block:
        return "block"
    return "draft_model" if table.facts.no_mtp else "mtp"


def _alone(table: RowTable) -> Row | None:
    """Return the only row in the engine if it decodes and may get a draft."""
    if len(table.live) != 1:
        return None
    (row,) = table.live.values()
    if row.rules.why_not or row.status != "decoding" or row.forced:
        return None
    return row


def _together(table: RowTable) -> list[Row]:
    """Return the rows that decode together and may get drafts, without paused rows. Return nothing
    if there are fewer than two, or if a live row does something else than decode. Neither if the
    rules of a live row forbid drafts beside other rows."""
    if not table.facts.shared_draft_costs:
        return []
    rows: list[Row] = []
    for row in table.live.values():
        rules = row.rules
        if row.status != "decoding" or row.forced or rules.why_not or not rules.together:
            return []
        if row.paused_at is None:
            rows.append(row)
    return rows if len(rows) > 1 else []


def _wait_together(table: RowTable, rows: Sequence[Row]) -> bool:
    """Return whether drafts of several rows are likely to follow the step in flight."""
    chances: list[Sequence[float]] = []
    for row in rows:
        if row.in_flight != 1 or not row.wants_token:
            return False  # this row will not decode in the next step
        foreseen = _turns(table, row).foreseen()
        chances.append(foreseen and foreseen[: room_of(table, row)])
    if not any(chances):
        return False
    length, gain = _best_together(table, rows, chances)
    if not length:
        return False
    cost = table.shared_costs.of(len(rows))[LENGTHS.index(length)]
    return (gain - 1.0) * cost > WAIT_SHARE


def _draft_together(table: RowTable, open_plan: OpenPlan, rows: Sequence[Row]) -> None:
    drafts: list[tuple[RowId, Draft]] = []
    chances: list[Sequence[float]] = []
    for row, row_id in zip(rows, open_plan.decode, strict=True):
        draft = _turns(table, row).guess(room_of(table, row))
        chances.append(() if draft is None else chances_of(draft.rates))
        if draft is not None:
            drafts.append((row_id, draft))
    if not drafts:
        return
    length, _ = _best_together(table, rows, chances)
    if not length:
        return
    for row_id, draft in drafts:
        cut = Draft(draft.tokens[:length], draft.rates[:length], draft.source)
        open_plan.guesses[row_id] = cut
    open_plan.draft_cost = table.shared_costs.of(len(rows))[LENGTHS.index(length)]


def _best_together(
    table: RowTable, rows: Sequence[Row], chances: Sequence[Sequence[float]]
) -> tuple[int, float]:
    late = [_turns(table, row).is_late(len(row.made)) for row in rows]
    return best_shared_length(chances, table.shared_costs.of(len(rows)), late)


def _turns(table: RowTable, row: Row) -> DraftTurns:
    """Return the draft state of the row. If there is none yet, make the state that the row would
    have if it had been alone in the engine from its beginning."""
    if row.drafts is None:
        prepared, before = row.prepared, row.made[:-1]
        drafter: Drafter = NoDrafter()
        rules = row.rules
        if rules.copies:
            drafter = NgramDrafter.after(prepared.tokens, before, prepared.prediction_tokens)
        if rules.asks_remote:
            drafter = RemoteDrafter(drafter, table.draft_costs, table.again_costs)
        model = None
        if rules.asks_model:
            facts = table.facts
            # An MTP head or a block drafter reads the prompt with its model.
            behind = 0 if facts.draft_depth else len(prepared.tokens) + len(before)
            most = facts.draft_depth or LONGEST_DRAFT
            costs = [cost + facts.draft_block_cost for cost in table.draft_costs]
            model = ModelTurns(costs, facts.draft_token_cost, behind, most, table.again_costs)
        has_grammar = prepared.grammar is not None
        row.drafts = DraftTurns(
            drafter,
            table.draft_costs,
            again=table.again_costs,
            follows_grammar=has_grammar,
            model=model,
        )
        for token in row.made[-1:]:
            row.drafts.take(token, room_of(table, row) + 1, is_verified=False)
    return row.drafts
