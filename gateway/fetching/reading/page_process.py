"""Talks to the gateway that started this process: parses one page of HTML from standard input, then
ends.

The process runs as a script, so it loads only the parser and nothing of shoal. A page comes from a
stranger and the parser is native code. So each page has its own process, with limits that the
system enforces. The first line of the input is a question in JSON; the page follows. The answer is
JSON.
"""

# pyright: reportMissingModuleSource=false
# (the parser is native, with types beside it)
from __future__ import annotations

import codecs
import json
import resource
import signal
import sys
from typing import Any
from urllib.parse import urljoin

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import bytes_to_str, detect_encoding
from resiliparse.parse.html import HTMLTree

LINK_CHARACTERS = 200
ADDRESS_CHARACTERS = 4096


def main() -> None:
    """Read one question (what to parse, as JSON) and one page, and write the answer."""
    question: dict[str, Any] = json.loads(sys.stdin.buffer.readline(65536))
    _limit(question["memory_bytes"], question["processor_s"], question["wall_s"])
    page = sys.stdin.buffer.read()
    sys.stdout.buffer.write(json.dumps(_read(page, question)).encode())
    sys.stdout.buffer.flush()


def _limit(memory_bytes: int, processor_s: int, wall_s: float) -> None:
    """Limit this process's processor time and wall time, and its memory if the system supports
    that. The process may write no files."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (processor_s, processor_s))
    signal.setitimer(signal.ITIMER_REAL, wall_s)
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def _read(page: bytes, question: dict[str, Any]) -> dict[str, Any]:
    tree = HTMLTree.parse(_decoded(page, question["charset"]))
    text = ""
    if question["main"]:
        text = _text(tree, main_content=True)
    if not text:
        text = _text(tree, main_content=False)
    most = question["characters"]
    links = _links(tree, question["base"], question["links"])
    title = " ".join((tree.title or "").split())[:LINK_CHARACTERS]
    return {"title": title, "text": text[:most], "truncated": len(text) > most, "links": links}


def _decoded(page: bytes, charset: str | None) -> str:
    """Decode the page by its byte order mark, by the server's charset or by its own declaration."""
    if page.startswith(codecs.BOM_UTF8):
        return page.decode("utf-8-sig", "replace")
    if charset is not None:
        return page.decode(charset, "replace")
    return bytes_to_str(page, detect_encoding(page, from_html_meta=True) or "utf-8")


def _text(tree: HTMLTree, *, main_content: bool) -> str:
    return extract_plain_text(tree, main_content=main_content, alt_texts=False).strip()


def _links(tree: HTMLTree, base: str, most: int) -> list[dict[str, str]]:
    document = tree.document
    links: dict[str, str] = {}
    if document is None or not most:
        return []
    stem = document.query_selector("base[href]")
    if stem is not None:
        base = _joined(base, stem.getattr("href") or "") or base
    # `values`: iteration over the library's list is quadratic
    for anchor in document.query_selector_all("a[href]").values():
        href = anchor.getattr("href") or ""
        url = "" if href.startswith("#") else _joined(base, href)
        if url and url not in links:
            links[url] = " ".join((anchor.text or "").split())[:LINK_CHARACTERS]
        if len(links) >= most:
            break
    return [{"url": url, "text": text} for url, text in links.items()]


def _joined(base: str, href: str) -> str:
    """Return a link's target without its fragment; empty if the target is not a web page."""
    try:
        url = urljoin(base, href.strip()).partition("#")[0]
    except ValueError:
        return ""
    is_page = url.startswith(("http://", "https://")) and len(url) <= ADDRESS_CHARACTERS
    return url if is_page else ""


if __name__ == "__main__":
    main()
