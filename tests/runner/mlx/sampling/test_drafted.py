"""A draft of any quality gives the text that there would be without it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bus.wire.ids import TokenId
from runner.mlx.sampling.drafted import accepted

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
