"""Models of a hub over HTTP, with a real ROUTER where the worker would be."""

from __future__ import annotations

import asyncio
import tempfile
from types import SimpleNamespace
from typing import Any

import pytest
from falcon import testing
from falcon.asgi import App

from bus.client import Speaker
from bus.links.reactor import AsyncioReactor
from bus.links.transport import Link
from bus.process.endpoints import Endpoints
from bus.wire.cards import ModelCard, NodeCard
from bus.wire.codec import Envelope, decode, encode
from bus.wire.errors import BadRequest
from bus.wire.ids import Boot, ModelId, NodeId
from bus.wire.messages.gateways import AskSearch, FoundModel, SearchFound, SearchRefused
from bus.wire.messages.wire import Message
from gateway.dialects.faults import HttpFaultRaised, of_error
from gateway.http.resources.pulls import SearchAnswer, SearchModels
from tests.recorded.specimens import least

SPEAKER = Speaker(NodeId("n1"), "gateway:0", Boot("b1"))
FOUND = FoundModel(model=ModelId("Org/M"), for_mlx=True, size_bytes=5, downloads=7)


async def _told(req: Any, resp: Any, error: Exception, params: Any) -> None:
    fault = of_error(error)
    assert fault is not None
    resp.status = fault.status
    resp.media = {"code": fault.code, "field": fault.field, "retry": fault.retry_after_s}


async def _known() -> None:
    """Every card is known."""


def asked(path: str, answer: Message) -> tuple[testing.Result, list[Message]]:
    """What a client gets, and what the worker was asked."""
    questions: list[Message] = []

    async def main(folder: str) -> testing.Result:
        endpoints = Endpoints(folder)
        reactor = AsyncioReactor(asyncio.get_running_loop())
        worker = Link("router")
        worker.bind(endpoints.worker)

        def answered(frames: list[bytes]) -> None:
            questions.append(decode(frames[-1]).message)
            worker.send(frames[0], encode(Envelope(NodeId("n1"), "worker", Boot("w"), 1, answer)))

        reactor.watch(worker, answered)
        own = least(ModelCard).model_copy(update={"model": ModelId("org/m")})
        card = least(NodeCard).model_copy(update={"name": "desk", "models": (own,)})

        def known(_now: float) -> list[NodeCard]:
            return [card]

        cluster = SimpleNamespace(
            bus=SimpleNamespace(speaker=SPEAKER, endpoints=endpoints, reactor=reactor),
            readings=SimpleNamespace(cards=known),
            catalog=SimpleNamespace(wait_known=_known),
            reactor=reactor,
            options=SimpleNamespace(node="n1"),
        )
        app: App[Any, Any] = App()
        for kind in (HttpFaultRaised, BadRequest):
            app.add_error_handler(kind, _told)
        handle: Any = SimpleNamespace(service=SimpleNamespace(cluster=cluster))
        app.add_route("/models/search", SearchModels(handle))
        try:
            async with testing.ASGIConductor(app) as conductor:
                return await conductor.simulate_get(path)
            raise AssertionError("the conductor kept its error")
        finally:
            reactor.unwatch(worker)
            worker.close()

    with tempfile.TemporaryDirectory(prefix="shoal-search-", dir="/tmp") as folder:
        return asyncio.run(main(folder)), questions


def test_what_the_worker_found_is_told_with_the_nodes_that_have_it() -> None:
    answer = SearchFound(hub="https://hub", models=(FOUND,), left_out=2)
    found, questions = asked("/models/search?query=qwen3%20%200.6b&author=org&limit=3", answer)
    assert questions == [AskSearch(words="qwen3 0.6b", author="org", limit=3)]
    told = SearchAnswer.model_validate(found.json)
    assert (told.query, told.hub, told.left_out) == ("qwen3 0.6b", "https://hub", 2)
    (one,) = told.models
    assert (one.model, one.here, one.size_bytes) == ("Org/M", ["desk"], 5)
    assert (one.family, one.quantization, one.changed_at) == (None, None, None)


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/models/search", "query"),
        ("/models/search?query=%20", "query"),
        ("/models/search?query=x&limit=0", "limit"),
        ("/models/search?query=x&limit=51", "limit"),
        (f"/models/search?query={'x' * 201}", "query"),
        ("/models/search?query=x&author=a%07", "author"),
    ],
)
def test_a_question_that_cannot_be_asked_names_its_field(path: str, field: str) -> None:
    refused, questions = asked(path, SearchFound(hub="h"))
    assert (refused.status_code, refused.json["field"]) == (400, field)
    assert not questions


@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [
        ("offline", 409, "offline"),
        ("rate_limited", 429, "hub_rate_limited"),
        ("unreachable", 502, "hub_unreachable"),
        ("unauthorized", 502, "hub_unauthorized"),
        ("busy", 429, "queue_full"),
        ("broken", 500, "internal_error"),
    ],
)
def test_what_keeps_the_worker_from_finding_out_is_a_status(
    reason: Any, status: int, code: str
) -> None:
    refusal = SearchRefused(reason=reason, message="why", retry_after_s=30.0)
    refused, _ = asked("/models/search?query=x", refusal)
    assert (refused.status_code, refused.json["code"]) == (status, code)
