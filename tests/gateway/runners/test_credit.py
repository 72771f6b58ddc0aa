"""Credit is conserved, and given back only for what was sent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bus.wire.ids import RequestId
from bus.wire.messages.tokens import CREDIT_WINDOW, ChoiceEnd, TokenDelta
from gateway.runners.credit import TOP_UP, CreditBook


@given(st.lists(st.integers(0, 40), max_size=200))
def test_credit_granted_equals_credit_spent_and_left(turns: list[int]) -> None:
    book, left, unsent, granted, received = CreditBook(1), CREDIT_WINDOW, 0, 0, 0
    for turn in turns:
        come = min(turn, left)
        for _ in range(come):
            assert book.received(0)
        left, unsent, received = left - come, unsent + come, received + come
        grant = book.sent(0, unsent)
        unsent = 0
        left, granted = left + grant, granted + grant
        assert 0 <= left <= CREDIT_WINDOW
        assert grant == 0 or grant >= TOP_UP
        assert CREDIT_WINDOW + granted == received + left


def test_what_nobody_reads_is_never_paid_for_again() -> None:
    book = CreditBook(1)
    assert all(book.received(0) for _ in range(CREDIT_WINDOW))
    assert not book.may_move
    assert not book.received(0)


def test_choices_have_credit_of_their_own() -> None:
    book = CreditBook(2)
    for _ in range(CREDIT_WINDOW):
        book.received(0)
    assert book.may_move
    assert book.sent(1, TOP_UP - 1) == 0
    assert book.sent(0, TOP_UP) == TOP_UP


def test_a_choice_that_has_ended_gets_no_more() -> None:
    book = CreditBook(1)
    book.received(0)
    book.ended(0)
    assert book.sent(0, CREDIT_WINDOW) == 0
    assert book.may_move, "its terminal is still owed"


def test_entries_take_credit_of_a_choice_that_exists() -> None:
    book, name = CreditBook(2), RequestId("r")
    text = [TokenDelta(name, number, number, "text", "a", 1) for number in range(3)]
    assert [book.takes(entry) for entry in text] == [True, True, False]
    assert not book.takes(ChoiceEnd(name, 3, 2, "stop", None))
    assert book.takes(ChoiceEnd(name, 3, 1, "stop", None)) and book.sent(1, CREDIT_WINDOW) == 0
