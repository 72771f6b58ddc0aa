"""Talks to a client's connection: ends what is made for it when the client hangs up.

One watcher listens for the length of a request, for a connection that was once listened to and
left cannot be listened to again. What it would end may be replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.http.middleware import Receive
from gateway.requests.inbox import EntryInbox


class ClientHangUp:
    """The end of a client's connection, from when its body was read on; `abandon` ends an inbox."""

    def __init__(self, receive: Receive, abandon: Callable[[EntryInbox], None]) -> None:
        self._receive = receive
        self._abandon = abandon
        self._inbox: EntryInbox | None = None
        self._task = asyncio.ensure_future(self._watch())

    def watch(self, inbox: EntryInbox) -> None:
        """End this inbox at the hang-up, and no longer the one before."""
        self._inbox = inbox

    def leave(self, inbox: EntryInbox) -> None:
        """Stop listening, unless another inbox is watched before the loop's next turn."""
        asyncio.get_running_loop().call_soon(self._stop_for, inbox)

    def _stop_for(self, inbox: EntryInbox) -> None:
        if self._inbox is inbox:
            self._task.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self._inbox is not None:
            self._abandon(self._inbox)
