"""Talks to the operator's search engine: sends search words, and returns titles and URLs.

SearXNG is a search engine that operators run themselves. Its settings must enable answers in JSON
(`search.formats`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import urlencode

from pydantic import ValidationError

from gateway.fetching.fetcher import Fetcher
from gateway.fetching.pages import FoundPage
from gateway.fetching.refusals import FetchRefused

SNIPPET_CHARACTERS = 1000


class SearxNG:
    """A SearXNG server at the operator's URL, used through its JSON API."""

    def __init__(self, fetcher: Fetcher, url: str) -> None:
        self._fetcher = fetcher
        self._url = url.rstrip("/")

    async def search(self, query: str, count: int) -> Sequence[FoundPage]:
        """Return at most `count` pages, the best first. Raises FetchRefused."""
        query_text = urlencode({"q": query, "format": "json"})
        answer = await self._fetcher.fetch(f"{self._url}/search?{query_text}")
        if answer.status == 403:
            text = (
                "the search engine does not answer in JSON; add json to search.formats in its "
                "settings"
            )
            raise FetchRefused("broken", text)
        try:
            if answer.status != 200 or answer.truncated:
                raise ValueError(answer.status)
            rows = cast(dict[str, Any], json.loads(answer.body))["results"]
            pages = [_page(row) for row in rows if row.get("url")]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            text = f"the search engine answered with status {answer.status}"
            raise FetchRefused("broken", text) from None
        return pages[:count]


def _page(row: dict[str, Any]) -> FoundPage:
    try:
        return FoundPage(
            title=row.get("title") or "",
            url=row["url"],
            snippet=(row.get("content") or "")[:SNIPPET_CHARACTERS],
        )
    except ValidationError as error:
        raise ValueError(str(error)) from None
