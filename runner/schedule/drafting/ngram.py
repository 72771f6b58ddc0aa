"""Drafts by copying: the tokens that followed the row's last tokens when these occurred before.

Pure. The drafter looks for the longest match: the earlier place in the row whose last tokens equal
the most of the row's last tokens, at least `LEAST_MATCH`. The latest of equal matches counts. It
copies from there as long as the copied tokens are right. It also searches the text that the client
predicted, and prefers it to the row's own text if both match equally well. Before the first token,
it drafts the beginning of the predicted text.

Copies after longer matches are right more often, so matches have classes by length, and the rate of
right guesses is counted for each class.

Source: prompt lookup decoding (Saxena, 2023) and llama.cpp's n-gram drafts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bus.wire.ids import TokenId
from runner.schedule.drafting.drafter import LONGEST_DRAFT, Draft, DraftSource

LEAST_MATCH = 3
MOST_MATCH = 32
"""At most this many tokens are compared; a longer match counts as this long."""
MOST_CANDIDATES = 16
"""A search compares at most this many earlier places, the latest first."""
MOST_TOKENS = 1 << 15
"""A search covers at most this many tokens at the end of a prompt."""
FLOORS = (17, 9, 5, LEAST_MATCH, 0)
"""The shortest match of each class. The last class is for copies from the beginning of a predicted
text, before any match."""
PRIORS = (0.9, 0.8, 0.6, 0.4, 0.6)
"""The expected rate of each class before anything was counted."""
PRIOR_WEIGHT = 3.0
FADES = 0.98
"""With each new guess of a class, the weight of its earlier guesses is multiplied by this."""

_MIX = 0x9E3779B97F4A7C15
_MASK = (1 << 61) - 1


CLASSES = tuple(
    next(at for at, floor in enumerate(FLOORS) if match >= floor)
    for match in range(MOST_MATCH + LONGEST_DRAFT + 1)
)
"""`CLASSES[n]` is the class of a match of n tokens."""


class _Text:
    """Tokens, with an index of the places at which each sequence of `LEAST_MATCH` tokens
    occurred."""

    def __init__(self) -> None:
        self.tokens: list[TokenId] = []
        self._last: dict[int, int] = {}
        self._before: list[int] = []
        """For each token: where the sequence that ends with it ended the time before; -1: never."""
        self.key = -1
        """The hash of the last sequence; -1 before there is one."""

    def add(self, token: TokenId) -> bool:
        """Add a token. Return whether the sequence that ends with it occurred before."""
        at = len(self.tokens)
        self.tokens.append(token)
        before = -1
        if at >= LEAST_MATCH - 1:
            key = 0
            for last in self.tokens[at - LEAST_MATCH + 1 :]:
                key = (key * _MIX + last + 1) & _MASK
            before = self._last.get(key, -1)
            self._last[key] = at
            self.key = key
        self._before.append(before)
        return before >= 0

    def places(self, of: _Text) -> Iterable[int]:
        """Yield the places in this text at which the last `LEAST_MATCH` tokens of `of` end, the
        latest first. If `of` is this text, its own end is left out."""
        at = self._last.get(of.key, -1)
        if of is self and at >= 0:
            at = self._before[at]
        for _ in range(MOST_CANDIDATES):
            if at < 0:
                return
            yield at
            at = self._before[at]


def _shared(tokens: Sequence[TokenId], end: int, of: Sequence[TokenId]) -> int:
    """Return the length of the match: how many tokens that end at `tokens[end]` equal the last
    tokens of `of`."""
    count, last = 0, len(of) - 1
    while (
        count < MOST_MATCH
        and end >= count
        and last >= count
        and tokens[end - count] == of[last - count]
    ):
        count += 1
    return count


class NgramDrafter:
    """Drafts for one row. `prediction` are the tokens of a text that the client expects as the
    answer."""

    def __init__(self, prediction: Sequence[TokenId] = ()) -> None:
        self._own = _Text()
        self._predicted = _Text()
        for token in prediction:
            self._predicted.add(token)
        self._source = self._own
        self._at = -1
        """Where the copy continues in `_source`; -1: there is no guess."""
        self._match = 0
        self._right = [PRIOR_WEIGHT * prior for prior in PRIORS]
        self._tried = [PRIOR_WEIGHT for _ in PRIORS]

    @classmethod
    def after(
        cls,
        prompt: Sequence[TokenId],
        made: Sequence[TokenId],
        prediction: Sequence[TokenId] = (),
    ) -> NgramDrafter:
        """Return a drafter of a row with this prompt that has generated `made`."""
        drafter = cls(prediction)
        for token in prompt[-MOST_TOKENS:]:
            drafter._own.add(token)
        if prediction:
            drafter._source, drafter._at, drafter._match = drafter._predicted, 0, 0
        else:
            drafter._search()
        drafter.take(made)
        return drafter

    def take(self, tokens: Sequence[TokenId]) -> None:
        """Add committed tokens, and count whether they were guessed."""
        for token in tokens:
            source, at = self._source.tokens, self._at
            guess = source[at] if 0 <= at < len(source) else None
            if guess is not None:
                kind = CLASSES[self._match]
                self._right[kind] = FADES * self._right[kind] + (guess == token)
                self._tried[kind] = FADES * self._tried[kind] + 1.0
            repeats = self._own.add(token)
            if guess == token:
                self._at += 1
                self._match = min(self._match + 1, MOST_MATCH)
            elif repeats or self._predicted.tokens:
                self._search()
            else:
                self._at, self._match = -1, 0

    def draft(self, most: int) -> Draft | None:
        """Return up to `most` tokens to copy. A copy that reaches the end of the row's own text
        starts again with its own tokens, because a repeated pattern is likely to continue."""
        source, at = self._source.tokens, self._at
        if at < 0 or most < 1:
            return None
        most = min(most, LONGEST_DRAFT)
        drafted = source[at : at + most]
        is_own = self._source is self._own
        if is_own:
            period = len(drafted)
            while len(drafted) < most:
                drafted.append(drafted[-period])
        if not drafted:
            return None
        by_class = [right / tried for right, tried in zip(self._right, self._tried, strict=True)]
        classes = CLASSES[self._match : self._match + len(drafted)]
        name: DraftSource = "ngram" if is_own else "prediction"
        return Draft(tuple(drafted), tuple([by_class[at] for at in classes]), name)

    def _search(self) -> None:
        """Find the place to copy from after the last token."""
        self._at, self._match = -1, 0
        for text in (self._predicted, self._own) if self._predicted.tokens else (self._own,):
            for end in text.places(self._own):
                match = _shared(text.tokens, end, self._own.tokens)
                if match > max(self._match, LEAST_MATCH - 1):
                    self._source, self._at, self._match = text, end + 1, match
                if match == MOST_MATCH:
                    break
