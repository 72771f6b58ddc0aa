"""After which tokens of a row a draft is verified, and how long it is.

Pure. The decision depends on the row's own tokens, its limits and the costs that were measured at
load; never on the clock, on neighbours or on pauses. So a row that decodes alone is drafted in the
same places whenever it is repeated. Where a step computes several columns, the last digits of its
results can differ from those of a plain step; so equal places give equal text.
"""

from __future__ import annotations

from collections.abc import Sequence

from bus.wire.ids import TokenId
from runner.schedule.drafting.drafter import LONGEST_DRAFT, Draft, Drafter
from runner.schedule.drafting.length import best_length, worth_waiting


class DraftTurns:
    """The drafts of one row. `costs[i]`: the cost of a step that verifies `LENGTHS[i]` tokens, as a
    multiple of a plain step's. `is_due`: a draft may follow the row's last token, because that
    token was read before the next plan."""

    def __init__(self, drafter: Drafter, costs: Sequence[float]) -> None:
        self._drafter = drafter
        self._costs = costs
        self._waits: bool | None = None
        self.is_due = False

    def waits(self, room: int) -> bool:
        """Return whether the step of the next token must be read before the plan after it. A draft
        after that token may have `room` tokens."""
        if self._waits is None:
            draft = self._drafter.draft(LONGEST_DRAFT)
            self._waits = draft is not None and worth_waiting(
                draft.rates[: 1 + room], 1.0, self._costs
            )
        return self._waits

    def take(self, token: TokenId, room: int, *, is_verified: bool) -> None:
        """Add the row's next token; `room` belongs to the tokens before it. `is_verified`: it comes
        from a step with a draft, which is always read before the next plan."""
        self.is_due = is_verified or self.waits(room)
        self._drafter.take((token,))
        self._waits = None

    def draft(self, room: int) -> Draft | None:
        """Return the draft to verify after the last token, at most `room` tokens; None if a plain
        step is expected to be better."""
        if not self.is_due:
            return None
        draft = self._drafter.draft(room)
        if draft is None:
            return None
        length, _ = best_length(draft.rates, 1.0, self._costs)
        if not length:
            return None
        return Draft(draft.tokens[:length], draft.rates[:length], draft.source)
