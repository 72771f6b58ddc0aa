"""Talks to one provider: a question on a connection of its own, and the bytes of the answer.

Each step has its own bound. `stop` ends a step that is under way, for the client is gone or the
gateway leaves; after a failure there is nothing more. `close` is to be called in every case.
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
    """One answer as it comes. `status` and `headers` (by names in small letters) are those of the
    provider."""

    def __init__(self, call: ProviderCall) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._call = call
        self._stopped: asyncio.Future[ProviderFailed] = asyncio.get_running_loop().create_future()
        self._held = contextlib.AsyncExitStack()
        self._pieces: AsyncIterator[bytes] | None = None

    def stop(self, why: ProviderFailed) -> None:
        """End what is under way with this failure, and all that would come after it."""
        if not self._stopped.done():
            self._stopped.set_result(why)

    async def begin(self, within_s: float) -> None:
        """Ask, and wait for the status. Raises ProviderFailed."""
        response = await self._bounded(self._ask(), within_s, "did not answer")
        self.status = response.status
        self.headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in response.headers
        }
        self._pieces = response.aiter_stream()

    async def piece(self, within_s: float | None) -> bytes:
        """Return what comes next, b"" at the end. Raises ProviderFailed."""
        return await self._bounded(self._next(), within_s, "sent nothing more")

    async def close(self) -> None:
        """Let the connection go."""
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
        """Return what a step gives, unless it takes too long or is stopped. Raises
        ProviderFailed."""
        import httpcore

        name = self._call.provider
        task = asyncio.ensure_future(step)
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
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
            elif not task.cancelled():
                task.exception()  # it was heard of, also where it is not what ends this


@cache
def _trusted() -> ssl.SSLContext:
    from gateway.fetching.dialling import trusted

    return trusted()
