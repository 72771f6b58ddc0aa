"""What the page shows of a real node's processes, and of its last hour."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.browsing import SIZES, Tab, opened
from tests.harness.nodes import Node, eventually


@pytest.fixture
def tab(browser: Browser, node: Node) -> Iterator[Tab]:
    with opened(browser, node.url) as made:
        made.open("/#watch")
        yield made
        made.check()


def test_stacks_and_a_flame_graph_of_a_process(tab: Tab) -> None:
    page = tab.page
    page.get_by_label("Process to profile").select_option("telemetry")
    page.get_by_role("button", name="Stacks").click()
    expect(page.locator(".stack", has_text="MainThread")).to_be_visible()
    page.get_by_role("button", name="Sample 2 s").click()
    graph = page.locator(".flame svg")
    expect(graph).to_be_visible()
    assert graph.locator("g").count() > 5
    expect(page.locator(".flame tbody tr").first).to_contain_text("%")
    threads = re.compile("^(MainThread|meter)")  # a sample may miss one of them
    graph.get_by_role("button", name=threads).first.focus()
    page.keyboard.press("Enter")
    expect(graph.locator("g").first).to_contain_text(threads)
    page.get_by_role("button", name="Show all threads").click()
    expect(graph.locator("g").first).to_contain_text("all threads")


def test_the_last_hour_is_drawn_from_what_the_node_has_noted(tab: Tab, node: Node) -> None:
    page = tab.page
    eventually(
        lambda: len(node.http.get("/metrics/history").json()["points"]) > 1, 60, "points are noted"
    )
    hour = page.get_by_role("button", name="An hour")
    hour.focus()
    page.keyboard.press("Enter")
    expect(hour).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".head")).to_contain_text("every ten seconds")
    memory = page.locator('.plot[data-key="memory"]')
    expect(memory.locator(".curve")).to_have_attribute("d", re.compile("M.*L"))
    page.get_by_role("button", name="5 minutes").click()
    expect(page.locator(".head")).to_contain_text("each second")


PAST = """async () => {
  const { live } = await import("/dashboard/live.js");
  return live.past.map((point) => point.at_s);
}"""
"""The instants that the plots of five minutes have."""


def test_five_minutes_begin_with_what_the_node_has_noted_of_them(tab: Tab, node: Node) -> None:
    def noted() -> list[float]:
        points = node.http.get("/metrics/history").json()["points"]
        return [point["at_s"] for point in points]

    eventually(lambda: len(noted()) > 1, 60, "points are noted")
    opened_s = tab.page.evaluate("Date.now() / 1000")
    page = tab.open("/?again#watch")
    page.wait_for_selector(".pulse.good")
    known = set(noted())

    def whole() -> list[float] | None:
        """Until there are points of before and of the stream."""
        found: list[float] = page.evaluate(PAST)
        return found if known & set(found) and found[-1] > opened_s else None

    past = eventually(whole, 20, "points of before and of now")
    assert past == sorted(past) and len(known & set(past)) > 1
    curve = page.locator('.plot[data-key="memory"] .curve').first
    expect(curve).to_have_attribute("d", re.compile("M.*L"))


@pytest.mark.proof
@pytest.mark.parametrize("size", SIZES)
def test_axe_finds_nothing_in_a_flame_graph(
    browser: Browser, node: Node, axe: str, size: tuple[int, int]
) -> None:
    with opened(browser, node.url, size) as tab:
        page = tab.open("/#watch")
        page.get_by_label("Process to profile").select_option("telemetry")
        page.get_by_role("button", name="Sample 2 s").click()
        page.wait_for_selector(".flame svg")
        page.evaluate(axe)
        assert page.evaluate("axe.run(document)")["violations"] == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        tab.check()
