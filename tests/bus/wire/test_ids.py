"""Ids, as anybody may write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.wire.ids import RequestId, ids_for, is_model_id, owner_of, request_id, sayable


@pytest.mark.parametrize("text", ["shoal-tiny", "org/name", "org/name:4b", "a" * 200])
def test_a_model_id_is_a_name_perhaps_with_an_owner_and_a_tag(text: str) -> None:
    assert is_model_id(text)


@pytest.mark.parametrize(
    "text", ["", "a\n", "a/b\n", "a:b\n", "../a", "a/../b", "a/b/c", "a b", "ä", "a" * 201, "/a"]
)
def test_nothing_else_is_a_model_id(text: str) -> None:
    assert not is_model_id(text)


def test_a_request_id_tells_its_owner() -> None:
    made = request_id("n1", "h0", "b0", 255)  # type: ignore[arg-type]
    assert owner_of(made) == ("n1", "h0")
    assert owner_of(RequestId("req-n1-h0")) is None


NAMES = st.text(min_size=1, max_size=300) | st.text("azAZ09._-/", min_size=1, max_size=20)


@given(NAMES)
def test_any_name_becomes_an_id_and_an_id_stays_as_it_is(name: str) -> None:
    assert is_model_id(sayable(name))
    if is_model_id(name):
        assert sayable(name) == name


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("a blank", "a-blank"), ("größe", "grosse"), ("Qwen (4 bit)", "Qwen-4-bit"),
        ("owner/two words", "owner/two-words"), ("模型", "model"), ("../up", "model/up"),
    ],
)  # fmt: skip
def test_an_id_is_like_its_folders_name(name: str, model: str) -> None:
    assert sayable(name) == model


@given(st.lists(NAMES | st.sampled_from(["a b", "a-b", "A b", "a  b", "ä b"]), max_size=8))
def test_names_get_ids_of_their_own_whatever_their_order(names: list[str]) -> None:
    found = ids_for(names)
    assert found == ids_for(reversed(names)) and found.keys() == set(names)
    assert all(found[name] == name for name in names if is_model_id(name))
    assert len(set(found.values())) == len(found)
