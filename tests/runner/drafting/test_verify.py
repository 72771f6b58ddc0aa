"""A draft of any quality gives the text that there would be without it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bus.wire.ids import TokenId
from runner.drafting import accepted, best_length, why_no_drafts, worth_waiting
from runner.drafting.length import LENGTHS

token = st.integers(0, 3).map(TokenId)


def spoken(text: list[TokenId]) -> TokenId:
    """What a model says after a text: depends on all of it."""
    return TokenId(hash(tuple(text)) % 4)


@given(st.lists(st.lists(token, max_size=9), min_size=1, max_size=30), st.integers(1, 60))
def test_garbage_drafts_never_change_a_text(drafts: list[list[TokenId]], count: int) -> None:
    plain: list[TokenId] = []
    while len(plain) < count:
        plain.append(spoken(plain))
    text: list[TokenId] = []
    for number in range(count):
        draft = drafts[number % len(drafts)]
        verified = [spoken([*text, *draft[:at]]) for at in range(len(draft) + 1)]
        kept = accepted(draft, verified, verified)
        assert 1 <= len(kept) <= len(draft) + 1
        assert list(draft[: len(kept) - 1]) == kept[:-1]
        text += kept
    assert text[:count] == plain


def test_no_draft_pays_if_its_tokens_are_seldom_right_or_columns_are_dear() -> None:
    def linear(width: int) -> float:
        return 1.0 * width

    assert best_length([0.9] * 32, 1.0, linear) == (0, 1.0)
    assert best_length([0.05] * 32, 1.0, lambda width: 0.9 + 0.1 * width)[0] == 0


@given(st.floats(0.0, 1.0), st.floats(0.01, 1.0))
def test_the_best_length_is_the_best_of_all(rate: float, column_s: float) -> None:
    def verify_s(width: int) -> float:
        return 1.0 + column_s * (width - 1)

    length, gain = best_length([rate] * 32, 1.0, verify_s)
    expected = {
        number: sum(rate**power for power in range(number + 1)) / verify_s(1 + number)
        for number in (0, *LENGTHS)
    }
    if length:
        assert abs(gain - max(expected.values())) < 1e-6
    else:
        assert max(expected.values()) <= 1.05 + 1e-6


def test_a_step_is_awaited_only_if_a_good_draft_may_follow() -> None:
    def verify_s(width: int) -> float:
        return 1.0 + 0.1 * (width - 1)

    assert worth_waiting([0.9] * 9, 1.0, verify_s)
    assert not worth_waiting([0.9], 1.0, verify_s)
    assert not worth_waiting([0.02, *[0.9] * 8], 1.0, verify_s)


def test_auto_drafts_only_where_the_text_stays_the_same() -> None:
    assert why_no_drafts("auto", verifies=True, promises_identity=True) == ""
    assert "float32" in why_no_drafts("auto", verifies=True, promises_identity=False)
    assert why_no_drafts("ngram", verifies=True, promises_identity=False) == ""
    assert why_no_drafts("ngram", verifies=False, promises_identity=True) != ""
    assert why_no_drafts("off", verifies=True, promises_identity=True) != ""
