"""Talks to a client's connection: whether it is still there, for all who answer it in turn.

A connection that was once listened to and left cannot be listened to again. So it is listened to
here, once, and each candidate that is asked hears of its end by `receive`.
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
    """A client, from when its body was read on."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = asyncio.Event()
        self._acts: list[Callable[[], None]] = []
        self._task = asyncio.ensure_future(self._watch())

    @property
    def is_gone(self) -> bool:
        """Return whether it has hung up."""
        return self._gone.is_set()

    async def receive(self) -> dict[str, Any]:
        """Wait until the client hangs up; return the message that says so."""
        await self._gone.wait()
        return HUNG_UP

    def on_gone(self, act: Callable[[], None]) -> None:
        """Have something done when it hangs up, at once where it has."""
        if self.is_gone:
            act()
        self._acts.append(act)

    def leave(self) -> None:
        """Stop listening."""
        self._task.cancel()

    async def to_its_end(self, stream: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        """Yield what a stream gives, and listen until then."""
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
