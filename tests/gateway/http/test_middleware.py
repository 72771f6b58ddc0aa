"""Bodies, as they are read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from falcon import testing
from falcon.asgi import App, Request, Response

from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.http.app import ReceiveTap
from gateway.http.middleware import LEFT_BYTES, ErrorHandlers, read_body
from gateway.requests.body_budget import BodyBudget


def request(stream: AsyncIterator[bytes]) -> Request:
    """Return a request of unknown length with this body."""
    return cast(
        Any, SimpleNamespace(content_length=None, stream=stream, get_header={}.get, scope={})
    )


def test_a_piece_in_the_turn_in_which_the_time_is_over_does_not_hide_the_timeout() -> None:
    """As `asyncio.wait_for` of Python 3.11 does, under which gunicorn waits for pieces."""

    async def stream() -> AsyncIterator[bytes]:
        yield b"{"
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            yield b" "
        await asyncio.sleep(5)

    budget = BodyBudget(100)
    with pytest.raises(HttpFaultRaised) as raised:
        asyncio.run(read_body(request(stream()), 100, 0.05, budget))
    assert raised.value.fault.status == 408
    assert "not complete within" in raised.value.fault.message
    assert budget.held_bytes == 0


def test_a_body_that_comes_slowly_but_in_time_is_read_whole() -> None:
    async def stream() -> AsyncIterator[bytes]:
        for piece in (b"{", b"}"):
            yield piece
            await asyncio.sleep(0.02)

    assert asyncio.run(read_body(request(stream()), 100, 60.0)) == b"{}"


@pytest.mark.parametrize("reads", [True, False])
def test_a_connection_is_closed_after_an_error_unless_its_long_body_was_read(reads: bool) -> None:
    class Refusing:
        async def on_post(self, req: Request, resp: Response) -> None:
            if reads:
                await read_body(req, 2 * LEFT_BYTES, 5.0)
            raise HttpFaultRaised(HttpFault(400, "invalid_value", "no"))

    metrics = SimpleNamespace(fault=lambda _status: None)
    service = SimpleNamespace(parts=SimpleNamespace(metrics=metrics))
    app: App[Any, Any] = App()
    ErrorHandlers(cast(Any, SimpleNamespace(service=service))).install(app)
    app.add_route("/refused", Refusing())
    answer = testing.TestClient(app).simulate_post("/refused", body=b" " * (LEFT_BYTES + 1))
    assert answer.status_code == 400
    assert (answer.headers.get("connection") == "close") is not reads


def test_head_is_answered_as_get_without_the_body() -> None:
    asked: list[str] = []
    sent: list[dict[str, Any]] = []

    async def app(scope: dict[str, Any], _receive: Any, send: Any) -> None:
        asked.append(scope["method"])
        headers = [(b"content-length", b"5")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"hello", "more_body": False})

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    scope = {"type": "http", "method": "HEAD", "path": "/api/tags", "headers": []}
    asyncio.run(ReceiveTap(app)(scope, cast(Any, None), send))
    assert asked == ["GET"]
    assert scope["method"] == "HEAD", "the server's own scope stays as it was"
    start, body = sent
    assert start["headers"] == [(b"content-length", b"5")]
    assert body == {"type": "http.response.body", "body": b"", "more_body": False}
