"""After which tokens of a row a draft is verified, and how long it is.

Pure. For a row that decodes alone, the decision depends on its own tokens, its limits and the
costs that were measured at load. It never depends on the clock, on other rows or on pauses. So a
repeated request gets its drafts in the same places. This matters because the last digits of a step
of several columns can differ from those of a plain step: equal places give equal text.

For rows that decode together, `DraftTurns` only guesses; `runner.schedule.speculation` decides.
"""

from __future__ import annotations

from collections.abc import Sequence

from bus.wire.ids import TokenId
from runner.schedule.drafting.drafter import LONGEST_DRAFT, Draft, Drafter
from runner.schedule.drafting.length import best_length, worth_waiting
from runner.schedule.drafting.ngram import FADES, PRIOR_WEIGHT
from runner.schedule.drafting.proposals import ModelTurns
from runner.schedule.drafting.remote import RemoteDrafter
from runner.schedule.drafting.together import LAG_SHARE, MOST_LAG, chances_of

IMPLIED_RATE = 0.9
"""The assumed rate of right tokens in a text that a grammar implies, before any was counted. It is
below 1, because the model may spell the same text with other tokens."""


class DraftTurns:
    """Decides the drafts of one row. Costs are multiples of the cost of a plain step. `costs[i]`: a
    step that verifies `LENGTHS[i]` tokens. `again[i]`: computing i + 1 tokens again after a wrong
    guess. `follows_grammar`: the row has a grammar. Each of its tokens is read before the next
    plan, because the grammar may then allow only one text. `is_due`: the row's last token was read
    before the next plan, so a draft may follow it. `lag`: how many plain steps of time the row has
    lost by steps with drafts of several rows; negative if it has gained. `model` decides for the
    draft model or MTP head; None if it does not guess. `remote`: the drafter, if it asks another
    runner."""

    def __init__(
        self,
        drafter: Drafter,
        costs: Sequence[float],
        *,
        again: Sequence[float] = (),
        follows_grammar: bool = False,
        model: ModelTurns | None = None,
    ) -> None:
        self._drafter = drafter
        self.remote = drafter if isinstance(drafter, RemoteDrafter) else None
        self.model = model
        self._costs, self._again = costs, again
        self._follows_grammar = follows_grammar
        self._waits: bool | None = None
        self._foreseen: tuple[float, ...] | None = None
        self.lag = 0.0
        self._implied: Sequence[TokenId] = ()
        self._right, self._tried = IMPLIED_RATE * PRIOR_WEIGHT, PRIOR_WEIGHT
        self.is_due = follows_grammar

    def waits(self, room: int, left: int = 1 << 30) -> bool:
        """Return whether the step that yields the row's next token must be read before the next
        plan, because a draft is likely to follow. That draft may have `room` tokens; the row may
        get `left` more tokens."""
        if self._follows_grammar:
            return True
        if self.model is not None and self.model.choose(room, left)[0] is not None:
            return True
        if self._waits is None:
            draft = self._drafter.draft(LONGEST_DRAFT)
            self._waits = draft is not None and worth_waiting(
                draft.rates[: 1 + room], 1.0, self._costs, self._again
            )
        return self._waits

    def take(self, token: TokenId, room: int, *, is_verified: bool, is_alone: bool = True) -> None:
        """Add the row's next token. `room` is the limit of a draft after it, as it was before this
        token. `is_verified`: the token comes from a step with a draft, which is always read before
        the next plan. `is_alone`: no other row is in the engine."""
        self.is_due = is_verified or (is_alone and self.waits(room))
        self._drafter.take((token,))
        if self.model is not None:
            self.model.take()
        self._waits = self._foreseen = None
        if self._implied:
            is_right = token == self._implied[0]
            self._right = FADES * self._right + is_right
            self._tried = FADES * self._tried + 1.0
            self._implied = self._implied[1:] if is_right else ()

    def arrived(self, tokens: Sequence[TokenId]) -> bool:
        """Pass a draft of another runner to the drafter. Return whether any of it is usable."""
        self._waits = self._foreseen = None
        return self.remote is not None and self.remote.arrived(tokens)

    def imply(self, tokens: Sequence[TokenId]) -> None:
        """Set the only text that the row's grammar allows next, after the tokens taken so far."""
        self._implied = tokens

    def draft(self, room: int, left: int = 1 << 30) -> Draft | None:
        """Return the draft to verify after the last token, at most `room` tokens; None if a plain
        step is expected to be better. The row may get `left` more tokens."""
        if not self.is_due:
            return None
        best, most = None, 1.0
        draft = self.guess(room)
        if draft is not None:
            length, most = best_length(draft.rates, 1.0, self._costs, self._again)
            if length:
                best = Draft(draft.tokens[:length], draft.rates[:length], draft.source)
        if self.model is not None:
            guesses, gain = self.model.choose(room, left)
            best = guesses if gain > most else best
        return best

    def is_late(self, made: int) -> bool:
        """Return whether the row, which has generated `made` tokens, has lost more time than it
        may by steps with drafts of several rows."""
        return self.lag > MOST_LAG + LAG_SHARE * made

    def guess(self, room: int) -> Draft | None:
        """Return at most `room` tokens that may follow the last token: the implied text if there is
        one, else the drafter's guess."""
        tokens = tuple(self._implied[: min(room, LONGEST_DRAFT)])
        if not tokens:
            return self._drafter.draft(room)
        return Draft(tokens, (self._right / self._tried,) * len(tokens), "grammar")

    def foreseen(self) -> tuple[float, ...]:
        """Return the chances (`chances_of`) of the tokens that the drafter would draft after the
        row's next token."""
        if self._foreseen is None:
            draft = self._drafter.draft(LONGEST_DRAFT)
            self._foreseen = () if draft is None else chances_of(draft.rates)[1:]
        return self._foreseen
