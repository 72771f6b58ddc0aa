"""The page of one node, as a visitor uses it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.browsing import PHONE, WIDE, Tab, focused, opened, reach
from tests.harness.nodes import MODEL, Node, eventually, kill

VIEWS = ("chat", "cluster", "models", "pool", "requests", "watch", "settings")
MOST_FILES, MOST_BYTES = 15, 300_000
WEATHER = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the current weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]


def asks_with(page: Page, **fields: Any) -> None:
    """Have what the page asks of a model carry further fields."""

    def more(route: Route) -> None:
        asked = json.loads(route.request.post_data or "{}")
        route.continue_(post_data=json.dumps({**asked, **fields}))

    page.route("**/v1/chat/completions", more)


def ask(page: Page, text: str) -> None:
    page.fill("#message", text)
    page.press("#message", "Enter")


def ended(page: Page) -> None:
    page.wait_for_selector("article.answer:last-child .acts")


def test_a_first_visit_comes_to_a_streamed_answer_in_three_actions(
    browser: Browser, node: Node
) -> None:
    with opened(browser, node.url) as tab:
        page = tab.open()  # one
        page.wait_for_selector("#message:focus")
        page.keyboard.type("What is shoal?")  # two
        page.keyboard.press("Enter")  # three
        ended(page)
        article = page.locator("article.answer")
        expect(article.locator("p").first).to_contain_text("language models")
        figures = article.locator(".figures").inner_text()
        assert MODEL in figures and "tokens/s" in figures and "first after" in figures
        tab.check()


def test_all_that_is_fetched_is_few_bytes_in_few_requests(browser: Browser, node: Node) -> None:
    with opened(browser, node.url) as tab:
        sizes: dict[str, int] = {}
        tab.page.on("response", lambda got: sizes.update({got.url: len(got.body())})
                    if "/dashboard/" in got.url or got.url == f"{node.url}/" else None)  # fmt: skip
        began = time.monotonic()
        page = tab.open()
        page.wait_for_selector("#message")
        print(f"the first view after {time.monotonic() - began:.2f} s")
        page.wait_for_selector(".pulse.good")
        assert 10 < len(sizes) <= MOST_FILES
        assert 30_000 < sum(sizes.values()) <= MOST_BYTES
        assert page.evaluate("Object.keys(localStorage).length") == 0


def test_an_answer_can_be_stopped_and_its_part_stays(tab: Tab) -> None:
    page = tab.page
    asks_with(page, min_tokens=3000, max_tokens=3500)
    ask(page, "What is shoal?")
    page.wait_for_selector("article.answer > p:not(.waiting)")
    page.get_by_role("button", name="Stop", exact=True).click()
    ended(page)
    assert "stopped" in page.locator("article.answer .figures").inner_text()
    assert page.locator("article.answer > p").first.inner_text().strip()


def test_chats_stay_in_this_browser_and_can_be_gone_on_with_and_deleted(tab: Tab) -> None:
    page = tab.page
    ask(page, "What is shoal?")
    ended(page)
    page.reload()
    page.click("summary:has-text('Chats')")
    page.click(".chats .title")
    expect(page.locator("article.user")).to_have_text("What is shoal?")
    ask(page, "Hello!")
    expect(page.locator("article.answer")).to_have_count(2)
    ended(page)
    kept = json.loads(page.evaluate("localStorage.getItem('shoal.chats')"))
    assert [len(chat["messages"]) for chat in kept] == [4]
    page.click("summary:has-text('Chats')")
    page.click(".chats button[aria-label^='Delete']")
    expect(page.locator(".chats li")).to_have_count(0)
    assert json.loads(page.evaluate("localStorage.getItem('shoal.chats')")) == []


def test_thinking_is_folded_and_a_call_is_shown_and_answered(tab: Tab) -> None:
    page = tab.page
    page.click("summary:has-text('Parameters')")
    page.select_option("#parameter-reasoning_effort", "high")
    page.keyboard.press("Escape")
    ask(page, "What is shoal?")
    ended(page)
    thinking = page.locator("details.thinking")
    expect(thinking).not_to_have_attribute("open", "")
    thinking.locator("summary").click()
    assert thinking.locator("div").inner_text().strip()
    page.get_by_role("button", name="New chat").click()
    page.click("summary:has-text('Parameters')")
    page.select_option("#parameter-reasoning_effort", "none")
    page.fill("#parameter-tools", json.dumps(WEATHER))
    page.fill("#parameter-temperature", "0")
    page.keyboard.press("Escape")
    ask(page, "What is the weather in Paris?")
    ended(page)
    call = page.locator(".call")
    expect(call.locator("strong")).to_contain_text("get_weather")
    assert "Paris" in call.locator("code").inner_text()
    call.locator("input").fill("Sunny, 21 degrees")
    call.get_by_role("button").click()
    expect(page.locator("article.answer")).to_have_count(2)
    ended(page)


def test_tools_that_are_no_json_are_refused_in_words(tab: Tab) -> None:
    page = tab.page
    page.click("summary:has-text('Parameters')")
    page.fill("#parameter-tools", "{no")
    page.keyboard.press("Escape")
    ask(page, "Hello!")
    expect(page.locator("article.answer .bad")).to_contain_text("not a JSON")


def test_what_a_model_writes_stays_text(tab: Tab) -> None:
    page = tab.page
    page.evaluate(
        """async () => {
          const { prose } = await import("/dashboard/dom.js");
          const text = "<img src=x onerror=alert(1)>\\n\\n```js\\n<b>hi</b>\\n```\\n" +
            "- a\\n- **b** `c`\\n1. d";
          const shown = document.createElement("div");
          shown.id = "shown";
          shown.append(...prose(text));
          document.body.append(shown);
        }"""
    )
    log = page.locator("#shown")
    assert log.locator("img").count() == 0 and log.locator("b").count() == 0
    expect(log.locator("p").first).to_have_text("<img src=x onerror=alert(1)>")
    expect(log.locator("pre code")).to_have_text("<b>hi</b>")
    assert log.locator("li").all_inner_texts() == ["a", "b c", "d"]


def test_an_open_request_is_listed_and_cancelled(tab: Tab, node: Node) -> None:
    page = tab.page
    tab.view("requests")
    stream = node.stream("What is shoal?", min_tokens=3500, max_tokens=3600)
    page.get_by_role("button", name="Cancel req-").first.click()
    expect(page.get_by_role("status").filter(has_text="Cancelling the request")).to_be_visible()
    stream.wait(30)
    assert stream.usage is None or stream.usage["completion_tokens"] < 3500
    expect(page.locator("tbody .bar-cell .part").first).to_be_visible()


def test_a_model_is_loaded_from_its_plan_pinned_and_unloaded(tab: Tab, node: Node) -> None:
    page = tab.page
    for name in node.state()["instances"]:
        node.http.delete(f"/instance/{name}")
    tab.view("models")
    expect(page.get_by_text("No model is loaded")).to_be_visible()
    page.get_by_role("button", name=f"Load {MODEL}", exact=True).click()
    expect(page.locator(".plan")).to_contain_text("On reef")
    page.get_by_label("Keep it loaded").check()
    page.get_by_role("button", name="Load it").click()
    expect(page.locator(".pill.good", has_text="ready")).to_be_visible()
    expect(page.locator(".pill", has_text="pinned")).to_be_visible()
    page.get_by_role("button", name=f"Unload {MODEL}", exact=True).click()
    page.get_by_role("button", name=f"Really unload {MODEL}").click()
    expect(page.get_by_text("No model is loaded")).to_be_visible()
    eventually(lambda: node.state()["instances"] == {}, 30, "nothing is loaded")


def test_a_message_that_is_sent_before_the_models_are_known_waits_for_them(
    browser: Browser, node: Node
) -> None:
    refused: list[str] = []

    def late(route: Route) -> None:
        if len(refused) < 3:
            refused.append(route.request.url)
            route.fulfill(status=503, json={"error": {"message": "not yet"}})
        else:
            route.continue_()

    with opened(browser, node.url, expects=("status of 503",)) as tab:
        tab.page.route("**/v1/models", late)
        tab.open()
        ask(tab.page, "Hello!")
        ended(tab.page)
        expect(tab.page.locator("article.answer").last).to_contain_text("Hello")
        assert len(refused) == 3
        tab.check()


def test_what_the_api_refuses_is_told_in_its_words(tab: Tab) -> None:
    page = tab.page
    tab.view("models")
    page.fill(".pull input", "no such name at all")
    tab.errors.clear()
    page.get_by_role("button", name="Pull", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("no such name at all")
    # the browser itself notes the status of a refusal
    tab.errors = [error for error in tab.errors if "status of 4" not in error]


def test_the_keyboard_alone_is_enough(tab: Tab, node: Node) -> None:
    page = tab.page
    page.goto("about:blank")
    tab.open("/#watch")
    page.wait_for_selector(".pulse.good")
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to the content"
    reach(page, lambda: focused(page) == "Models", "the link to the models")
    page.keyboard.press("Enter")
    page.wait_for_selector(".chip")
    reach(page, lambda: focused(page) == f"Load {MODEL}", "the button that loads")
    time.sleep(2.5)  # snapshots come meanwhile
    assert focused(page) == f"Load {MODEL}", "what is shown anew keeps the focus"
    page.keyboard.press("Enter")
    page.wait_for_selector(".plan form")
    reach(page, lambda: focused(page) == "Cancel", "the way back")
    page.keyboard.press("Enter")
    page.wait_for_selector(".plan form", state="detached")
    page.evaluate("document.querySelector('.skip').focus()")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.evaluate("document.querySelector('nav a').focus()")
    page.keyboard.press("Enter")
    page.wait_for_selector("#message:focus")
    page.keyboard.type("Hello!")
    page.keyboard.press("Enter")
    ended(page)


@pytest.mark.parametrize(
    ("size", "scheme"), [(WIDE, "light"), pytest.param(PHONE, "dark", marks=pytest.mark.proof)]
)
def test_axe_finds_nothing_and_nothing_is_wider_than_the_screen(
    browser: Browser, node: Node, axe: str, size: tuple[int, int], scheme: Any
) -> None:
    with opened(browser, node.url, size, scheme) as tab:
        page = tab.open()
        ask(page, "What is shoal?")
        ended(page)
        tab.check()
        for view in VIEWS:
            page.click(f"nav a[href='#{view}']")
            page.wait_for_selector(f"main.{view} h1")
            eventually(lambda: page.get_by_text("Loading …").count() == 0, 15, f"{view} is drawn")
            assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
            page.evaluate(axe)
            found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
            told = [
                (one["id"], one["impact"], [node["html"][:200] for node in one["nodes"]])
                for one in found["violations"]
            ]
            assert told == [], view
        assert tab.errors == []


def test_the_page_comes_back_by_itself_when_its_gateway_restarts(
    browser: Browser, node: Node
) -> None:
    with opened(browser, node.url, expects=("Failed to load resource", "net::")) as tab:
        page = tab.open()
        page.wait_for_selector(".pulse.good")
        tab.view("watch")
        page.evaluate("window.mark = 1")
        began = kill(node.pid("gateway"))
        expect(page.get_by_text("no connection for")).to_be_visible()
        print(f"it says that the connection is gone after {time.monotonic() - began:.2f} s")
        expect(page.get_by_text("Connected again")).to_be_visible(timeout=60_000)
        print(f"it is back after {time.monotonic() - began:.2f} s")
        page.wait_for_selector(".pulse.good")
        assert page.evaluate("window.mark") == 1, "without being loaded anew"
        page.click("nav a[href='#chat']")
        ask(page, "What is shoal?")
        ended(page)
        assert tab.reports() == []
