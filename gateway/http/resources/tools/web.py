"""Talks to clients that use this node's web tools: open a page, extract its text, search.

Each refusal names the rule that caused it. Errors have the format of OpenAI's API.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import ClassVar, get_args

from falcon.asgi import Request, Response
from pydantic import Field

from gateway.dialects.body import Closed, bad_field
from gateway.dialects.faults import OVERLOADED_RETRY_S, HttpFault, HttpFaultRaised
from gateway.fetching import (
    ExtractedPage,
    FailureRule,
    FetchRefused,
    FetchRule,
    FoundPages,
    OpenedPage,
    PolicyRule,
    UrlRule,
)
from gateway.http.callers import sharer_of
from gateway.http.middleware import Resource, answer_json

CHARACTERS, MOST_CHARACTERS = 50_000, 1_000_000
MOST_RESULTS = 50
_OF_SERVERS: frozenset[FetchRule] = frozenset(
    ("not_allowed", "address", "unresolved", "unreachable", "broken", "late")
)
"""Rules whose messages name the web server. Messages of other rules may quote the client, so they
are not logged."""
STATUSES: Mapping[FetchRule, int] = {
    **dict.fromkeys(get_args(UrlRule), 400),
    **dict.fromkeys(get_args(PolicyRule), 403),
    **dict.fromkeys(get_args(FailureRule), 502),
    "redirects": 502,
    "content_type": 502,
    "encoding": 502,
    "unpacked": 502,
    "unreadable": 502,
    "late": 504,
    "busy": 429,
    "no_search": 403,
}


class OpenUrlBody(Closed):
    """`POST /v1/tools/open_url`."""

    url: str
    max_characters: int = Field(default=CHARACTERS, ge=1, le=MOST_CHARACTERS)


class ExtractPageBody(Closed):
    """`POST /v1/tools/extract_page`: either `url` or `html`."""

    url: str | None = None
    html: str | None = None
    max_characters: int = Field(default=CHARACTERS, ge=1, le=MOST_CHARACTERS)


class WebSearchBody(Closed):
    """`POST /v1/tools/web_search`."""

    query: str = Field(max_length=1000)
    count: int = Field(default=5, ge=1, le=MOST_RESULTS)


class OpenUrl(Resource):
    """`POST /v1/tools/open_url`: the text of a page."""

    body: ClassVar = OpenUrlBody
    answer: ClassVar = OpenedPage

    async def on_post(self, req: Request, resp: Response) -> None:
        """Answer with a page's title and its content as plain text."""
        body = await self.read(req, OpenUrlBody)
        with _counted(self, asks_url=True):
            page = await self.parts.tools.open_url(body.url, body.max_characters, _asker(self, req))
        answer_json(resp, page.model_dump())


class ExtractPage(Resource):
    """`POST /v1/tools/extract_page`: the main text of a page, and its links."""

    body: ClassVar = ExtractPageBody
    answer: ClassVar = ExtractedPage

    async def on_post(self, req: Request, resp: Response) -> None:
        """Answer with the main text of the page at `url`, or of `html`."""
        body = await self.read(req, ExtractPageBody)
        if (body.url is None) == (body.html is None):
            raise bad_field("url", "send either 'url' or 'html'")
        tools, asker = self.parts.tools, _asker(self, req)
        with _counted(self, asks_url=body.url is not None):
            if body.url is not None:
                page = await tools.extract_url(body.url, body.max_characters, asker)
            else:
                page = await tools.extract_html(body.html or "", body.max_characters, asker)
        answer_json(resp, page.model_dump())


class WebSearch(Resource):
    """`POST /v1/tools/web_search`: results of a search engine."""

    body: ClassVar = WebSearchBody
    answer: ClassVar = FoundPages

    async def on_post(self, req: Request, resp: Response) -> None:
        """Answer with titles, URLs and snippets. 403 if no engine is configured."""
        body = await self.read(req, WebSearchBody)
        if not body.query.strip():
            raise bad_field("query", "the query is empty")
        with _counted(self, asks_url=False):
            pages = await self.parts.tools.search(body.query, body.count, _asker(self, req))
        answer_json(resp, FoundPages(results=tuple(pages)).model_dump())


def fault_of(refused: FetchRefused, field: str | None) -> HttpFault:
    """Return the HTTP error for a refused fetch. The code is always `fetch_refused`; the detail
    `rule` names the rule that refused the fetch."""
    return HttpFault(
        STATUSES[refused.rule],
        "fetch_refused",
        refused.message,
        field,
        OVERLOADED_RETRY_S if refused.rule == "busy" else None,
        {"rule": refused.rule},
    )


@contextmanager
def _counted(resource: Resource, *, asks_url: bool) -> Generator[None]:
    """Count the tool as running, so that the gateway waits for it at shutdown. Turn refusals into
    faults."""
    parts = resource.parts
    parts.running += 1
    try:
        yield
    except FetchRefused as error:
        why = error.message if error.rule in _OF_SERVERS else None
        parts.log.info("not fetched", rule=error.rule, why=why)
        raise HttpFaultRaised(fault_of(error, "url" if asks_url else None)) from None
    finally:
        parts.running -= 1


def _asker(resource: Resource, req: Request) -> str:
    """Return the id of the client's API key; without a key its address."""
    key, _, address, _ = sharer_of(req, resource.parts.options, None)
    return key or address
