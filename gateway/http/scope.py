"""The data of shoal in the ASGI scope of a request: one typed value under one key.

Pure. The server puts it there with the request's arrival, and `ReceiveTap` completes it. Clients
cannot set it, because the server builds scopes only from the bytes that they send.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from falcon.asgi import Request

from gateway.access import Caller
from gateway.records import JobRun

Receive = Callable[[], Awaitable[dict[str, Any]]]
KEY = "shoal"


async def _no_client() -> dict[str, Any]:
    return {"type": "http.disconnect"}


@dataclass(slots=True)
class RequestScope:
    """The facts about a request beside its bytes.

    - `came_at`: when its first byte was read, by the clock `bus.process.clock.now`; 0 if unknown.
    - `noted`: facts about the connection; the dict lives as long as the connection.
    - `receive`: the connection's ASGI `receive`, for use after the body was read.
    - `run`: the attempt of a job that sends the request; None for a client's own request.
    - `caller`: None until the access checks, and for a caller without a required key.
    - `at_end`: functions to call after the answer.
    - `is_read`, `is_cut`: whether the whole body was read; whether the client disconnected before.
    """

    came_at: float = 0.0
    noted: MutableMapping[str, Any] = field(default_factory=dict[str, Any])
    receive: Receive = _no_client
    run: JobRun | None = None
    caller: Caller | None = None
    at_end: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    is_read: bool = False
    is_cut: bool = False


def scope_of(req: Request) -> RequestScope:
    """Return the data of a request; empty data if the request did not pass `ReceiveTap`."""
    noted: RequestScope | None = req.scope.get(KEY)
    if noted is None:
        noted = req.scope[KEY] = RequestScope()
    return noted
