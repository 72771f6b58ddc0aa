"""Talks to a search engine of the operator's: words in, titles and URLs out.

SearXNG is an engine that people run themselves; its JSON answers have to be switched on
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
    """A SearXNG, by its JSON API, at the URL that the operator names."""

    def __init__(self, fetcher: Fetcher, url: str) -> None:
        self._fetcher = fetcher
        self._url = url.rstrip("/")

    async def search(self, query: str, count: int) -> Sequence[FoundPage]:
        """Return at most `count` pages, the best first. Raises FetchRefused."""
        asked = urlencode({"q": query, "format": "json"})
        answer = await self._fetcher.fetch(f"{self._url}/search?{asked}")
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
            found = [_found(row) for row in rows if row.get("url")]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            text = f"the search engine answered with status {answer.status}"
            raise FetchRefused("broken", text) from None
        return found[:count]


def _found(row: dict[str, Any]) -> FoundPage:
    try:
        return FoundPage(
            title=row.get("title") or "",
            url=row["url"],
            snippet=(row.get("content") or "")[:SNIPPET_CHARACTERS],
        )
    except ValidationError as error:
        raise ValueError(str(error)) from None
