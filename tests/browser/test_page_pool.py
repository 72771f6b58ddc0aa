"""The page's view of the pool: two models that want the same memory, on a real node."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.browsing import Tab, opened, phone, wide
from tests.harness.nodes import ROOT, Node, eventually, kill, running_node

pytestmark = pytest.mark.proof


@pytest.fixture(scope="module")
def node(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with memory for one of two models; none without a browser."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("first", "second"):
        ignored = shutil.ignore_patterns("make", "*.py")
        shutil.copytree(ROOT / "conf" / "tiny", folder / name, ignore=ignored)
    with running_node(
        SHOAL_NODE_NAME="reef",
        SHOAL_MODEL_FOLDERS=str(folder),
        SHOAL_SLOTS="1",
        SHOAL_PRELOAD="",
        SHOAL_HTTP_PROCESSES="1",
        SHOAL_POOL__TURN_S="600",
        SHOAL_POOL__TURN_LOADS="0",
    ) as made:
        yield made


@pytest.fixture
def tab(browser: Browser, node: Node) -> Iterator[Tab]:
    with opened(browser, node.url) as made:
        made.open("/#pool")
        yield made
        made.check()


def ask(node: Node, model: str, **fields: Any) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    return httpx.post(f"{node.url}/v1/chat/completions", json={**body, **fields}, timeout=120)


def unload(node: Node, model: str) -> None:
    """Have no copy of a model in memory."""
    for one in node.state()["instances"].values():
        if one["model"] == model:
            node.http.delete(f"/instance/{one['instance']}")

    def has_left() -> bool:
        return all(one["model"] != model for one in node.state()["instances"].values())

    eventually(has_left, 60, f"{model} has left")


@contextmanager
def waiting(node: Node) -> Iterator[None]:
    """Have `second` wait for `first`, whose turn is long and which is in use."""
    assert ask(node, "first").status_code == 200
    over = threading.Event()

    def use() -> None:
        while not over.is_set():
            ask(node, "first", max_tokens=400, min_tokens=400)

    user = threading.Thread(target=use)
    user.start()
    asker = threading.Thread(target=lambda: ask(node, "second", x_priority=7, x_timeout_s=100))
    asker.start()
    try:
        yield
    finally:
        over.set()
        user.join(120)
        unload(node, "first")
        asker.join(120)
        unload(node, "second")


def pins(node: Node) -> list[str]:
    return [one["model"] for one in node.http.get("/pool").json()["pins"]]


def loads(node: Node) -> list[Any] | None:
    """Return what the gateway has noted; None while it does not answer."""
    with contextlib.suppress(httpx.HTTPError):
        answer = node.http.get("/pool")
        if answer.status_code == 200:
            found = answer.json()["loads"]
            return None if found["since_s"] is None else found["changes"]
    return None


def changes(page: Page) -> list[tuple[str, str]]:
    """Return what the list of the last hour says, the latest first: what, and of which model."""
    rows = page.locator("section:last-child tbody tr").all()
    return [(row.locator(".pill").inner_text(), row.locator("strong").inner_text()) for row in rows]


def test_a_pool_without_anything_says_so(tab: Tab, node: Node) -> None:
    page = tab.page
    expect(page.get_by_text("No request waits.")).to_be_visible()
    expect(page.get_by_text("No model is in memory.")).to_be_visible()


def test_who_waits_for_what_and_why_is_shown(tab: Tab, node: Node) -> None:
    page = tab.page
    with waiting(node):
        card = page.locator(".plan-card")
        expect(card.locator("h3")).to_have_text("second")
        told = {one["model"]: one for one in node.http.get("/pool").json()["waits"]}
        assert "first" in told["second"]["why"]
        expect(card).to_contain_text("first")
        expect(card).to_contain_text("requests")
        row = page.locator("section").first.locator("tbody tr")
        expect(row).to_have_count(1)
        expect(row).to_contain_text("second")
        assert row.locator(".priority").inner_text() == "7"
        turn = page.locator("section", has=page.get_by_role("heading", name="In memory"))
        expect(turn.locator("tbody tr", has_text="first")).to_contain_text("in use")
        expect(turn.locator("tbody tr", has_text="first")).to_contain_text("min")
    expect(page.get_by_text("No request waits.")).to_be_visible()
    expect(page.locator(".plan-card")).to_have_count(0)


def test_who_asks_is_listed(tab: Tab, node: Node) -> None:
    page = tab.page
    for _ in range(2):
        assert ask(node, "first", x_client_id="ann").status_code == 200
    assert ask(node, "no-such", x_client_id="ann", x_cooldown=3000).status_code == 404
    assert ask(node, "first", x_client_id="calm", x_cooldown=3000).status_code == 200
    section = page.locator("section", has=page.get_by_role("heading", name="Clients of this node"))
    ann = section.locator("tbody tr", has_text="ann")
    # requests, failed, refused, waiting: as the table has them
    expect(ann.locator("td.n").nth(0)).to_have_text("2", timeout=15_000)
    expect(ann.locator("td.n").nth(2)).to_have_text("1", timeout=15_000)
    expect(ann).to_contain_text("x_client_id")
    expect(section.locator("tbody tr", has_text="calm")).to_contain_text("cooldown for")
    unload(node, "first")


def test_what_was_loaded_and_unloaded_is_drawn_and_listed(tab: Tab, node: Node) -> None:
    page = tab.page
    for model in ("first", "second"):
        assert ask(node, model).status_code == 200
        unload(node, model)
    expect(page.locator(".hours .span.ready").first).to_be_visible()
    expected = [
        (what, model)
        for model in ("second", "first")
        for what in ("unloaded", "unloading", "ready", "loading")
    ]
    eventually(lambda: changes(page)[:8] == expected, 20, f"it lists {expected}")
    label = page.locator(".hours svg").get_attribute("aria-label") or ""
    assert "loaded" in label and "unloaded" in label
    told = node.http.get("/pool").json()["loads"]
    indexes = [one["index"] for one in told["changes"]]
    assert indexes == sorted(indexes) and all(one["nodes"] for one in told["changes"])
    assert [one["why"] for one in told["changes"] if one["what"] == "unloading"][-1]


def test_a_model_is_pinned_and_unpinned_by_keyboard(tab: Tab, node: Node) -> None:
    assert ask(node, "first").status_code == 200
    page = tab.page
    page.get_by_role("button", name="Pin first", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").filter(has_text="first stays in memory")).to_be_visible()
    eventually(lambda: pins(node) == ["first"], 20, "it is pinned")
    page.get_by_role("button", name="Unpin first", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").filter(has_text="Unpinned ")).to_be_visible()
    eventually(lambda: pins(node) == [], 20, "it is pinned no longer")


@pytest.mark.parametrize(("size", "scheme"), [wide("light"), phone("dark")])
def test_axe_finds_nothing_in_a_pool_at_work(
    browser: Browser, node: Node, axe: str, size: tuple[int, int], scheme: Any
) -> None:
    with waiting(node), opened(browser, node.url, size, scheme) as tab:
        page = tab.open("/#pool")
        expect(page.locator(".plan-card")).to_be_visible()
        expect(page.locator(".hours svg")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        page.evaluate(axe)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        assert [(one["id"], one["impact"]) for one in found["violations"]] == []
        assert tab.errors == []


def test_a_gateway_that_began_anew_says_since_when_it_knows(browser: Browser, node: Node) -> None:
    assert ask(node, "first").status_code == 200
    before = node.pid("gateway")
    kill(before)
    eventually(lambda: node.processes().get("gateway", before) != before, 60, "it is started again")
    eventually(lambda: loads(node) == [], 60, "none of its processes is one of before")
    with opened(browser, node.url) as tab:
        page = tab.open("/#pool")
        expect(page.get_by_text("has recorded since")).to_be_visible()
        expect(page.locator(".hours .span.ready")).to_have_count(1)
        tab.check()
