"""Drafts that another runner makes: when a row asks for them, and which of their tokens are usable.

Pure. A row asks for a draft some steps before it can verify it. It continues to decode, and no step
waits for the answer. If the tokens that the row gets meanwhile equal the first tokens of the draft,
the rest of the draft is usable. While a draft is verified, the row already asks for the next one,
as if all of this draft were right.

Two measurements decide whether to ask again: how often drafts are right, and how many tokens late
they arrive. If drafts do not make the row faster, it asks for none for some tokens; each such pause
is twice as long as the one before. So the clock decides which drafts arrive in time, but it can
change only the speed of a row, not its text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from operator import mul

from bus.wire.ids import TokenId
from runner.schedule.drafting.drafter import LONGEST_DRAFT, Draft, Drafter
from runner.schedule.drafting.length import LENGTHS, best_length
from runner.schedule.drafting.proposals import (
    FADES,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    PRIOR_RATE,
    PRIOR_WEIGHT,
)

LEAST_SAVED = 0.1
"""A row asks for a draft only if it expects to save at least this part of a plain step by it."""
NEWEST_SHARE = 0.5
"""The weight of the newest value in the running average of the lateness."""
LEAST_BLOCK = 4


@dataclass(frozen=True, slots=True)
class BlockWish:
    """A draft to ask for. Its `length` tokens shall follow the row's tokens and then `presumed`,
    the tokens of an earlier draft that are not verified yet."""

    presumed: tuple[TokenId, ...]
    length: int


class RemoteDrafter:
    """Drafts one row with guesses of another runner, or with those of the local drafter `own` if
    these are expected to give more tokens. Costs are multiples of the cost of a plain step.
    `costs[i]`: a step that verifies `LENGTHS[i]` tokens. `again[i]`: computing i + 1 tokens again
    after a wrong guess."""

    def __init__(self, own: Drafter, costs: Sequence[float], again: Sequence[float] = ()) -> None:
        self._own = own
        self._costs, self._again = costs, again
        self._guess: list[TokenId] = []
        """The usable tokens of the last draft: those expected to follow the row's last token."""
        self._ordered = 0
        """The length of the draft that is awaited and can still be of use; 0 if there is none."""
        self._ahead = 0
        """How many tokens after the row's end the awaited draft begins. It is negative if the row
        already has tokens in the draft's place; these are `_since`."""
        self._since: list[TokenId] = []
        self._right, self._tried = PRIOR_RATE * PRIOR_WEIGHT, PRIOR_WEIGHT
        self._late = 0.0
        self._is_trial = True
        self._pause, self._rests_for = FIRST_PAUSE, 0

    @property
    def is_awaited(self) -> bool:
        """Return whether a draft is awaited and can still be of use."""
        return self._ordered > 0

    def take(self, tokens: Sequence[TokenId]) -> None:
        """Add committed tokens, and count whether they were guessed."""
        self._own.take(tokens)
        for token in tokens:
            self._rests_for = max(self._rests_for - 1, 0)
            if self._guess:
                is_right = self._guess[0] == token
                self._count(is_right=is_right)
                self._guess = self._guess[1:] if is_right else []
                if not is_right and self._ahead > 0:
                    self._ordered = 0  # it was asked for after tokens that did not come
            self._ahead -= 1
            if self._ordered and self._ahead < 0:
                self._since.append(token)
                if len(self._since) >= self._ordered:
                    self._arrived_late(len(self._since))
                    self._ordered = 0

    def draft(self, most: int) -> Draft | None:
        """Return up to `most` guessed tokens, from the drafter that is expected to give more."""
        own, tokens = self._own.draft(most), tuple(self._guess[:most])
        if not tokens:
            return own
        draft = Draft(tokens, (self._rate,) * len(tokens), "remote")
        return own if own is not None and _expected(own) > _expected(draft) else draft

    def wish(self, left: int) -> BlockWish | None:
        """Return the draft to ask for now. Return None if one is awaited, if enough guesses are
        here, or if drafts do not make the row faster. The row may get `left` more tokens."""
        if self._ordered or self._rests_for:
            return None
        ahead, late = len(self._guess), ceil(self._late - 0.5)
        length, gain = best_length((self._rate,) * LONGEST_DRAFT, 1.0, self._costs, self._again)
        chance = self._rate ** (ahead + late)
        saved = (gain - 1.0) * self._costs[LENGTHS.index(length)] if length else 0.0
        if chance * saved < LEAST_SAVED and not (self._is_trial and not ahead):
            if not ahead:
                self.rest()
            return None
        if ahead > length + late:
            return None
        block = min(max(length, LEAST_BLOCK) + late, LONGEST_DRAFT, left - ahead)
        return BlockWish(tuple(self._guess), block) if block > late else None

    def order(self, wish: BlockWish) -> None:
        """Note that the row has asked for this draft."""
        self._is_trial = False
        self._ordered, self._ahead = wish.length, len(wish.presumed)
        self._since = []

    def arrived(self, tokens: Sequence[TokenId]) -> bool:
        """Use the tokens of the awaited draft, as far as the row has not overtaken them. Return
        whether any is usable."""
        if not self._ordered:
            return False
        self._ordered, late = 0, len(self._since)
        self._arrived_late(late)
        if self._ahead > 0:
            self._guess = [*self._guess[: self._ahead], *tokens]
            return True
        for guess, token in zip(tokens, self._since, strict=False):
            self._count(is_right=guess == token)
            if guess != token:
                return False
        if len(tokens) - late > len(self._guess):
            self._guess = list(tokens[late:])
            return True
        return False

    def drop(self) -> None:
        """Stop waiting for the draft."""
        self._ordered = 0

    def rest(self) -> None:
        """Ask for no drafts until the row has some more tokens."""
        self._ordered, self._rests_for, self._is_trial = 0, self._pause, True
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    @property
    def _rate(self) -> float:
        return self._right / self._tried

    def _count(self, *, is_right: bool) -> None:
        self._right = FADES * self._right + is_right
        self._tried = FADES * self._tried + 1.0

    def _arrived_late(self, tokens: int) -> None:
        self._late += NEWEST_SHARE * (tokens - self._late)


def _expected(draft: Draft) -> float:
    """Return how many tokens of the draft are expected to be accepted."""
    return sum(accumulate(draft.rates, mul))
