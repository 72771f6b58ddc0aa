"""Credit is conserved, and given back only for what was sent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bus.wire.ids import RequestId
from bus.wire.messages.tokens import CREDIT_WINDOW, ChoiceEnd, TokenDelta
from gateway.runners.credit import TOP_UP, CreditBook

NAME = RequestId("r")


def text_of(choice: int) -> TokenDelta:
    return TokenDelta(NAME, 0, choice, "text", "a", 1)


@given(st.lists(st.integers(0, 40), max_size=200))
def test_credit_granted_equals_credit_spent_and_left(turns: list[int]) -> None:
    book, left, unsent, granted, received = CreditBook(1), CREDIT_WINDOW, 0, 0, 0
    for turn in turns:
        come = min(turn, left)
        for _ in range(come):
            assert book.takes(text_of(0))
        left, unsent, received = left - come, unsent + come, received + come
        grant = book.sent(0, unsent)
        unsent = 0
        left, granted = left + grant, granted + grant
        assert 0 <= left <= CREDIT_WINDOW
        assert grant == 0 or grant >= TOP_UP
        assert CREDIT_WINDOW + granted == received + left


def test_what_nobody_reads_is_never_paid_for_again() -> None:
    book = CreditBook(1)
    assert all(book.takes(text_of(0)) for _ in range(CREDIT_WINDOW))
    assert not book.may_move
    assert not book.takes(text_of(0))


def test_choices_have_credit_of_their_own() -> None:
    book = CreditBook(2)
    for _ in range(CREDIT_WINDOW):
        book.takes(text_of(0))
    assert book.may_move
    assert book.sent(1, TOP_UP - 1) == 0
    assert book.sent(0, TOP_UP) == TOP_UP


def test_a_choice_that_has_ended_gets_no_more() -> None:
    book = CreditBook(1)
    book.takes(text_of(0))
    book.takes(ChoiceEnd(NAME, 1, 0, "stop", None))
    assert book.sent(0, CREDIT_WINDOW) == 0
    assert book.may_move, "its terminal is still owed"


def test_entries_take_credit_of_a_choice_that_exists() -> None:
    book = CreditBook(2)
    text = [text_of(number) for number in range(3)]
    assert [book.takes(entry) for entry in text] == [True, True, False]
    assert not book.takes(ChoiceEnd(NAME, 3, 2, "stop", None))
    assert book.takes(ChoiceEnd(NAME, 3, 1, "stop", None)) and book.sent(1, CREDIT_WINDOW) == 0
