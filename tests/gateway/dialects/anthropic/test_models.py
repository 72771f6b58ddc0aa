"""Models as Anthropic's clients list them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bus.wire.errors import BadRequest
from gateway.dialects.anthropic.models import render_model, render_models
from gateway.dialects.dialect import LoadedCopy, ModelListing

HERE = [ModelListing(id=f"m{number}", size_bytes=1, modified_at_s=0.0) for number in range(5)]


def _page(**query: str) -> dict[str, Any]:
    return json.loads(render_models(HERE, query))


def _ids(page: dict[str, Any]) -> list[str]:
    return [one["id"] for one in page["data"]]


def test_all_models_are_one_page_unless_fewer_are_asked_for() -> None:
    page = _page()
    assert _ids(page) == ["m0", "m1", "m2", "m3", "m4"]
    assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "m0", "m4")


def test_pages_one_after_another_hold_every_model_once() -> None:
    seen, page = [], _page(limit="2")
    while True:
        seen += _ids(page)
        if not page["has_more"]:
            break
        page = _page(limit="2", after_id=page["last_id"])
    assert seen == ["m0", "m1", "m2", "m3", "m4"]


def test_pages_go_backwards_too() -> None:
    page = _page(limit="2", before_id="m4")
    assert (_ids(page), page["has_more"]) == (["m2", "m3"], True)
    page = _page(limit="2", before_id="m2")
    assert (_ids(page), page["has_more"]) == (["m0", "m1"], False)
    assert _ids(_page(after_id="m4")) == [] and _page(after_id="m4")["last_id"] is None


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "1001"}, "limit"),
        ({"limit": "ten"}, "limit"),
        ({"after_id": "elsewhere"}, "after_id"),
        ({"before_id": "elsewhere"}, "before_id"),
        ({"after_id": "m0", "before_id": "m1"}, "before_id"),
    ],
)
def test_a_query_that_cannot_be_honoured_is_refused_by_name(
    query: dict[str, str], field: str
) -> None:
    with pytest.raises(BadRequest) as refusal:
        _page(**query)
    assert refusal.value.field == field


def test_a_model_tells_what_its_loaded_copies_take_and_leaves_out_what_is_not_known() -> None:
    copies = tuple(LoadedCopy(1, 1, context_tokens=tokens) for tokens in (4096, 2048))
    known = ModelListing(
        id="m", size_bytes=1, modified_at_s=1_763_640_000.9, context_tokens=8192, loaded=copies
    )
    assert json.loads(render_model(known)) == {
        "type": "model",
        "id": "m",
        "display_name": "m",
        "created_at": "2025-11-20T12:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": 2047,
        "max_tokens": 2047,
    }
    assert "max_tokens" not in json.loads(render_model(HERE[0]))
