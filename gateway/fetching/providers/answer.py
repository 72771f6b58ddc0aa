"""Talks to providers: sends a request, and receives the bytes of the answer.

A connection carries one answer at a time. After a complete answer it is kept for the next request
to the same address, for `KEPT_S`. It is closed after an error, after a stop, and if a part of the
answer was not read.

Each step has its own time limit. `stop` ends the current step if the client disconnects or the
gateway shuts down. After a failure, no further step succeeds. Call `close` in every case.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Coroutine
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from gateway.fetching.providers.call import ProviderCall, ProviderFailed

if TYPE_CHECKING:
    import httpcore

CONNECTS_S = 10.0
KEPT_S = 4.0
"""How long an idle connection is kept. Many servers close idle connections after 5 s, and a request
on a connection that is being closed would fail."""
MOST_KEPT = 16
"""If a connection becomes idle while more than this many are open, it is closed."""
USER_AGENT = "shoal/0.1"
_T = TypeVar("_T")


class ProviderConnections:
    """The connections of one HTTP process to providers. TLS is verified as for new connections,
    because each connection belongs to one scheme, host and port."""

    def __init__(self) -> None:
        self._pools: dict[bool, httpcore.AsyncConnectionPool] = {}

    async def pool(self, url: str) -> httpcore.AsyncConnectionPool:
        """Return the pool of connections for the scheme of `url`."""
        import httpcore

        tls = url.startswith("https:")
        context = await asyncio.to_thread(_trusted) if tls else None
        if tls not in self._pools:
            self._pools[tls] = httpcore.AsyncConnectionPool(
                ssl_context=context,
                max_connections=None,
                max_keepalive_connections=MOST_KEPT,
                keepalive_expiry=KEPT_S,
                network_backend=cast(httpcore.AsyncNetworkBackend, httpcore.AnyIOBackend()),
            )
        return self._pools[tls]

    async def close(self) -> None:
        """Close all connections, at the end of the process."""
        for pool in self._pools.values():
            with contextlib.suppress(Exception):
                await pool.aclose()


class ProviderAnswer:
    """A provider's answer as it arrives. `status` and `headers` (names in lower case) are the
    provider's."""

    def __init__(self, call: ProviderCall, connections: ProviderConnections) -> None:
        self._connections = connections
        self.status = 0
        self.headers: dict[str, str] = {}
        self._call = call
        self._stopped: asyncio.Future[ProviderFailed] = asyncio.get_running_loop().create_future()
        self._held = contextlib.AsyncExitStack()
        self._pieces: AsyncIterator[bytes] | None = None
        self._is_in_step = False
        self._closing: asyncio.Future[None] | None = None

    def stop(self, why: ProviderFailed) -> None:
        """End the current step, and every later one, with this failure. Between two steps, such as
        while a slow client reads, the connection is closed now."""
        if not self._stopped.done():
            self._stopped.set_result(why)
        if not self._is_in_step and self._closing is None:
            self._closing = asyncio.ensure_future(self.close())

    async def begin(self, within_s: float) -> None:
        """Send the request and wait for the status of the answer. Raises ProviderFailed."""
        response = await self._bounded(self._ask(), within_s, "did not answer")
        self.status = response.status
        self.headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in response.headers
        }
        self._pieces = response.aiter_stream()

    async def piece(self, within_s: float | None) -> bytes:
        """Return the next bytes of the answer; b"" at its end. Raises ProviderFailed."""
        return await self._bounded(self._next(), within_s, "sent nothing more")

    async def close(self) -> None:
        """Close the connection, or keep it if the answer is complete."""
        self._stopped.cancel()
        with contextlib.suppress(Exception):
            await self._held.aclose()

    async def _next(self) -> bytes:
        assert self._pieces is not None
        async for piece in self._pieces:
            if piece:
                return piece
        return b""

    async def _ask(self) -> httpcore.Response:
        pool = await self._connections.pool(self._call.url)
        headers: dict[bytes | str, bytes | str] = {**self._call.headers, "user-agent": USER_AGENT}
        return await self._held.enter_async_context(
            pool.stream(
                "POST",
                self._call.url,
                headers=headers,
                content=self._call.body,
                extensions={"timeout": {"connect": CONNECTS_S, "pool": CONNECTS_S}},
            )
        )

    async def _bounded(
        self, step: Coroutine[Any, Any, _T], within_s: float | None, late: str
    ) -> _T:
        """Return the result of a step of the call. Raises ProviderFailed if the step is stopped,
        takes longer than `within_s` or fails."""
        import httpcore

        name = self._call.provider
        task = asyncio.ensure_future(step)
        self._is_in_step = True
        try:
            waited: set[asyncio.Future[Any]] = {task, self._stopped}
            await asyncio.wait(waited, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            if self._stopped.done():
                raise self._stopped.result()
            if not task.done():
                raise ProviderFailed("late", f"the provider '{name}' {late} within {within_s:g} s")
            return task.result()
        except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
            why = " over TLS" if isinstance(error.__cause__, ssl.SSLError) else ""
            text = f"cannot reach the provider '{name}'{why} at its base_url"
            raise ProviderFailed("unreachable", text) from None
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException):
            text = f"the provider '{name}' closed the connection, or does not speak HTTP"
            raise ProviderFailed("broken", text) from None
        finally:
            self._is_in_step = False
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
            elif not task.cancelled():
                task.exception()  # retrieved, so that asyncio does not log it


@cache
def _trusted() -> ssl.SSLContext:
    from gateway.fetching.dialling import trusted

    return trusted()
