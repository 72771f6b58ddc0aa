"""Talks to web servers: fetches one page as the policy allows.

Each redirect is treated like the first URL: it is parsed and checked, its name is resolved, and its
addresses are checked before the connection. No cookies, credentials or referrer are sent. A page
beyond the largest size is truncated, and its connection is closed.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

import httpcore

from bus.process.logs import Log
from gateway.fetching.content import (
    ACCEPTED_ENCODINGS,
    ContentType,
    PageBody,
    check_type,
    read_type,
)
from gateway.fetching.dialling import (
    CONNECTS_S,
    SILENCE_S,
    JudgedBackend,
    Resolve,
    addresses_of,
    own_addresses,
    resolve,
    trusted,
)
from gateway.fetching.policy import FetchPolicy
from gateway.fetching.refusals import FetchRefused
from gateway.fetching.url import FetchUrl, read_redirect, read_url

REDIRECTS = (301, 302, 303, 307, 308)
AROUND_BYTES = 1 << 20
"""Bytes of headers and framing allowed in addition to a page of the largest size."""
USER_AGENT = "shoal/0.1"


@dataclass(frozen=True, slots=True)
class Fetched:
    """A fetched page, unpacked. `url` is the last URL after redirects. `truncated`: the page was
    longer."""

    url: str
    status: int
    type: ContentType
    body: bytes
    truncated: bool


@dataclass(frozen=True, slots=True)
class _Redirect:
    location: str


class Fetcher:
    """Fetches pages under one policy. `resolving` resolves names."""

    def __init__(self, policy: FetchPolicy, log: Log, resolving: Resolve = resolve) -> None:
        self.policy = policy
        self._log = log
        self._resolving = resolving
        self._trusted: ssl.SSLContext | None = None

    async def fetch(self, address: str) -> Fetched:
        """Return the page at a URL, after redirects. Raises FetchRefused."""
        try:
            async with asyncio.timeout(self.policy.whole_s):
                return await self._followed(read_url(address))
        except TimeoutError:
            text = f"the page did not arrive completely within {self.policy.whole_s:g} s"
            raise FetchRefused("late", text) from None

    async def _followed(self, url: FetchUrl) -> Fetched:
        for _ in range(self.policy.redirects + 1):
            answer = await self._once(url)
            if isinstance(answer, Fetched):
                return answer
            url = read_redirect(url, answer.location)
        text = f"too many redirects; the limit is {self.policy.redirects} (fetch.redirects)"
        raise FetchRefused("redirects", text)

    async def _once(self, url: FetchUrl) -> Fetched | _Redirect:
        policy = self.policy
        policy.check_url(url)
        addresses = await addresses_of(url, self._resolving)
        policy.check_addresses(url, addresses, own_addresses())
        self._log.debug("fetching", host=url.authority, at=", ".join(map(str, addresses)))
        backend = JudgedBackend(addresses, policy.largest_bytes + AROUND_BYTES)
        try:
            async with httpcore.AsyncConnectionPool(
                ssl_context=await self._tls(url),
                max_connections=1,
                max_keepalive_connections=0,
                network_backend=backend,
            ) as pool:
                return await self._request(pool, url)
        except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
            why = " over TLS" if isinstance(error.__cause__, ssl.SSLError) else ""
            raise FetchRefused("unreachable", f"cannot reach {url.authority}{why}") from None
        except (httpcore.ReadTimeout, httpcore.WriteTimeout):
            text = f"{url.authority} sent nothing for {SILENCE_S:g} s"
            raise FetchRefused("late", text) from None
        except (httpcore.NetworkError, httpcore.ProtocolError):
            text = f"{url.authority} closed the connection, or does not speak HTTP"
            raise FetchRefused("broken", text) from None

    async def _request(
        self, pool: httpcore.AsyncConnectionPool, url: FetchUrl
    ) -> Fetched | _Redirect:
        # in parts, so that httpcore does not parse the URL again
        where = httpcore.URL(
            scheme=url.scheme.encode(), host=url.host.encode(), port=url.port,
            target=url.target.encode(),
        )  # fmt: skip
        headers: dict[bytes | str, bytes | str] = {
            "host": url.authority, "user-agent": USER_AGENT, "connection": "close",
            "accept": "text/html, application/xhtml+xml, text/*;q=0.9, */*;q=0.5",
            "accept-encoding": ACCEPTED_ENCODINGS,
        }  # fmt: skip
        waits = {"connect": CONNECTS_S, "read": SILENCE_S, "write": SILENCE_S, "pool": CONNECTS_S}
        extensions = {"timeout": waits}
        async with pool.stream("GET", where, headers=headers, extensions=extensions) as response:
            answer_headers = {
                name.decode("latin-1").lower(): value.decode("utf-8", "replace")
                for name, value in response.headers
            }
            if response.status in REDIRECTS and "location" in answer_headers:
                return _Redirect(answer_headers["location"])
            return await self._read(response, url, answer_headers)

    async def _read(
        self, response: httpcore.Response, url: FetchUrl, headers: Mapping[str, str]
    ) -> Fetched:
        kind = read_type(headers.get("content-type"))
        check_type(kind, self.policy.types)
        body = PageBody(headers.get("content-encoding"), self.policy.largest_bytes)
        async for piece in response.aiter_stream():
            body.add(piece)
            if body.truncated:
                break
        return Fetched(url.text, response.status, kind, body.read(), body.truncated)

    async def _tls(self, url: FetchUrl) -> ssl.SSLContext | None:
        if url.scheme == "http":
            return None
        if self._trusted is None:
            self._trusted = await asyncio.to_thread(trusted)
        return self._trusted
