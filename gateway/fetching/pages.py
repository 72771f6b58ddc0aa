"""What the tools answer: pages that were opened, read or found.

Pure. What a page says is a stranger's: text, never markup.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class PageLink(BaseModel):
    """Where a link leads, and what it says."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    url: str
    text: str


class PageParts(BaseModel):
    """What a page says: its title, its text (cut where it is longer), its links."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    title: str
    text: str
    truncated: bool
    links: tuple[PageLink, ...]


class OpenedPage(BaseModel):
    """What a URL led to. `truncated`: there is more of the page, or of its text."""

    model_config = ConfigDict(frozen=True)

    url: str
    status: int
    content_type: str
    title: str
    text: str
    truncated: bool


class ExtractedPage(BaseModel):
    """The main text of a page, and where its links lead. `url` and `status` are None of a page that
    was sent."""

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
    """What a search found, the best first."""

    model_config = ConfigDict(frozen=True)

    results: tuple[FoundPage, ...]
