"""The page's view of a node's settings, on a real node."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.browser.browsing import SIZES, Tab, focused, opened, reach
from tests.harness.nodes import Node, eventually

REFUSED = "status of 400"
"""What the browser itself writes into the console for an answer that refuses."""


@pytest.fixture
def tab(browser: Browser, node: Node) -> Iterator[Tab]:
    with opened(browser, node.url, expects=(REFUSED,)) as made:
        made.open("/#settings")
        made.page.wait_for_selector(".setting")
        yield made
        made.check()


def written(node: Node) -> dict[str, Any]:
    return tomllib.loads((node.home / "config" / "shoal.toml").read_text())


def setting(tab: Tab, key: str) -> Locator:
    return tab.page.locator(f'.setting[data-key="{key}"]')


def test_a_setting_is_found_changed_and_given_back_by_keyboard(tab: Tab, node: Node) -> None:
    page = tab.page
    page.focus("nav a[href='#settings']")
    reach(page, lambda: page.evaluate("document.activeElement.id") == "find", "the search")
    page.keyboard.type("keep_alive_s")
    # The other one is of embedding models, whose text names this one.
    expect(page.locator(".setting")).to_have_count(2)
    row = setting(tab, "keep_alive_s")
    expect(row).to_contain_text("Seconds that an idle model stays in memory")
    expect(row).to_contain_text("default")
    reach(page, lambda: focused(page) == "Change keep_alive_s", "the button")
    page.keyboard.press("Enter")
    eventually(lambda: focused(page) == "keep_alive_s", 20, "the field has the focus")
    page.keyboard.press("Control+A")
    page.keyboard.type("soon")
    page.keyboard.press("Enter")
    expect(row.get_by_role("alert")).to_have_text("keep_alive_s: not a number.")
    page.keyboard.press("Control+A")
    page.keyboard.type("77")
    page.keyboard.press("Enter")
    expect(page.get_by_text("keep_alive_s is saved.")).to_be_visible()
    assert written(node)["keep_alive_s"] == 77.0
    expect(row).to_contain_text("shoal.toml")
    expect(row).to_contain_text("runs with 300 until shoal restart")
    expect(page.locator(".head")).to_contain_text("1 waits for a restart")
    eventually(lambda: focused(page) == "Change keep_alive_s", 20, "the focus is back")
    page.keyboard.press("Enter")
    row.get_by_role("button", name="Use the default").click()
    expect(page.get_by_text("keep_alive_s has its default again.")).to_be_visible()
    assert "keep_alive_s" not in written(node)


def test_what_the_node_refuses_is_told_beside_the_field(tab: Tab, node: Node) -> None:
    setting(tab, "slots").get_by_role("button").click()
    tab.page.get_by_label("slots", exact=True).fill("0")
    tab.page.get_by_role("button", name="Save").click()
    expect(setting(tab, "slots").get_by_role("alert")).to_contain_text("must be at least 1")
    assert "slots" not in written(node)


@pytest.mark.proof
def test_lists_and_choices_are_entered_as_such(tab: Tab, node: Node) -> None:
    page = tab.page
    setting(tab, "log_level").get_by_role("button").click()
    page.get_by_label("log_level", exact=True).select_option("debug")
    expect(setting(tab, "log_level")).to_contain_text("Takes effect at once.")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("log_level is saved.")).to_be_visible()
    expect(setting(tab, "log_level").locator(".pill.warn")).to_have_count(0)
    setting(tab, "fetch.types").get_by_role("button").click()
    page.get_by_label("fetch.types", exact=True).fill("text/*\n\nimage/*")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("fetch.types is saved.")).to_be_visible()
    assert written(node)["fetch"]["types"] == ["text/*", "image/*"]
    done = node.shoal("config", "unset", "log_level", "fetch.types")
    assert done.returncode == 0, done.stderr
    expect(setting(tab, "fetch.types")).to_contain_text("default")


def test_what_is_changed_on_the_machine_alone_says_how(tab: Tab) -> None:
    row = setting(tab, "http_host")
    expect(row.get_by_role("button")).to_have_count(0)
    expect(row).to_contain_text("shoal config set http_host VALUE")


@pytest.mark.proof
@pytest.mark.parametrize("size", SIZES)
def test_axe_finds_nothing_in_a_setting_that_is_changed(
    browser: Browser, node: Node, axe: str, size: tuple[int, int]
) -> None:
    with opened(browser, node.url, size) as tab:
        page = tab.open("/#settings")
        page.wait_for_selector(".setting")
        setting(tab, "runner.kv").get_by_role("button").click()
        page.wait_for_selector(".setting form")
        page.evaluate(axe)
        assert page.evaluate("axe.run(document)")["violations"] == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        tab.check()
