"""Talks to one provider: sends a request on its own connection, and receives the bytes of the
answer.

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
USER_AGENT = "shoal/0.1"
_T = TypeVar("_T")


class ProviderAnswer:
    """A provider's answer as it arrives. `status` and `headers` (names in lower case) are the
    provider's."""

    def __init__(self, call: ProviderCall) -> None:
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
        """Close the connection."""
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
        import httpcore

        tls = self._call.url.startswith("https:")
        pool = httpcore.AsyncConnectionPool(
            ssl_context=await asyncio.to_thread(_trusted) if tls else None,
            max_connections=1,
            max_keepalive_connections=0,
            network_backend=cast(httpcore.AsyncNetworkBackend, httpcore.AnyIOBackend()),
        )
        await self._held.enter_async_context(pool)
        headers: dict[bytes | str, bytes | str] = {
            **self._call.headers, "user-agent": USER_AGENT, "connection": "close",
        }  # fmt: skip
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
