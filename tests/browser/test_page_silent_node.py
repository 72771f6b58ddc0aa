"""The page of a cluster: its nodes, what is between them, and one that is killed and comes back.

The file sorts behind all others that use the pair, and kills `kelp` once for all of its tests.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.browsing import Tab, opened
from tests.browser.test_page_of_many import REFUSED, open_setting, written
from tests.harness.clusters import Cluster

SAID_S = 3.0
"""Within this, on a machine with nothing else to do, the page says that a node is silent."""


@pytest.fixture
def tab(browser: Browser, cluster: Cluster) -> Iterator[Tab]:
    with opened(browser, cluster.nodes[0].url, expects=(REFUSED,)) as made:
        made.open("/#cluster")
        yield made
        made.check()


def card_of(page: Page, name: str) -> Locator:
    return page.locator(".node-card", has=page.get_by_role("heading", name=name))


def test_a_cluster_is_shown_and_a_node_that_is_killed_is_said_to_be_silent(
    tab: Tab, cluster: Cluster
) -> None:
    cluster.place(min_nodes=2)
    page = tab.page
    expect(page.locator(".node-card")).to_have_count(2)
    expect(page.locator(".edge.crossed")).to_have_count(1)
    expect(page.locator(".ranks li", has_text="rank 1")).to_have_count(1)
    expect(page.locator(".node-card", has_text="leader")).to_have_count(1)
    page.wait_for_selector(".pulse.good")
    began = time.monotonic()
    cluster.nodes[1].kill()
    expect(card_of(page, "kelp").locator("header .pill.bad")).to_contain_text("silent")
    expect(page.locator(".pulse")).to_contain_text("kelp is silent")
    took_s = time.monotonic() - began
    print(f"said {took_s:.2f} s after the kill began")
    assert took_s < 5 * SAID_S


@pytest.mark.proof
def test_a_node_that_could_not_be_changed_is_named(tab: Tab, cluster: Cluster) -> None:
    page = tab.page
    cluster.nodes[1].kill()
    tab.view("settings")
    open_setting(page, "keep_alive_s")
    expect(page.locator(".pulse")).to_contain_text("kelp is silent")
    page.get_by_label("keep_alive_s", exact=True).fill("79")
    page.get_by_label("On every node of the cluster").check()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("keep_alive_s is saved on reef.")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("Not changed on kelp: node kelp")
    assert written(cluster.nodes[0])["keep_alive_s"] == 79.0
    done = cluster.nodes[0].shoal("config", "unset", "keep_alive_s")
    assert done.returncode == 0, done.stderr


def test_a_node_that_comes_back_is_shown_so(tab: Tab, cluster: Cluster) -> None:
    killed = cluster.nodes[1]
    killed.kill()
    card = card_of(tab.page, "kelp")
    expect(card.locator("header .pill.bad")).to_contain_text("silent")
    killed.up(180)
    expect(card.locator("header .pill.good")).to_have_count(1, timeout=60_000)
