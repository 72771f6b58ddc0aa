"""Talks to name servers and to the machines they name: one question, judged, and dialled as judged.

The name is resolved once. What was judged is what is dialled: the connection goes to the address
itself, the name stands in SNI and Host alone, so a name that answers otherwise the next time
changes nothing. All bytes that arrive are counted, those of headers and framing too. No proxy is
asked for.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, cast

import certifi
import httpcore
import psutil

from gateway.fetching.refusals import FetchRefused
from gateway.fetching.url import Address, FetchUrl

RESOLVES_S = 5.0
CONNECTS_S = 5.0
SILENCE_S = 10.0
"""How long a name, a connection, and a next byte may take."""
MOST_ADDRESSES = 16
Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]


async def resolve(host: str, port: int) -> Sequence[Address]:
    """Return the addresses of a name, as this machine finds them. Raises FetchRefused."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVES_S):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise FetchRefused("late", f"the host {host} was not resolved in time") from None
    except (OSError, UnicodeError):
        raise FetchRefused("unresolved", f"unknown host {host}") from None
    return [ipaddress.ip_address(row[4][0]) for row in found]


async def addresses_of(url: FetchUrl, resolving: Resolve) -> Sequence[Address]:
    """Return the addresses of a URL's host, each once. Raises FetchRefused."""
    if url.address is not None:
        return [url.address]
    found = list(dict.fromkeys(await resolving(url.host, url.port)))
    if not found:
        raise FetchRefused("unresolved", f"the host {url.host} has no address")
    if len(found) > MOST_ADDRESSES:
        raise FetchRefused("unresolved", f"the host {url.host} has too many addresses")
    return found


def own_addresses() -> frozenset[Address]:
    """Return the addresses of this machine."""
    found: set[Address] = set()
    for rows in psutil.net_if_addrs().values():
        for row in rows:
            if row.family in (socket.AF_INET, socket.AF_INET6):
                found.add(ipaddress.ip_address(row.address.partition("%")[0]))
    return frozenset(found)


def trusted() -> ssl.SSLContext:
    """Return whom TLS trusts: the system's authorities, and Mozilla's where it has none."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


class JudgedBackend(httpcore.AsyncNetworkBackend):
    """Dials the addresses that were judged, in their order, under any name."""

    def __init__(self, addresses: Sequence[Address], most_bytes: int) -> None:
        self._addresses = addresses
        self._most_bytes = most_bytes
        self._inner = cast(httpcore.AsyncNetworkBackend, httpcore.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Return a connection to one of the addresses. Raises what the last of them failed with."""
        last: Exception | None = None
        for address in self._addresses:
            try:
                stream = await self._inner.connect_tcp(str(address), port, timeout)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                last = error
                continue
            reached = stream.get_extra_info("server_addr")[0]
            if ipaddress.ip_address(reached) != address:
                await stream.aclose()
                raise FetchRefused("address", "the connection goes to another address")
            return CountedStream(stream, self._most_bytes)
        raise last or httpcore.ConnectError("no address")

    async def sleep(self, seconds: float) -> None:
        """Wait; httpcore does between tries, of which there is one."""
        await asyncio.sleep(seconds)


class CountedStream(httpcore.AsyncNetworkStream):
    """A connection from which so many bytes come at most."""

    def __init__(self, inner: httpcore.AsyncNetworkStream, left_bytes: int) -> None:
        self._inner = inner
        self._left_bytes = left_bytes

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return what comes next. Raises FetchRefused beyond the bound."""
        found = await self._inner.read(max_bytes, timeout)
        self._left_bytes -= len(found)
        if self._left_bytes < 0:
            raise FetchRefused("broken", "the server sends too much besides the page")
        return found

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send."""
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        """Close."""
        await self._inner.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Return the connection with TLS, which counts what is in it."""
        inner = await self._inner.start_tls(ssl_context, server_hostname, timeout)
        return CountedStream(inner, self._left_bytes)

    def get_extra_info(self, info: str) -> Any:
        """Return what the connection knows of itself."""
        return self._inner.get_extra_info(info)
