"""Whether to ask the draft model or the MTP head for guesses, and for how many.

Pure. The decision depends on how many guesses the row's model accepted and on the costs that were
measured at load. It never depends on the clock or on other rows. If the guesses for a row do not
make it faster, the row gets none for some tokens. Then it tries again; each such pause is twice as
long as the one before.
"""

from __future__ import annotations

from collections.abc import Sequence

from runner.schedule.drafting.drafter import LONGEST_DRAFT, Draft
from runner.schedule.drafting.length import LENGTHS, best_length

PRIOR_RATE, PRIOR_WEIGHT = 0.75, 4.0
"""The assumed rate of right guesses before any was verified, and the number of verified guesses
that it counts as."""
FADES = 0.95
"""With each new guess, the weight of all earlier guesses is multiplied by this."""
FIRST_PAUSE, LONGEST_PAUSE = 64, 1024
"""The first and the longest pause of a row whose guesses do not make it faster, in tokens."""
BEHIND_SHARE = 0.1
"""The draft model's cost of reading a token of the row that it lacks, as a share of the cost of one
guess."""
USUAL_TOKENS = 256
"""An answer is assumed to have at most this many tokens left."""


class ModelTurns:
    """Decides when the draft model or the MTP head guesses for one row. Costs are multiples of the
    cost of a plain step. `costs[i]`: a step that verifies `LENGTHS[i]` tokens. `token_cost`: one
    guess. `again[i]`: computing i + 1 tokens again after a wrong guess. `behind`: how many tokens
    of the row the draft model still has to read. `most`: the limit of guesses for one step."""

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
        """Return a draft without tokens that says how many guesses to ask for, at most `room`. It
        is None if plain steps are expected to be faster. Also return the tokens expected in the
        time of one plain step. The row may get `left` more tokens."""
        if self._rests_for:
            return None, 1.0
        rate = self._right / self._tried
        length, gain = best_length((rate,) * min(room, self._most), 1.0, self._costs, self._again)
        saved = min(left, USUAL_TOKENS) * (1.0 - 1.0 / gain)
        if not length or saved <= self.behind * BEHIND_SHARE * self._token_cost:
            return None, 1.0
        return Draft((), (rate,) * length, "draft_model"), gain

    def learn(self, guessed: int, accepted: int) -> None:
        """Learn from `guessed` tokens, of which the model accepted the first `accepted`. A pause
        begins if guesses no longer pay, or if `guessed` is 0, because then the draft model failed
        or cannot guess for this row."""
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
