"""Reranking through a real gateway and a synthetic runner: order, limits, ends, wrong models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from bus.wire.ids import ModelId
from gateway.dialects.reranking.dialect import chance
from tests.harness.gateway_testbed import MODEL, GatewayTestbed, gateway_testbed


@pytest.fixture(scope="module")
def testbed() -> Iterator[GatewayTestbed]:
    with gateway_testbed() as made:
        made.publish_card(embedding=("embedder",), reranking=("reranker",))
        made.place(made.runner(place=False), ModelId("reranker"))
        yield made


def post(testbed: GatewayTestbed, path: str, **fields: Any) -> httpx.Response:
    body = {"model": "reranker", "query": "q", **fields}
    return httpx.post(f"{testbed.url}{path}", json=body, timeout=30)


@pytest.mark.parametrize(
    ("path", "count"), [("/v1/rerank", 2048), ("/v2/rerank", 5), ("/rerank", 5)]
)
def test_the_best_documents_come_first(testbed: GatewayTestbed, path: str, count: int) -> None:
    documents = ["a" * (1 + number % 7) for number in range(count)]
    answered = post(testbed, path, documents=documents, top_n=9, return_documents=True)
    assert answered.status_code == 200, answered.text[:500]
    answer = answered.json()
    order = sorted(range(count), key=lambda at: (-len(documents[at]), at))[:9]
    assert answer["results"] == [
        {
            "index": at,
            "relevance_score": pytest.approx(chance(len(documents[at]))),
            "document": {"text": documents[at]},
        }
        for at in order
    ]
    assert answer["usage"]["total_tokens"] == sum(map(len, documents))
    assert answer["id"] == answered.headers["x-request-id"]


def test_a_document_that_was_cut_is_named_in_a_header(testbed: GatewayTestbed) -> None:
    documents = ["short", "cut=1"]
    cut = post(testbed, "/v1/rerank", documents=documents, truncate_prompt_tokens=-1)
    assert cut.headers["x-shoal-truncated"] == "1"


def test_a_failure_has_a_status_of_its_own(testbed: GatewayTestbed) -> None:
    failed = post(testbed, "/v1/rerank", documents=["fail=context_length", "a"])
    assert (failed.status_code, failed.json()["error"]["code"]) == (400, "context_length_exceeded")
    full = post(testbed, "/v1/rerank", documents=["refuse=queue_full"])
    assert full.status_code == 429
    lost = post(testbed, "/v1/rerank", documents=["fail=runner_lost"])
    assert lost.status_code == 503 and lost.headers["retry-after"]


@pytest.mark.parametrize(
    ("path", "fields", "status", "words"),
    [
        ("/v1/rerank", {"model": MODEL}, 400, "does not support reranking: it is a text model"),
        ("/v1/rerank", {"model": MODEL}, 400, "use a reranker: reranker"),
        ("/v1/rerank", {"model": "embedder"}, 400, "it is an embedding model"),
        ("/v1/rerank", {"model": "nowhere"}, 404, "model 'nowhere' not found"),
        ("/v1/rerank", {"documents": []}, 400, "documents"),
        ("/v1/embeddings", {"input": "hi"}, 400, "it is a reranker"),
        ("/v1/embeddings", {"input": "hi"}, 400, "use an embedding model: embedder"),
        ("/api/embed", {"input": "hi"}, 400, "it is a reranker"),
        ("/v1/completions", {"prompt": "hi"}, 400, "it is a reranker"),
        ("/tokenize", {"prompt": "hi"}, 400, "it is a reranker"),
    ],
)
def test_a_request_to_the_wrong_model_says_which_to_use(
    testbed: GatewayTestbed, path: str, fields: dict[str, Any], status: int, words: str
) -> None:
    body = {"documents": ["a"]} if path == "/v1/rerank" else {}
    refused = post(testbed, path, **{**body, **fields})
    assert (refused.status_code, words in refused.text) == (status, True), refused.text


def test_listings_and_the_request_log_have_it(testbed: GatewayTestbed) -> None:
    models = httpx.get(f"{testbed.url}/v1/models").json()["data"]
    can = {model["id"]: model["capabilities"] for model in models}
    assert can["reranker"] == ["rerank"]
