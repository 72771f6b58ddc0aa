"""The kinds of KV, and the bytes of each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.wire.kv import BITS, GROUPS, KINDS, KvKind, group_of, held_bytes, not_a_kind

heads = st.sampled_from((32, 64, 96, 128, 192, 256, 512, 576))


@given(st.lists(heads, min_size=1, max_size=3))
def test_a_group_divides_every_head_and_is_the_largest_that_does(widths: list[int]) -> None:
    group = group_of(*widths)
    assert group in GROUPS and all(width % group == 0 for width in widths)
    assert not any(all(width % one == 0 for width in widths) for one in GROUPS if one > group)


@pytest.mark.parametrize("width", [0, 16, 20, 80, 112])
def test_heads_that_no_group_divides_have_none(width: int) -> None:
    assert group_of(128, width) == 0


@given(st.integers(1, 10_000), heads, st.sampled_from((2, 4)), st.sampled_from(sorted(BITS)))
def test_fewer_bits_take_codes_and_two_wide_numbers_a_group(
    vectors: int, width: int, value_bytes: int, kind: KvKind
) -> None:
    group = group_of(width)
    full = vectors * width * value_bytes
    held = held_bytes(full, kind, value_bytes, group)
    groups = vectors * width // group
    assert held == vectors * width * BITS[kind] // 8 + groups * 2 * value_bytes
    assert held < full
    assert held_bytes(full, "full", value_bytes, group) == full
    assert held_bytes(full, kind, value_bytes, 0) == full
    assert held_bytes(full, kind, 0, group) == full


def test_a_word_that_is_no_kind_is_told_what_is() -> None:
    assert all(not_a_kind(kind) is None for kind in KINDS)
    assert "rotated KV is not there yet" in (not_a_kind("rotated") or "")
    assert "a window with sinks is not there yet" in (not_a_kind("window") or "")
    assert "q8_0 is 8bit here" in (not_a_kind("q8_0") or "")
    for word in ("", "5bit", 8.5, None, True, "turbo"):
        assert "full, 8bit or 4bit" in (not_a_kind(word) or "")
