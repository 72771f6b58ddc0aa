"""A browser, a node and a cluster that the page's tests share; each file may have nodes of its own.

They are closed before a test of another folder begins: while Playwright runs, its event loop is
that of the thread, and no other can be run there. Shared nodes are left as they were found; tests
that kill one start it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.browser.browsing import PATIENCE_MS, NoBrowser, Tab, launched, opened
from tests.harness.clusters import Cluster, view_of
from tests.harness.javascript import Installed, NotInstalled, installed
from tests.harness.missing import missing
from tests.harness.nodes import Node, eventually, running_node
from tests.harness.shared_things import SharedThings

HERE = Path(__file__).parent
SHARED = SharedThings()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Close what is shared after the folder's last test."""
    SHARED.close_when_left(nextitem, lambda path: path.is_relative_to(HERE))


def pytest_sessionfinish() -> None:
    """Close what is shared where the tests were broken off."""
    SHARED.close()


@contextmanager
def a_browser() -> Iterator[Browser]:
    """Chromium; where there is none, it is said in words."""
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        try:
            found = launched(playwright)
        except NoBrowser as problem:
            missing(problem)
        yield found
        found.close()


@contextmanager
def a_pair() -> Iterator[Cluster]:
    """Two nodes, `reef` and `kelp`, the first asked, each with two HTTP processes."""
    made = Cluster(2)
    for node, name in zip(made.nodes, ("reef", "kelp"), strict=True):
        node.env |= {"SHOAL_NODE_NAME": name, "SHOAL_HTTP_PROCESSES": "2"}
    try:
        made.up()
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def browser() -> Browser:
    return SHARED.get("browser", a_browser)


@pytest.fixture(scope="module")
def node(browser: Browser) -> Node:
    """A node that loads the bundled model when it is asked for, and that serves; none without a
    browser."""
    made = SHARED.get("node", lambda: running_node(SHOAL_NODE_NAME="reef", SHOAL_PRELOAD=""))
    eventually(lambda: view_of(made), 30, "the node answers after what an earlier file did")
    return made


@pytest.fixture
def tab(browser: Browser, node: Node) -> Iterator[Tab]:
    """A new tab, at the node's page."""
    with opened(browser, node.url) as made:
        made.open()
        yield made
        made.check()


@pytest.fixture(scope="module")
def cluster(browser: Browser) -> Cluster:
    """The shared pair, with nothing placed; none without a browser."""
    made = SHARED.get("pair", a_pair)
    eventually(made.formed, 30, "both nodes answer after what an earlier file did")
    made.clear()
    return made


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core; where it cannot be had, it is said in words."""
    try:
        environment: Installed = installed("browser")
    except NotInstalled as problem:
        missing(problem)
    return (environment.folder / "node_modules" / "axe-core" / "axe.min.js").read_text()
