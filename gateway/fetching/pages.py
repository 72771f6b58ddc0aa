"""Results of the web tools: pages that were opened, extracted or found.

Pure. The content of a page comes from a stranger, so it is treated as text and never as markup.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class PageLink(BaseModel):
    """A link's target and its text."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    url: str
    text: str


class PageParts(BaseModel):
    """The title, text (truncated if it is too long) and links of a page."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    title: str
    text: str
    truncated: bool
    links: tuple[PageLink, ...]


class OpenedPage(BaseModel):
    """The page at a URL. `truncated`: the page or its text was longer than what is returned."""

    model_config = ConfigDict(frozen=True)

    url: str
    status: int
    content_type: str
    title: str
    text: str
    truncated: bool


class ExtractedPage(BaseModel):
    """The main text and the links of a page. `url` and `status` are null if the client sent the
    page itself."""

    model_config = ConfigDict(frozen=True)

    url: str | None
    status: int | None
    title: str
    text: str
    truncated: bool
    links: tuple[PageLink, ...]


class FoundPage(BaseModel):
    """A page that a search found."""

    model_config = ConfigDict(frozen=True)

    title: str
    url: str
    snippet: str


class FoundPages(BaseModel):
    """The results of a search, the best first."""

    model_config = ConfigDict(frozen=True)

    results: tuple[FoundPage, ...]
