"""The kinds of KV, and the bytes of each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from bus.wire.kv import (
    BITS,
    GROUPS,
    KINDS,
    SINKS,
    KvKind,
    group_of,
    held_bytes,
    kind_for,
    not_a_kind,
    window_bytes,
    window_of,
)

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
    assert "rotated KV is not supported" in (not_a_kind("rotated") or "")
    assert "q8_0 is called 8bit here" in (not_a_kind("q8_0") or "")
    for word in ("", "5bit", 8.5, None, True, "turbo"):
        assert "full, 8bit, 4bit or a window such as window:4096" in (not_a_kind(word) or "")


@given(st.integers(16, 9_999_999), st.integers(1, 1 << 20), st.integers(1, 1 << 17))
def test_a_window_takes_its_tokens_and_its_sinks_and_nothing_that_grows(
    tokens: int, context: int, a_token: int
) -> None:
    kind = f"window:{tokens}"
    assert not_a_kind(kind) is None and window_of(kind) == tokens
    assert TypeAdapter(KvKind).validate_python(kind) == kind
    assert held_bytes(a_token, kind, 2, 64) == held_bytes(a_token, kind, 2, 0) == 0
    assert window_bytes(a_token, kind, context) == a_token * min(context, tokens + SINKS)
    assert all(window_bytes(a_token, other, context) == 0 for other in KINDS)


@pytest.mark.parametrize(
    "word",
    ["window", "window:", "window:15", "window:0", "window:016", "window:-20", "window:4k",
     "window:10000000", "window:4096 ", "window:4096\n", "Window:4096"],
)  # fmt: skip
def test_a_window_without_a_number_of_tokens_is_no_kind(word: str) -> None:
    assert "a window needs its number of tokens, 16 to 9999999" in (not_a_kind(word) or "")
    with pytest.raises(ValidationError):
        TypeAdapter(KvKind).validate_python(word)


def test_what_a_family_cannot_do_stays_in_full_width() -> None:
    assert kind_for("8bit", 0, windows=True) == "full"
    assert kind_for("8bit", 32, windows=False) == "8bit"
    assert kind_for("window:64", 0, windows=True) == "window:64"
    assert kind_for("window:64", 32, windows=False) == "full"
    assert kind_for("full", 32, windows=True) == "full"
