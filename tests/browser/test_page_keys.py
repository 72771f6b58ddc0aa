"""The page of a gateway that asks for keys: which tab holds one, and what each scope opens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.browsing import Tab, opened
from tests.harness.nodes import Node, eventually, running_node

KEY = "sk-only-for-this-test-0123456789"
EXPECTED = ("status of 401", "status of 403")
"""What the browser itself writes into the console for an answer that refuses."""


@pytest.fixture(scope="module")
def locked(browser: Browser) -> Iterator[Node]:
    """A node that asks for a key, with the bundled model loaded when it is asked for."""
    # one HTTP process, so that the page's knows a key as soon as it was made
    with running_node(SHOAL_API_KEYS=KEY, SHOAL_PRELOAD="", SHOAL_HTTP_PROCESSES="1") as made:
        yield made


@pytest.fixture
def tab(browser: Browser, locked: Node) -> Iterator[Tab]:
    with opened(browser, locked.url, expects=EXPECTED) as made:
        made.open()
        yield made
        made.check()


def enter(tab: Tab, key: str) -> None:
    tab.page.fill("#key", key)
    tab.page.keyboard.press("Enter")


def test_a_wrong_key_is_told_and_the_right_one_opens(tab: Tab) -> None:
    page = tab.page
    page.wait_for_selector("#key:focus")
    enter(tab, "sk-wrong")
    expect(page.get_by_role("alert")).to_have_text("Unknown API key.")
    enter(tab, KEY)
    page.wait_for_selector(".pulse.good")
    page.fill("#message", "What is shoal?")
    page.press("#message", "Enter")
    page.wait_for_selector(".acts")
    tab.view("cluster")
    page.wait_for_selector(".node-card")


def test_a_key_is_this_tabs_alone_and_can_be_forgotten(
    tab: Tab, browser: Browser, locked: Node
) -> None:
    page = tab.page
    enter(tab, KEY)
    page.wait_for_selector(".pulse.good")
    page.reload()
    page.wait_for_selector(".pulse.good")
    assert KEY not in page.evaluate("JSON.stringify(localStorage) + document.cookie + location")
    assert KEY not in page.content()
    assert [url for url in tab.asked if KEY in url] == []
    other = page.context.new_page()
    other.goto(locked.url)
    other.wait_for_selector("#key")
    other.close()
    page.get_by_role("button", name="Delete the key").click()
    page.wait_for_selector("#key")
    assert page.evaluate("sessionStorage.length") == 0
    assert page.locator(".node-card").count() == 0


def test_a_key_for_inference_opens_the_chat_alone(tab: Tab, locked: Node) -> None:
    page = tab.page
    asked = {"name": "guest", "scope": "inference"}
    made = locked.http.post("/apikeys", json=asked, headers={"Authorization": f"Bearer {KEY}"})
    assert made.status_code == 200, made.text
    key = {"Authorization": f"Bearer {made.json()['key']}"}
    eventually(lambda: locked.http.get("/v1/models", headers=key).is_success, 30, "it opens")
    enter(tab, made.json()["key"])
    expect(page.locator(".pulse")).to_contain_text("only use the chat")
    page.fill("#message", "What is shoal?")
    page.press("#message", "Enter")
    page.wait_for_selector(".acts")
    expect(page.locator("article.answer p").first).to_contain_text("language models")
    tab.view("cluster")
    expect(page.locator("main")).to_contain_text("This key")


def test_who_is_not_the_owner_has_the_chat_and_the_rest_by_the_owner_s_token(
    browser: Browser, node: Node
) -> None:
    token = (node.home / "state" / "http-token").read_text().strip()
    with opened(browser, node.url, expects=EXPECTED) as tab:
        page = tab.page
        page.set_extra_http_headers({"x-forwarded-for": "192.0.2.7"})
        tab.open()
        expect(page.locator(".pulse")).to_contain_text("only use the chat")
        tab.view("cluster")
        expect(page.locator("main")).to_contain_text("need the user who runs this node")
        page.get_by_role("button", name="I have a key").click()
        enter(tab, token)
        page.wait_for_selector(".pulse.good")
        page.wait_for_selector(".node-card")
        tab.check()
