"""The page's view of memory that another program has leased, on a real node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.browsing import Tab, opened
from tests.harness.nodes import Node


@pytest.fixture
def tab(browser: Browser, node: Node) -> Iterator[Tab]:
    with opened(browser, node.url) as made:
        made.open("/#pool")
        yield made
        made.check()


def test_a_lease_is_shown_and_asked_back(node: Node, tab: Tab, axe: str, tmp_path: Path) -> None:
    made = node.http.post("/leases", json={"size_bytes": 64_000_000, "owner": "train.py"}).json()
    try:
        expect(tab.page.get_by_text("No request waits.")).to_be_visible()
        row = tab.page.locator("tr", has_text="train.py")
        expect(row).to_contain_text("64 MB")
        expect(row).to_contain_text("reef")
        tab.page.get_by_role("button", name=f"Ask back {made['lease']}").click()
        expect(tab.page.get_by_text("Asked train.py to release the memory.")).to_be_visible()
        expect(row).to_contain_text("asked back for an operator")
        tab.page.evaluate(axe)
        found = tab.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        assert not found["violations"], found["violations"]
        tab.page.screenshot(path=tmp_path / "leases.png")
    finally:
        node.http.delete(f"/leases/{made['lease']}")
    expect(tab.page.locator("tr", has_text="train.py")).to_have_count(0)
