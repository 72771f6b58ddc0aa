"""The page's view of the log: events as they happen, and what a process logs, on a real node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.browsing import Tab, focused, opened, phone, reach, wide
from tests.harness.nodes import MODEL, Node, eventually, kill


@pytest.fixture
def tab(browser: Browser, node: Node) -> Iterator[Tab]:
    with opened(browser, node.url) as made:
        made.open("/#watch")
        yield made
        made.check()


def section(page: Page, title: str) -> Locator:
    return page.locator("section", has=page.get_by_role("heading", name=title))


def told(page: Page) -> list[str]:
    """Return what events there are, the latest first."""
    return section(page, "Events of the log").locator("tbody .pill").all_inner_texts()


def unload(node: Node) -> None:
    for instance in node.state()["instances"]:
        node.http.delete(f"/instance/{instance}")
    eventually(lambda: not node.state()["instances"], 60, "nothing is loaded")


def test_a_load_shows_up_as_it_happens(tab: Tab, node: Node) -> None:
    page = tab.page
    unload(node)
    events = section(page, "Events of the log")
    expect(events.locator("tbody tr").first).to_be_visible()
    done = node.shoal("load", MODEL)
    assert done.returncode == 0, done.stdout + done.stderr
    eventually(lambda: "rank ready" in told(page)[:3], 30, "it is told")
    ready = events.locator("tbody tr", has_text="rank ready").first
    expect(ready).to_contain_text(MODEL)
    expect(ready).to_contain_text("reef")
    unload(node)

    def latest_first() -> bool:
        words = told(page)
        return "removed" in words[: words.index("rank ready")]

    eventually(latest_first, 30, "its end is told above its beginning")


def test_all_that_is_held_is_shown_by_keyboard(tab: Tab, node: Node) -> None:
    page = tab.page
    path = f"/node/{node.node_id()}/rename"
    for name in (*(f"reef{turn}" for turn in range(14)), "reef"):
        assert node.http.post(path, json={"name": name}).status_code == 200
    events = section(page, "Events of the log")
    expect(events.locator("tbody tr").first).to_contain_text("node renamed")
    expect(events.locator("tbody tr")).to_have_count(12)
    page.focus("nav a[href='#watch']")
    reach(page, lambda: focused(page).startswith("Show all"), "the button that shows all")
    page.keyboard.press("Enter")
    eventually(lambda: events.locator("tbody tr").count() > 14, 20, "all are shown")
    assert focused(page) == "Show fewer events"
    page.keyboard.press("Enter")
    expect(events.locator("tbody tr")).to_have_count(12)


def test_what_a_process_logs_is_shown(tab: Tab, node: Node) -> None:
    page = tab.page
    log = section(page, "Log of a process of this node")
    expect(log.locator("option", has_text="worker")).to_have_count(1)
    log.get_by_label("Process", exact=True).select_option("worker")
    message = node.log_lines("worker")[0]["message"]
    lines = log.get_by_label("The last lines of worker")
    expect(lines).to_contain_text(message)
    log.get_by_label("Process", exact=True).select_option("")
    expect(lines).to_have_count(0)


@pytest.mark.parametrize(("size", "scheme"), [wide("light"), phone("dark")])
def test_axe_finds_nothing_in_events_and_a_log(
    browser: Browser, node: Node, axe: str, size: tuple[int, int], scheme: Any
) -> None:
    with opened(browser, node.url, size, scheme) as tab:
        page = tab.open("/#watch")
        process = page.get_by_label("Process", exact=True)
        expect(process.locator("option", has_text="gateway")).to_have_count(1)
        process.select_option("gateway")
        expect(page.locator(".lines p").first).to_be_visible()
        expect(section(page, "Events of the log").locator("tbody tr").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        page.evaluate(axe)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        assert [(one["id"], one["impact"]) for one in found["violations"]] == []
        tab.check()


@pytest.mark.proof
def test_a_gateway_that_began_anew_is_followed_again(browser: Browser, node: Node) -> None:
    with opened(browser, node.url, expects=("Failed to load resource", "net::")) as tab:
        page = tab.open("/#watch")
        expect(section(page, "Events of the log").locator("tbody tr").first).to_be_visible()
        before = node.pid("gateway")
        kill(before)
        expect(page.get_by_text("Connected again")).to_be_visible(timeout=60_000)
        turn = 0

        def is_told() -> bool:
            nonlocal turn
            turn += 1
            body = {"name": f"after{turn}"}
            try:
                node.http.post(f"/node/{node.node_id()}/rename", json=body)
            except httpx.HTTPError:
                return False
            return bool(section(page, "Events of the log").get_by_text("after").count())

        eventually(is_told, 60, "what happens after it is told")
        node.http.post(f"/node/{node.node_id()}/rename", json={"name": "reef"})
        assert tab.reports() == []
