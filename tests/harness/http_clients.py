"""Clients of a gateway as tests need them: whole answers, streams read in a thread, raw sockets."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

import httpx

from bus.process.clock import now
from tests.harness.gateway_testbed import MODEL, GatewayTestbed, Runner, eventually


def ready(made: GatewayTestbed) -> bool:
    """Whether the HTTP process that takes the question knows an instance; one that is only
    beginning, or ending, does not."""
    try:
        answer = httpx.get(f"{made.url}/health", verify=made.trust)
    except httpx.HTTPError:
        return False
    return answer.is_success and MODEL in answer.json().get("models_ready", ())


def body(orders: str, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": orders}], **more}


def chat(made: GatewayTestbed, orders: str, **more: Any) -> httpx.Response:
    url, asked = f"{made.url}/v1/chat/completions", body(orders, **more)
    return httpx.post(url, json=asked, timeout=30, verify=made.trust)


class Reader:
    """A stream read in a thread: its lines, when they came, how it ended."""

    def __init__(self, made: GatewayTestbed, orders: str, **more: Any) -> None:
        self.lines: list[str] = []
        self.status = 0
        self.ended_at: float | None = None
        self._made, self._body = made, body(orders, stream=True, **more)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def wait_lines(self, count: int) -> None:
        eventually(lambda: len(self.lines) >= count, 15, f"{count} lines")

    def wait_end(self, timeout_s: float) -> float:
        eventually(lambda: self.ended_at is not None, timeout_s, "the stream ends")
        assert self.ended_at is not None
        return self.ended_at

    @property
    def chunks(self) -> list[dict[str, Any]]:
        data = [line[6:] for line in self.lines if line.startswith("data: {")]
        return [json.loads(one) for one in data]

    @property
    def text(self) -> str:
        return "".join(
            one["choices"][0]["delta"].get("content", "")
            for one in self.chunks
            if one.get("choices")
        )

    @property
    def error(self) -> dict[str, Any] | None:
        return next((one["error"] for one in self.chunks if "error" in one), None)

    def _read(self) -> None:
        url = f"{self._made.url}/v1/chat/completions"
        with (
            httpx.Client(timeout=60, verify=self._made.trust) as client,
            client.stream("POST", url, json=self._body) as response,
        ):
            self.status = response.status_code
            self.lines.extend(line for line in response.iter_lines() if line)
        self.ended_at = now()


def cancels_of(runner: Runner, request: str) -> list[dict[str, Any]]:
    return [one for one in runner.heard("cancel") if one["request"] == request]


def send_raw(made: GatewayTestbed, orders: str, *, stream: bool, **more: Any) -> socket.socket:
    data = json.dumps(body(orders, stream=stream, **more)).encode()
    connection = socket.create_connection(("127.0.0.1", made.port))
    connection.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data)
    )
    return connection


def answered(url: str) -> httpx.Response | None:
    try:
        return httpx.get(url, timeout=2)
    except httpx.HTTPError:
        return None
