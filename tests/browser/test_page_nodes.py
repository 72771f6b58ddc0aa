"""The page of a cluster: its nodes, what is between them, and one that is gone."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.browsing import opened
from tests.harness.clusters import Cluster

SAID_S = 3.0
"""Within this, on a machine with nothing else to do, the page says that a node is silent."""


@pytest.fixture(scope="module")
def cluster(browser: Browser) -> Iterator[Cluster]:
    """Two nodes, `reef` and `kelp`, the first asked."""
    made = Cluster(2)
    for node, name in zip(made.nodes, ("reef", "kelp"), strict=True):
        node.env["SHOAL_NODE_NAME"] = name
    try:
        made.up()
        yield made
    finally:
        made.close()


def test_a_cluster_is_shown_and_a_node_that_is_killed_is_said_to_be_silent(
    browser: Browser, cluster: Cluster
) -> None:
    cluster.place(min_nodes=2)
    asked, killed = cluster.nodes
    with opened(browser, asked.url, expects=("Failed to load resource",)) as tab:
        page = tab.open("/#cluster")
        expect(page.locator(".node-card")).to_have_count(2)
        expect(page.locator(".edge.crossed")).to_have_count(1)
        expect(page.locator(".ranks li", has_text="rank 1")).to_have_count(1)
        expect(page.locator(".node-card", has_text="holds the term")).to_have_count(1)
        page.wait_for_selector(".pulse.good")
        began = time.monotonic()
        killed.kill()
        card = page.locator(".node-card", has=page.get_by_role("heading", name="kelp"))
        expect(card.locator("header .pill.bad")).to_contain_text("silent")
        expect(page.locator(".pulse")).to_contain_text("kelp is silent")
        took_s = time.monotonic() - began
        print(f"said {took_s:.2f} s after the kill began")
        assert took_s < 5 * SAID_S
        killed.up(180)
        expect(card.locator("header .pill.good")).to_have_count(1, timeout=60_000)
        tab.check()
