"""Talks to name servers and web servers: resolves a name once, and connects only to addresses that
the policy has allowed.

The connection goes to the allowed address itself; the name appears only in SNI and Host. So a name
that resolves to another address the next time (DNS rebinding) has no effect. All received bytes are
counted, including headers and framing. No proxy is used.
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
"""Time limit for resolving a name, for connecting, and for each wait for the next bytes."""
MOST_ADDRESSES = 16
Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]


async def resolve(host: str, port: int) -> Sequence[Address]:
    """Return the addresses of a name, as this machine resolves it. Raises FetchRefused."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVES_S):
            rows = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise FetchRefused("late", f"the host {host} was not resolved in time") from None
    except (OSError, UnicodeError):
        raise FetchRefused("unresolved", f"unknown host {host}") from None
    return [ipaddress.ip_address(row[4][0]) for row in rows]


async def addresses_of(url: FetchUrl, resolving: Resolve) -> Sequence[Address]:
    """Return the addresses of a URL's host without repeats. Raises FetchRefused."""
    if url.address is not None:
        return [url.address]
    addresses = list(dict.fromkeys(await resolving(url.host, url.port)))
    if not addresses:
        raise FetchRefused("unresolved", f"the host {url.host} has no address")
    if len(addresses) > MOST_ADDRESSES:
        raise FetchRefused("unresolved", f"the host {url.host} has too many addresses")
    return addresses


def own_addresses() -> frozenset[Address]:
    addresses: set[Address] = set()
    for rows in psutil.net_if_addrs().values():
        for row in rows:
            if row.family in (socket.AF_INET, socket.AF_INET6):
                addresses.add(ipaddress.ip_address(row.address.partition("%")[0]))
    return frozenset(addresses)


def trusted() -> ssl.SSLContext:
    """Return a TLS context that trusts the system's certificate authorities and Mozilla's."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


class JudgedBackend(httpcore.AsyncNetworkBackend):
    """Connects to the allowed addresses in order and ignores the host name that httpcore passes."""

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
        """Return a connection to the first address that answers. If none answers, raises the error
        of the last address."""
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
                raise FetchRefused(
                    "address", f"the connection leads to {reached} instead of {address}"
                )
            return CountedStream(stream, self._most_bytes)
        raise last or httpcore.ConnectError("no address")

    async def sleep(self, seconds: float) -> None:
        """Wait. httpcore requires this method for waits between attempts, but it makes only one
        attempt."""
        await asyncio.sleep(seconds)


class CountedStream(httpcore.AsyncNetworkStream):
    """A connection from which at most `left_bytes` more can be read."""

    def __init__(self, inner: httpcore.AsyncNetworkStream, left_bytes: int) -> None:
        self._inner = inner
        self._left_bytes = left_bytes

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return the next bytes. Raises FetchRefused if the page exceeds its limit."""
        data = await self._inner.read(max_bytes, timeout)
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            raise FetchRefused("broken", "the server sends too much besides the page")
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Return the connection with TLS; it counts the decrypted bytes."""
        inner = await self._inner.start_tls(ssl_context, server_hostname, timeout)
        return CountedStream(inner, self._left_bytes)

    def get_extra_info(self, info: str) -> Any:
        """Return httpcore's information about the connection."""
        return self._inner.get_extra_info(info)
