"""A browser for each module, and where it goes: nodes of the tests' own.

Not for longer: while Playwright runs, its event loop is that of the thread, and no other can be run
there.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.browser.browsing import PATIENCE_MS, NoBrowser, Tab, launched, opened
from tests.harness.clusters import Cluster
from tests.harness.missing import missing
from tests.harness.nodes import Node, running_node


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium; where there is none, it is said in words."""
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        try:
            found = launched(playwright)
        except NoBrowser as problem:
            missing(problem)
        yield found
        found.close()


@pytest.fixture(scope="module")
def node(browser: Browser) -> Iterator[Node]:
    """A node that loads the bundled model when it is asked for; none without a browser."""
    with running_node(SHOAL_NODE_NAME="reef", SHOAL_PRELOAD="") as made:
        yield made


@pytest.fixture
def tab(browser: Browser, node: Node) -> Iterator[Tab]:
    """A new tab, at the node's page."""
    with opened(browser, node.url) as made:
        made.open()
        yield made
        made.check()


@pytest.fixture(scope="module")
def cluster(browser: Browser) -> Iterator[Cluster]:
    """Two nodes, `reef` and `kelp`, the first asked, each with two HTTP processes; none without a
    browser."""
    made = Cluster(2)
    for node, name in zip(made.nodes, ("reef", "kelp"), strict=True):
        node.env |= {"SHOAL_NODE_NAME": name, "SHOAL_HTTP_PROCESSES": "2"}
    try:
        made.up()
        yield made
    finally:
        made.close()
