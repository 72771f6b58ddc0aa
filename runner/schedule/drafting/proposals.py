"""Whether to ask the draft model or the MTP head for guesses, and for how many.

Pure. The decision depends on the row's own accepted guesses and on the costs that were measured at
load, never on the clock or on neighbours. If guesses of a row do not pay, it decodes plainly for
some tokens, and then tries again; each pause is twice as long.
"""

from __future__ import annotations

from collections.abc import Sequence

from runner.schedule.drafting.drafter import LONGEST_DRAFT, Draft
from runner.schedule.drafting.length import LENGTHS, best_length

PRIOR_RATE, PRIOR_WEIGHT = 0.75, 4.0
"""The expected rate of right guesses before any was verified, and its weight in verified ones."""
FADES = 0.95
"""Weight of earlier guesses against the newest."""
FIRST_PAUSE, LONGEST_PAUSE = 64, 1024
"""The lengths of pauses, in tokens."""
BEHIND_SHARE = 0.1
"""The cost of computing a token that the draft model has not seen yet, in guessed tokens."""
USUAL_TOKENS = 256
"""The assumed length of the rest of an answer."""


class ModelTurns:
    """The draft model's part in the drafts of one row. `costs[i]`: the cost of a step that verifies
    `LENGTHS[i]` tokens, and `token_cost` that of one guess, in plain steps. `again[i]`: that of
    computing i + 1 tokens again after a wrong guess. `behind`: the row's
    tokens that the draft model has not seen. `most`: the most guesses for one step."""

    def __init__(
        self,
        costs: Sequence[float],
        token_cost: float,
        behind: int,
        most: int = LONGEST_DRAFT,
        again: Sequence[float] = (),
    ) -> None:
        self.behind = behind
        self._again = again
        self._most = most
        self._token_cost = token_cost
        self._costs = [
            cost + length * token_cost for cost, length in zip(costs, LENGTHS, strict=True)
        ]
        self._right, self._tried = PRIOR_RATE * PRIOR_WEIGHT, PRIOR_WEIGHT
        self._pause, self._rests_for = FIRST_PAUSE, 0

    def take(self) -> None:
        """Note that the row has one more token."""
        self.behind += 1
        if self._rests_for:
            self._rests_for -= 1

    def choose(self, room: int, left: int) -> tuple[Draft | None, float]:
        """Return the guesses to ask for, at most `room`, without tokens; None if plain steps are
        expected to be better. Also return the expected tokens per plain step's time. The row may
        get `left` more tokens."""
        if self._rests_for:
            return None, 1.0
        rate = self._right / self._tried
        length, gain = best_length((rate,) * min(room, self._most), 1.0, self._costs, self._again)
        saved = min(left, USUAL_TOKENS) * (1.0 - 1.0 / gain)
        if not length or saved <= self.behind * BEHIND_SHARE * self._token_cost:
            return None, 1.0
        return Draft((), (rate,) * length, "draft_model"), gain

    def learn(self, guessed: int, accepted: int) -> None:
        """Learn from guesses of which the model accepted the first ones. Without any guess, the
        draft model has failed or cannot guess for this row."""
        self.behind = 0 if guessed else self.behind
        for at in range(min(accepted + 1, guessed)):
            self._right = FADES * self._right + (at < accepted)
            self._tried = FADES * self._tried + 1.0
        rates = (self._right / self._tried,) * self._most
        if guessed and best_length(rates, 1.0, self._costs, self._again)[0]:
            return
        self._rests_for = self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._right, self._tried = PRIOR_RATE * PRIOR_WEIGHT, PRIOR_WEIGHT
