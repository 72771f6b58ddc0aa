"""Talks to a client's connection: reports a hang-up to each candidate that answers in turn.

A connection cannot be listened to a second time. So one task listens here, and each candidate waits
for the hang-up in `receive`.
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
    """A client whose body was read."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = asyncio.Event()
        self._acts: list[Callable[[], None]] = []
        self._task = asyncio.ensure_future(self._watch())

    @property
    def is_gone(self) -> bool:
        """Return whether the client has hung up."""
        return self._gone.is_set()

    async def receive(self) -> dict[str, Any]:
        """Wait until the client hangs up; return `HUNG_UP`."""
        await self._gone.wait()
        return HUNG_UP

    def on_gone(self, act: Callable[[], None]) -> None:
        """Call `act` when the client hangs up; at once if it already has."""
        if self.is_gone:
            act()
        self._acts.append(act)

    def leave(self) -> None:
        """Stop listening."""
        self._task.cancel()

    async def to_its_end(self, stream: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        """Yield the pieces of a stream; stop listening at its end."""
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
