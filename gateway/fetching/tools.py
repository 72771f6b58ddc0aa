"""Talks to the web for three tools: open a page, extract its main text, search.

A tool that is off loads no code: neither the HTTP client nor TLS authorities. The number of
concurrent fetches is limited; a fetch counts from its request to the end of parsing its page. Each
client may use only a share of that number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bus.process.logs import Log
from gateway.fetching.content import text_of
from gateway.fetching.pages import ExtractedPage, FoundPage, OpenedPage, PageParts
from gateway.fetching.places import Places, shares
from gateway.fetching.policy import FetchPolicy, policy_of_search, read_allowance
from gateway.fetching.reading import PageQuestion, PageReader
from gateway.fetching.refusals import FetchRefused
from gateway.fetching.url import read_url
from gateway.view.options import Options

if TYPE_CHECKING:
    from gateway.fetching.fetcher import Fetched, Fetcher
    from gateway.fetching.search import SearxNG

MOST_LINKS = 200
AT_ONCE = 8
"""Concurrent fetches on a node, shared between its HTTP processes."""
NO_BASE = "about:blank"


class WebTools:
    """The web tools of one HTTP process. `asker` is the client, for its fair share of the
    fetches."""

    def __init__(
        self,
        fetcher: Fetcher | None,
        search: SearxNG | None,
        places: Places,
        reader: PageReader,
    ) -> None:
        self._fetcher = fetcher
        self._search = search
        self._places = places
        self._reader = reader

    async def open_url(self, url: str, characters: int, asker: str) -> OpenedPage:
        """Return a page's title and its whole text. Raises FetchRefused."""
        with self._places.take(asker):
            page = await self._fetched(url)
            if page.type.is_html:
                parts = await self._parts(page, characters, main=False)
            else:
                text = text_of(page.body, page.type.charset)
                cut = len(text) > characters
                parts = PageParts(title="", text=text[:characters], truncated=cut, links=())
        return OpenedPage(
            url=page.url,
            status=page.status,
            content_type=page.type.name,
            title=parts.title,
            text=parts.text,
            truncated=parts.truncated or page.truncated,
        )

    async def extract_url(self, url: str, characters: int, asker: str) -> ExtractedPage:
        """Return the main text of the page at a URL. Raises FetchRefused."""
        with self._places.take(asker):
            page = await self._fetched(url)
            if not page.type.is_html:
                text = f"a page of type '{page.type.name[:80]}' has no main text; use open_url"
                raise FetchRefused("content_type", text)
            parts = await self._parts(page, characters, main=True)
        return ExtractedPage(
            url=page.url,
            status=page.status,
            title=parts.title,
            text=parts.text,
            truncated=parts.truncated or page.truncated,
            links=parts.links,
        )

    async def extract_html(self, html: str, characters: int, asker: str) -> ExtractedPage:
        """Return the main text of a page that the client sent. Raises FetchRefused."""
        question = PageQuestion(NO_BASE, "utf-8", characters, MOST_LINKS, main=True)
        with self._places.take(asker):
            parts = await self._reader.read(html.encode("utf-8", "replace"), question)
        return ExtractedPage(
            url=None,
            status=None,
            title=parts.title,
            text=parts.text,
            truncated=parts.truncated,
            links=parts.links,
        )

    async def search(self, query: str, count: int, asker: str) -> Sequence[FoundPage]:
        """Return at most `count` search results. Raises FetchRefused."""
        if self._search is None:
            raise FetchRefused(
                "no_search",
                "this node has no search engine; its operator can set tools.search = 'searxng' and "
                "tools.search_url",
            )
        with self._places.take(asker):
            return await self._search.search(query, count)

    async def _fetched(self, url: str) -> Fetched:
        if self._fetcher is None:
            FetchPolicy().check_url(read_url(url))
            raise AssertionError("fetching is off, but its policy allowed a URL")
        return await self._fetcher.fetch(url)

    async def _parts(self, page: Fetched, characters: int, *, main: bool) -> PageParts:
        links = MOST_LINKS if main else 0
        question = PageQuestion(page.url, page.type.charset, characters, links, main)
        return await self._reader.read(page.body, question)


def policies_of(options: Options) -> tuple[FetchPolicy, FetchPolicy | None]:
    """Return the policy for fetches and the policy for the search engine; None if there is no
    engine. Raises ConfigError."""
    policy = FetchPolicy(
        enabled=options.fetch_enabled,
        allow=tuple(map(read_allowance, options.fetch_allow)),
        largest_bytes=options.fetch_bytes,
        whole_s=options.fetch_s,
        redirects=options.fetch_redirects,
        types=options.fetch_types,
    )
    return policy, policy_of_search(options.search_url) if options.search else None


def open_tools(options: Options, log: Log) -> WebTools:
    """Return the tools that the options enable. Raises ConfigError."""
    policy, engine = policies_of(options)
    fetcher = search = None
    if policy.enabled:
        from gateway.fetching.fetcher import Fetcher

        fetcher = Fetcher(policy, log)
    if engine is not None:
        from gateway.fetching.fetcher import Fetcher
        from gateway.fetching.search import SearxNG

        search = SearxNG(Fetcher(engine, log), options.search_url)
    return WebTools(fetcher, search, Places(*shares(AT_ONCE, options.processes)), PageReader())
