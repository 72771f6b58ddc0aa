"""Rerank requests: what a body asks for, what is refused, and how scores are written."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from bus.wire.messages.requests import InputsPrompt, Usage
from bus.wire.messages.tokens import ChoiceEnd, Finished, Vectors
from gateway.dialects.registry import endpoint_at
from gateway.dialects.reranking import REFUSED, Rerank
from gateway.dialects.reranking.answers import RerankAnswer
from gateway.dialects.reranking.dialect import chance

RERANK = Rerank()
BODY: dict[str, Any] = {"model": "bge", "query": "q", "documents": ["a", {"text": "b"}, "c"]}


def answer_of(desk: Any, logits: Sequence[float], **fields: Any) -> dict[str, Any]:
    parsed = desk.parse(RERANK, {**BODY, "documents": ["d"] * len(logits), **fields})
    ours = parsed.requests[0].request_id
    vectors = tuple(struct.pack("<f", logit) for logit in logits)
    entries = [
        Vectors(ours, 0, 0, 0, vectors[:1]),
        Vectors(ours, 0, 0, 1, vectors[1:]),
        ChoiceEnd(ours, 0, 0, "stop", None),
        Finished(ours, 0, Usage(prompt_tokens=12)),
    ]
    return json.loads(RERANK.render_whole(parsed, desk.collect(parsed, entries)))


def test_a_body_becomes_one_request(desk: Any) -> None:
    (request,) = desk.parse(RERANK, BODY).requests
    assert request.prompt == InputsPrompt(query="q", inputs=("a", "b", "c"))
    assert request.wants == "reranker"
    more = {"truncate_prompt_tokens": -1, "user": "me", "x_priority": "batch", "top_n": 9}
    (request,) = desk.parse(RERANK, {**BODY, **more}).requests
    assert isinstance(request.prompt, InputsPrompt) and request.prompt.cut
    assert (request.client_id, request.priority) == ("me", 50)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"query": None}, "query"),
        ({"query": ""}, "query"),
        ({"query": ["q"]}, "query"),
        ({"documents": None}, "documents"),
        ({"documents": []}, "documents"),
        ({"documents": "a"}, "documents"),
        ({"documents": ["a", ""]}, "documents[1]"),
        ({"documents": ["a", {"text": ""}]}, "documents[1]"),
        ({"documents": ["a", {"title": "t"}]}, "documents[1].text"),
        ({"documents": ["a", 3]}, "documents[1]"),
        ({"documents": ["x"] * 2049}, "documents"),
        ({"top_n": 0}, "top_n"),
        ({"top_n": -1}, "top_n"),
        ({"top_n": 1.5}, "top_n"),
        ({"return_documents": "yes"}, "return_documents"),
        ({"truncate_prompt_tokens": 64}, "truncate_prompt_tokens"),
        ({"model": "no model"}, "model"),
        *(({name: "yes"}, name) for name in REFUSED),
    ],
)
def test_a_bad_body_is_refused_by_its_field(desk: Any, fields: dict[str, Any], field: str) -> None:
    assert desk.refusal(RERANK, {**BODY, **fields}).field == field


@given(logits=st.lists(st.floats(-80, 80, width=32), min_size=1, max_size=20), data=st.data())
def test_results_are_sorted_by_score(desk: Any, logits: list[float], data: st.DataObject) -> None:
    top_n = data.draw(st.none() | st.integers(1, 25))
    answer = answer_of(desk, logits, **({} if top_n is None else {"top_n": top_n}))
    TypeAdapter(RerankAnswer).validate_python(answer, strict=True)
    results = answer["results"]
    whole = sorted(range(len(logits)), key=lambda at: (-logits[at], at))
    assert [each["index"] for each in results] == whole[:top_n]
    scores = [each["relevance_score"] for each in results]
    assert scores == sorted(scores, reverse=True) and all(0 <= score <= 1 for score in scores)
    assert (answer["object"], answer["model"]) == ("list", "bge")
    assert answer["usage"] == {"prompt_tokens": 12, "total_tokens": 12}


def test_a_score_is_the_probability_of_the_odds() -> None:
    assert chance(0.0) == 0.5
    assert chance(math.log(3)) == pytest.approx(0.75)
    assert chance(-1e6) == pytest.approx(0.0) and chance(1e6) == 1.0


def test_documents_are_returned_only_if_asked_for(desk: Any) -> None:
    assert "document" not in answer_of(desk, [0.0, 1.0])["results"][0]
    fields = {"documents": ["a", {"text": "b"}], "return_documents": True}
    results = answer_of(desk, [0.0, 1.0], **fields)["results"]
    assert [each["document"] for each in results] == [{"text": "b"}, {"text": "a"}]


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_each_known_path_reranks(path: str) -> None:
    endpoint = endpoint_at(path)
    assert endpoint is not None and endpoint.dialect.name == "rerank"
