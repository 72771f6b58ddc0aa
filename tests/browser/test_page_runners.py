"""What runners of a cluster did last, on the page: one that was killed, and a rank that is frozen;
and a process of the other node, looked into.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.browser.browsing import SIZES, Tab, opened
from tests.harness.clusters import Cluster
from tests.harness.nodes import Node, kill

KEPT_MS = 120_000
"""A frozen runner is ended after some 10 s, and the page asks each 5 s."""


@pytest.fixture
def tab(browser: Browser, cluster: Cluster) -> Iterator[Tab]:
    with opened(browser, cluster.nodes[0].url) as made:
        yield made
        made.check()


def follower(cluster: Cluster) -> tuple[Node, dict[str, Any]]:
    """The node of rank 1 of a new group, and what the state says of it."""
    cluster.clear()
    placed = cluster.place(min_nodes=2)
    (ready,) = [one for one in placed["ready"] if one["rank"] == 1]
    node = cluster.by_id(ready["node"])
    assert cluster.nodes[0].chat("hello", max_tokens=8).status_code == 200
    return node, ready


def key(ready: dict[str, Any]) -> str:
    return f'[data-key="{ready["node"]} {ready["process"]} {ready["pid"]}"]'


def row(tab: Tab, ready: dict[str, Any]) -> Locator:
    return tab.page.locator(f".runner{key(ready)}")


def behind(tab: Tab, ready: dict[str, Any]) -> Locator:
    return tab.page.locator(f".behind{key(ready)}")


@pytest.mark.proof
def test_a_killed_runner_has_its_last_phases_and_its_rank_is_named(
    tab: Tab, cluster: Cluster
) -> None:
    node, ready = follower(cluster)
    page = tab.open("/#cluster")
    expect(row(tab, ready).locator(".pill.good")).to_have_text("ready")
    kill(ready["pid"], signal.SIGKILL)
    ended = row(tab, ready).locator("> summary")
    expect(ended).to_contain_text("exit code -1", timeout=KEPT_MS)
    expect(behind(tab, ready)).to_have_text(
        re.compile(f"waited for rank 1 of .* on {node.env['SHOAL_NODE_NAME']}: it ended without")
    )
    ended.focus()
    page.keyboard.press("Enter")
    entries = row(tab, ready).locator("ol li")
    expect(entries.filter(has_text="load_model")).to_have_count(1)
    expect(entries.filter(has_text=re.compile("steps.*step.*B of")).first).to_be_visible()


@pytest.mark.proof
def test_a_frozen_rank_is_named_and_its_stacks_are_kept(tab: Tab, cluster: Cluster) -> None:
    node, ready = follower(cluster)
    can = node.http.get("/v1/diagnostics/node").json()["diagnosis"]["py_spy"]
    tab.open("/#cluster")
    expect(row(tab, ready)).to_have_count(1)
    kill(ready["pid"], signal.SIGSTOP)
    expect(behind(tab, ready)).to_contain_text(re.compile("The other ranks wait(ed)? for rank 1"))
    expect(row(tab, ready).locator("> summary")).to_contain_text("ended at", timeout=KEPT_MS)
    row(tab, ready).locator("> summary").click()
    if can:
        expect(row(tab, ready).locator(".stack", has_text="MainThread")).to_be_visible()
    else:
        expect(row(tab, ready)).to_contain_text("When it stopped responding:")


@pytest.mark.proof  # test_page_watch.py looks into one of the asked node
def test_a_process_of_the_other_node_is_looked_into(tab: Tab, cluster: Cluster) -> None:
    other = cluster.nodes[1].node_id()
    page = tab.open("/#watch")
    chosen = page.get_by_label("Process to profile")
    expect(chosen.locator('optgroup[label="kelp"] option', has_text="telemetry")).to_have_count(1)
    chosen.select_option(f"{other} telemetry")
    page.get_by_role("button", name="Stacks").click()
    expect(page.locator(".stack", has_text="MainThread")).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="telemetry on kelp")).to_have_count(1)
    page.get_by_role("button", name="Sample 2 s").click()
    expect(page.locator(".flame svg")).to_be_visible()


@pytest.mark.proof
@pytest.mark.parametrize("size", SIZES)
def test_axe_finds_nothing_in_what_runners_did(
    browser: Browser, cluster: Cluster, axe: str, size: tuple[int, int]
) -> None:
    with opened(browser, cluster.nodes[0].url, size) as tab:
        page = tab.open("/#cluster")
        page.locator(".runner summary").first.click()
        page.wait_for_selector(".runner ol li")
        page.evaluate(axe)
        assert page.evaluate("axe.run(document)")["violations"] == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        tab.check()
