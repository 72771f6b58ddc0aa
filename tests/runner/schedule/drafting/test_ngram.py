"""Drafts copy what followed the same tokens before; they know how often they are right."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from bus.wire.ids import TokenId
from runner.schedule.drafting import LONGEST_DRAFT, NgramDrafter
from runner.schedule.drafting.ngram import LEAST_MATCH, MOST_CANDIDATES, MOST_MATCH

few = st.lists(st.integers(0, 3).map(TokenId), max_size=60)


def tokens(*ids: int) -> list[TokenId]:
    return [TokenId(one) for one in ids]


def naive(text: list[TokenId]) -> list[int]:
    """The places after the longest matches, from `LEAST_MATCH` tokens on, of the end of `text`."""
    best, places = LEAST_MATCH - 1, list[int]()
    for end in range(len(text) - 1):
        length = 0
        while length <= end and length < MOST_MATCH and text[end - length] == text[-1 - length]:
            length += 1
        if length > best:
            best, places = length, []
        if length == best >= LEAST_MATCH:
            places.append(end + 1)
    return places


def test_it_copies_what_followed_the_longest_match() -> None:
    drafter = NgramDrafter.after(tokens(1, 2, 3, 4, 5, 6, 9, 2, 3, 4, 7, 8, 1, 2, 3, 4), [])
    draft = drafter.draft(3)
    assert draft is not None
    assert draft.tokens == (5, 6, 9)
    assert draft.source == "ngram"


def test_of_equal_matches_it_copies_the_most_recent() -> None:
    drafter = NgramDrafter.after(tokens(2, 3, 4, 5, 2, 3, 4, 6, 2, 3, 4), [])
    draft = drafter.draft(1)
    assert draft is not None and draft.tokens == (6,)


def test_a_pattern_that_repeats_is_repeated_beyond_its_end() -> None:
    drafter = NgramDrafter.after(tokens(7, 8, 7, 8, 7), [])
    draft = drafter.draft(6)
    assert draft is not None and draft.tokens == (8, 7, 8, 7, 8, 7)


def test_two_equal_tokens_are_no_match() -> None:
    assert NgramDrafter.after(tokens(1, 2, 5, 1, 2), []).draft(4) is None


def test_a_prediction_is_drafted_from_its_beginning_and_found_again_after_an_edit() -> None:
    predicted = tokens(10, 11, 12, 13, 14, 15, 16)
    drafter = NgramDrafter.after(tokens(1, 2, 3), [], predicted)
    first = drafter.draft(32)
    assert first is not None and first.tokens == tuple(predicted)
    assert first.source == "prediction"
    drafter.take(tokens(10, 11, 99, 12, 13, 14))
    again = drafter.draft(32)
    assert again is not None and again.tokens == (15, 16)
    drafter.take(tokens(15, 16))
    assert drafter.draft(4) is None


def test_rates_follow_what_was_right() -> None:
    chance = random.Random(4)
    text = [TokenId(chance.randrange(50)) for _ in range(100)]
    copied = NgramDrafter.after(text, text[:90])
    draft = copied.draft(4)
    assert draft is not None and min(draft.rates) > 0.9
    never = NgramDrafter.after(text, [])
    for at in range(0, 80, 4):
        never.take([*text[at : at + 3], *(TokenId(1000 + at * 10 + n) for n in range(5))])
    never.take(text[90:93])
    guess = never.draft(4)
    assert guess is not None and guess.rates[0] < 0.3


@given(few, few, st.integers(1, 40))
def test_a_draft_copies_a_longest_match(prompt: list[TokenId], made: list[TokenId], most: int):
    drafter = NgramDrafter.after(prompt, made)
    text = [*prompt, *made]
    draft = drafter.draft(most)
    places = naive(text)
    if draft is None:
        assert not places
        return
    assert places and len(draft.tokens) == len(draft.rates) == min(most, LONGEST_DRAFT)
    copies = [[*text, *draft.tokens][place : place + len(draft.tokens)] for place in places]
    if len(text) < MOST_CANDIDATES:
        assert list(draft.tokens) in copies


@given(few, st.lists(few, max_size=4), few)
def test_how_tokens_come_makes_no_difference(prompt, parts, prediction) -> None:
    whole = NgramDrafter.after(prompt, [token for part in parts for token in part], prediction)
    by_parts = NgramDrafter.after(prompt, [], prediction)
    for part in parts:
        by_parts.draft(5)
        by_parts.take(part)
    assert whole.draft(32) == by_parts.draft(32)
