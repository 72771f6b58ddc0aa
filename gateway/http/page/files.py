"""Talks to browsers and to the disk: reads the files of the dashboard page once, and serves them
with an ETag.

`POLICY` allows scripts, styles, images and data only from this server. It forbids inline code and
frames.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from falcon.asgi import Request, Response

from gateway.dialects.faults import HttpFault, HttpFaultRaised, not_found
from gateway.http.middleware import Resource
from gateway.http.resources import pages

STATIC = Path(__file__).parent / "static"
FRONT = "index.html"
TYPES: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Content types of the page's files, by suffix."""
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
HEADERS = (
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    # browsers revalidate each file, so that all files are of one build
    ("cache-control", "no-cache"),
)


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the dashboard page; `mark` is its ETag."""

    data: bytes
    content_type: str
    mark: str


@functools.cache
def page_files() -> Mapping[str, PageFile]:
    """Return the files by name. The first call reads them from the disk, so it must be made in a
    thread."""
    files: dict[str, PageFile] = {}
    for path in sorted(STATIC.iterdir()):
        if path.suffix in TYPES:
            data = path.read_bytes()
            mark = hashlib.sha256(data).hexdigest()[:24]
            files[path.name] = PageFile(data, TYPES[path.suffix], mark)
    return files


class Front(Resource):
    """`GET /`: the page for browsers, plain text for other clients."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the page if the client accepts `text/html` by name, else in plain text."""
        options = self.handle.options
        if options.dashboard and "text/html" in (req.get_header("accept") or "").casefold():
            await _answer(req, resp, FRONT)
        else:
            await pages.Root(self.handle).on_get(req, resp)
        resp.append_header("vary", "accept")


class Dashboard(Resource):
    """`GET /dashboard`: the page."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with the page; 404 if the settings switch the page off."""
        _check_on(self)
        await _answer(req, resp, FRONT)


class DashboardFile(Resource):
    """`GET /dashboard/{name}`: a file of the page."""

    async def on_get(self, req: Request, resp: Response, name: str) -> None:
        """Answer with the file; 404 if the settings switch the page off."""
        _check_on(self)
        await _answer(req, resp, name)


def _check_on(resource: Resource) -> None:
    if not resource.handle.options.dashboard:
        text = "the page is switched off on this node (`dashboard = false` in its shoal.toml)"
        raise HttpFaultRaised(HttpFault(404, "dashboard_off", text))


async def _answer(req: Request, resp: Response, name: str) -> None:
    """Answer with a file, or with 304 if the client has it. Raises HttpFaultRaised (404)."""
    files = await asyncio.to_thread(page_files)
    file = files.get(name)
    if file is None:
        raise HttpFaultRaised(not_found(f"/dashboard/{name}"))
    for header, value in HEADERS:
        resp.set_header(header, value)
    resp.etag = file.mark
    if any(mark == "*" or mark == file.mark for mark in req.if_none_match or ()):
        resp.status = 304
        return
    resp.data = file.data
    resp.content_type = file.content_type
