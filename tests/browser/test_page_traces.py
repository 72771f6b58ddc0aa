"""The page's waterfall of a traced request, on a real node."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.browsing import Tab, opened, phone, wide
from tests.harness.nodes import Node, eventually
from tests.harness.traces import check_trace


def turned(page: Page, node: Node, button: str, on: bool) -> None:
    """Press the button, until each HTTP process of the gateway has heard of it."""
    page.get_by_role("button", name=button, exact=True).click()
    eventually(
        lambda: all(node.http.get("/v1/tracing").json()["on"] is on for _ in range(12)),
        20,
        "each process knows",
    )


def shown(page: Page, node: Node) -> str:
    """Have a request traced, and its waterfall shown; its id."""
    answer = node.chat("What is shoal?", x_trace=True, max_tokens=40, ignore_eos=True)
    name = answer.json()["id"].removeprefix("chatcmpl-")
    page.get_by_role("button", name=f"Show {name}", exact=True).click()
    expect(page.locator(".waterfall")).to_contain_text(f"Where the time of {name} went")
    return name


def test_a_traced_request_is_followed_through_its_waterfall(
    tab: Tab, node: Node, tmp_path: Path
) -> None:
    page = tab.page
    tab.view("requests")
    turned(page, node, "Trace every request", True)
    expect(page.get_by_text("Every request is traced, on every node.")).to_be_visible()
    turned(page, node, "Stop tracing", False)
    expect(page.get_by_text("Only requests with")).to_be_visible()

    name = shown(page, node)
    raw = node.http.get(f"/v1/traces/{name}/raw").json()
    spans = [*raw["gateway"], *raw["lead"]["spans"]]
    expect(page.locator(".waterfall .track i")).to_have_count(len(spans))
    # the steps of an answer share a row
    names = [one["name"] for one in spans]
    expect(page.locator(".waterfall tbody tr")).to_have_count(len(list(itertools.groupby(names))))
    for text in ("until the first entry", "text to tokens", "prompt", "tokens", "end"):
        expect(page.locator(".waterfall")).to_contain_text(text)
    boxes = [bar.bounding_box() for bar in page.locator(".waterfall .track i").all()]
    track = page.locator(".waterfall .track").first.bounding_box()
    assert track is not None
    for box in boxes:
        assert box is not None and box["x"] >= track["x"] - 1
        assert box["x"] + box["width"] <= track["x"] + track["width"] + 3
    with page.expect_download() as saving:
        page.get_by_role("button", name="Save for Perfetto").click()
    file = tmp_path / "saved.json"
    saving.value.save_as(file)
    assert saving.value.suggested_filename == f"{name}.trace.json"
    check_trace(json.loads(file.read_text()))
    page.get_by_role("button", name=f"Hide {name}", exact=True).click()
    expect(page.locator(".waterfall")).to_have_count(0)


@pytest.mark.proof
@pytest.mark.parametrize(("size", "scheme"), [wide("dark"), phone("light")])
def test_axe_finds_nothing_in_a_waterfall(
    browser: Browser, node: Node, axe: str, size: tuple[int, int], scheme: str
) -> None:
    with opened(browser, node.url, size, scheme) as tab:  # type: ignore[arg-type]
        page = tab.open("/#requests")
        shown(page, node)
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        page.evaluate(axe)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found["violations"]] == []
        tab.check()
