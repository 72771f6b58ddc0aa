"""Embeddings through a real gateway and a synthetic runner: sizes, flags, ends, wrong models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from bus.wire.ids import ModelId
from tests.harness.gateway_testbed import MODEL, GatewayTestbed, gateway_testbed


@pytest.fixture(scope="module")
def testbed() -> Iterator[GatewayTestbed]:
    with gateway_testbed() as made:
        made.publish_card(embedding=("embedder",))
        made.place(made.runner(place=False), ModelId("embedder"))
        yield made


def post(testbed: GatewayTestbed, path: str, **fields: Any) -> httpx.Response:
    body = {"model": "embedder", **fields}
    return httpx.post(f"{testbed.url}{path}", json=body, timeout=30)


@pytest.mark.parametrize(
    ("path", "count"), [("/v1/embeddings", 2048), ("/api/embed", 300), ("/ollama/api/embed", 30)]
)
def test_all_of_many_inputs_come_back_in_their_order(
    testbed: GatewayTestbed, path: str, count: int
) -> None:
    texts = ["a" * (1 + number % 7) for number in range(count)]
    answered = post(testbed, path, input=texts, dimensions=64)
    assert answered.status_code == 200, answered.text[:500]
    answer = answered.json()
    vectors = answer.get("embeddings") or [one["embedding"] for one in answer["data"]]
    wanted = [[float(len(text)), float(number)] for number, text in enumerate(texts)]
    assert [one[:2] for one in vectors] == wanted
    assert {len(one) for one in vectors} == {64}
    assert "x-shoal-truncated" not in answered.headers


def test_what_was_cut_is_named_in_a_header(testbed: GatewayTestbed) -> None:
    inputs = ["short", "cut=1", "cut=1 too"]
    for path, allowed in (("/v1/embeddings", {"truncate_prompt_tokens": -1}), ("/api/embed", {})):
        told = post(testbed, path, input=inputs, **allowed)
        assert told.headers["x-shoal-truncated"] == "1, 2"
    many = post(testbed, "/api/embed", input=["cut=1"] * 200)
    assert many.headers["x-shoal-truncated"].endswith("127, +more")
    assert "x-shoal-truncated" not in post(testbed, "/v1/embeddings", input=inputs).headers
    older = post(testbed, "/api/embeddings", prompt="cut=1")
    assert (older.headers["x-shoal-truncated"], older.json()) == ("0", {"embedding": [5.0, 0.0]})


def test_an_end_that_comes_late_is_a_status_of_its_own(testbed: GatewayTestbed) -> None:
    failed = post(testbed, "/v1/embeddings", input=["fail=context_length", *["a"] * 99])
    assert failed.status_code == 400
    error = failed.json()["error"]
    assert (error["code"], error["param"], error["limit_tokens"]) == (
        "context_length_exceeded",
        "input",
        8,
    )
    lost = post(testbed, "/api/embed", input="fail=runner_lost")
    assert lost.status_code == 503 and lost.headers["retry-after"]
    full = post(testbed, "/v1/embeddings", input="refuse=queue_full")
    assert full.status_code == 429


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}),
        ("/api/chat", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/tokenize", {"prompt": "hi"}),
    ],
)
def test_an_embedding_model_is_not_asked_for_text(
    testbed: GatewayTestbed, path: str, fields: dict[str, Any]
) -> None:
    def embedded() -> httpx.Response:
        return post(testbed, "/v1/embeddings", input="hi")

    before = testbed.runners[0].asked_so_far(embedded)
    refused = post(testbed, path, **fields)
    assert refused.status_code == 400, refused.text
    assert "it is an embedding model" in refused.text
    assert testbed.runners[0].asked_so_far(embedded) == before + 1


@pytest.mark.parametrize("path", ["/v1/embeddings", "/api/embed"])
def test_a_text_model_is_not_asked_for_embeddings(testbed: GatewayTestbed, path: str) -> None:
    refused = post(testbed, path, model=MODEL, input="hi")
    assert refused.status_code == 400
    assert f"'{MODEL}' does not support embeddings" in refused.text
    assert "embedder" in refused.text


def test_listings_say_what_a_model_makes(testbed: GatewayTestbed) -> None:
    models = httpx.get(f"{testbed.url}/v1/models").json()["data"]
    can = {one["id"]: one["capabilities"] for one in models}
    assert can == {"embedder": ["embedding"], MODEL: ["completion"], "org/other": ["completion"]}
    shown = httpx.post(f"{testbed.url}/api/show", json={"model": "embedder"}).json()
    assert shown["capabilities"] == ["embedding"]
