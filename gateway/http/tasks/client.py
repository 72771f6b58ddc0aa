"""Talks to a client's connection: tells the candidate of a task that is being tried when the client
disconnects.

Only one asyncio task can call the connection's `receive`. So one task listens here for the whole
request, and each candidate waits for the disconnect in `WatchedClient.receive`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

from gateway.http.middleware import Receive
from gateway.http.running import hung_up

HUNG_UP = {"type": "http.disconnect"}


class WatchedClient:
    """A client whose body was read, and whose connection is watched."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = asyncio.Event()
        self._acts: list[Callable[[], None]] = []
        self._task = asyncio.ensure_future(self._watch())

    @property
    def is_gone(self) -> bool:
        """Return whether the client has disconnected."""
        return self._gone.is_set()

    async def receive(self) -> dict[str, Any]:
        """Wait until the client disconnects; then return `HUNG_UP`."""
        await self._gone.wait()
        return HUNG_UP

    def on_gone(self, act: Callable[[], None]) -> None:
        """Call `act` when the client disconnects; immediately if it already has."""
        if self.is_gone:
            act()
        self._acts.append(act)

    def leave(self) -> None:
        """Stop watching the connection."""
        self._task.cancel()

    async def to_its_end(self, stream: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        """Yield the pieces of a stream, and stop watching at its end."""
        try:
            async with contextlib.aclosing(stream):
                async for piece in stream:
                    yield piece
        finally:
            self.leave()

    async def _watch(self) -> None:
        await hung_up(self._receive)
        self._gone.set()
        for act in self._acts:
            act()
