"""A page is read in a process of its own, which a hostile one takes with it and nothing else."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import psutil
import pytest

from bus.process.clock import now
from gateway.fetching.pages import PageParts
from gateway.fetching.reading import PageQuestion, PageReader, ReadLimits
from gateway.fetching.refusals import FetchRefused
from tests.harness.variants import mostly_proof
from tests.harness.web_pages import PAGE

BASE = "https://fish.example/a/b"


def question(
    *, main: bool = True, characters: int = 10_000, charset: str | None = None
) -> PageQuestion:
    return PageQuestion(BASE, charset, characters, 100, main)


def read(page: str | bytes, asked: PageQuestion | None = None, **limits: float) -> PageParts:
    """What a page says; no process is left."""
    held = ReadLimits(**limits)  # type: ignore[arg-type]
    data = page.encode() if isinstance(page, str) else page
    try:
        return asyncio.run(PageReader(held).read(data, asked or question()))
    finally:
        left = [one for one in psutil.Process().children() if "page_process" in str(one.cmdline())]
        assert not left


def test_a_page_has_a_title_a_main_text_and_links() -> None:
    found = read(PAGE)
    assert found.title == "A page of fish"
    assert "A shoal is a group of fish" in found.text and "Imprint" not in found.text
    assert "secret" not in found.text and not found.truncated
    links = {one.url: one.text for one in found.links}
    assert links["https://fish.example/a/far"] == "large"
    assert links["https://whales.example/x"] == "eat"
    assert set(links) == {
        "https://fish.example/menu",
        "https://fish.example/a/far",
        "https://whales.example/x",
    }, "neither scripts nor places of the page itself"


def test_all_of_a_page_is_more_than_its_main_text() -> None:
    assert "Imprint" in read(PAGE, question(main=False)).text


def test_a_text_is_cut_where_it_is_longer_than_asked_for() -> None:
    found = read(PAGE, question(characters=10))
    assert len(found.text) == 10 and found.truncated


def test_a_page_says_in_its_own_words_how_it_is_written() -> None:
    page = '<meta charset="windows-1251"><p>Косяк рыбы плывёт вместе, как один.</p>'
    assert "Косяк" in read(page.encode("cp1251")).text
    assert "Косяк" in read("<p>Косяк рыбы".encode("koi8-r"), question(charset="koi8-r")).text
    assert "é" in read("<p>é".encode("utf-16"), question(charset="utf-16")).text
    assert "물고기" in read("<p>물고기".encode("euc-kr"), question(charset="euc_kr")).text
    assert "é" in read("<p>é".encode("utf-8-sig"), question(charset="iso8859-1")).text


def test_a_large_page_with_many_links_is_read() -> None:
    rows = "".join(
        f"<p>{'A shoal is a group of fish. ' * 5}<a href=/n{n}>n{n}</a></p>" for n in range(20_000)
    )
    found = read(f"<title>Large</title><article>{rows}</article>", processor_s=3)
    assert len(found.links) == 100 and found.truncated and found.title == "Large"


HOSTILE: dict[str, Callable[[], str]] = {
    "nested a million deep": lambda: "<div>" * 1_000_000,
    "nested spans with text": lambda: "<span>x" * 300_000,
    "ten megabytes of one tag": lambda: "<" + "a" * 10_000_000,
    "ten megabytes of one attribute": lambda: '<a href="' + "x" * 10_000_000,
    "a million attributes": lambda: "<a " + " ".join(f"x{n}=1" for n in range(300_000)) + ">",
    "open formatting": lambda: "<b><i><u><a>" * 20_000 + "<p>x" * 2_000,
    "tables in tables": lambda: "<table><tr><td>" * 50_000,
    "a script without end": lambda: "<script>" + "x" * 5_000_000,
    "a million links": lambda: '<a href="/x">x</a>' * 300_000,
    "entities": lambda: "&#x110000;&amp" * 300_000,
    "nothing": lambda: "",
    "bytes": lambda: "\0\x01\ufffe" * 1000,
    "selects": lambda: "<select><option>" * 100_000,
    "comments": lambda: "<!--" * 500_000,
    "templates": lambda: "<template>" * 100_000,
    "svg": lambda: "<svg><foreignObject><math><mi>" * 50_000,
}
GATE = (
    "nested a million deep", "ten megabytes of one tag", "a script without end", "nothing", "bytes",
    "tables in tables",
)  # fmt: skip


@pytest.mark.parametrize("name", mostly_proof(HOSTILE, GATE))
def test_a_hostile_page_is_read_or_refused_and_takes_no_longer_than_it_may(name: str) -> None:
    began_at = now()
    try:
        assert len(read(HOSTILE[name](), processor_s=3, wall_s=6.0).links) <= 100
    except FetchRefused as refused:
        assert refused.rule == "unreadable"
    assert now() - began_at < 20


def test_a_page_that_takes_too_long_ends_its_process() -> None:
    with pytest.raises(FetchRefused) as refused:
        read(PAGE * 20, wall_s=0.001)
    assert refused.value.rule == "unreadable"


def test_a_page_that_takes_too_much_memory_ends_its_process() -> None:
    with pytest.raises(FetchRefused) as refused:
        read("<p>x" * 1_000_000, memory_bytes=60 << 20)
    assert refused.value.rule == "unreadable"


def test_what_says_more_than_it_may_is_not_believed() -> None:
    with pytest.raises(FetchRefused) as refused:
        read("<p>words</p>" * 10_000, question(characters=100_000), answer_bytes=1000)
    assert refused.value.rule == "unreadable"


def test_the_process_knows_nothing_of_the_nodes_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHOAL_API_KEYS", "secret")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    seen: list[dict[str, str]] = []

    async def watch() -> None:
        reading = asyncio.ensure_future(PageReader().read(PAGE.encode(), question()))
        while not reading.done():
            for one in psutil.Process(os.getpid()).children():
                try:
                    if "page_process" in str(one.cmdline()):
                        seen.append(one.environ())
                except psutil.Error:
                    continue
            await asyncio.sleep(0.002)
        await reading

    asyncio.run(watch())
    assert seen and not any("SHOAL_API_KEYS" in one or "PYTHONPATH" in one for one in seen)


def test_a_reading_that_is_given_up_leaves_no_process() -> None:
    async def give_up() -> None:
        reading = asyncio.ensure_future(PageReader().read(b"<div>" * 1_000_000, question()))
        await asyncio.sleep(0.1)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(give_up())
    assert not [one for one in psutil.Process().children() if "page_process" in str(one.cmdline())]
