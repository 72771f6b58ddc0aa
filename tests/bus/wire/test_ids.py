"""Ids, as anybody may write them."""

from __future__ import annotations

import pytest

from bus.wire.ids import RequestId, is_model_id, owner_of, request_id


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
