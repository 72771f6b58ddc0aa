"""Writes the pictures of the page in `docs/pictures/`: each view, of a cluster of three at work,
and what its ranks did for a traced request; that of the pool, of a node with three models and
memory for one.

`python -m tests.browser.pictures [FOLDER]`; `make pictures` runs it. It starts the nodes, has them
asked by several clients, and takes each view at the width of a desk and of a phone.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
from playwright.sync_api import Browser, sync_playwright

from tests.browser.browsing import PHONE, WIDE, Tab, launched, opened
from tests.harness.clusters import Cluster
from tests.harness.nodes import MODEL, ROOT, Node, eventually, running_node

FOLDER = ROOT / "docs" / "pictures"
NAMES = ("reef", "kelp", "tide")
VIEWS = ("cluster", "models", "requests", "watch", "settings")
QUESTIONS = ("What is shoal?", "How do nodes find each other?", "What is a shard?", "Hello!")
TRACED_TOKENS = 48
MEASURED_S = 120.0
WATCHED_S = 150.0
OF_POOL = {"writer": "normal", "coder": "high", "helper": "low"}
"""Models that want the same memory, and how urgent requests for each are."""
POOL_WATCHED_S = 150.0
MOST_HEIGHT = 1280
"""A picture is as high as what is shown, up to this."""
BELOW = 36
"""The space below the last thing in a view."""
MOST_BYTES = 2_000_000


class Askers:
    """Clients that ask, each with pauses of its own, until they are told to stop."""

    def __init__(self, node: Node, count: int) -> None:
        self._node = node
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(at,)) for at in range(count)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End them, and wait for it."""
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def _ask(self, number: int) -> None:
        turn = number
        while not self._over.wait(0.2 + 0.5 * ((turn * 7 + number) % 4)):
            turn += 1
            question = QUESTIONS[turn % len(QUESTIONS)]
            tokens = 120 + 180 * (turn % 3)
            self._node.chat(question, max_tokens=tokens, ignore_eos=True, user=f"client-{number}")


def shot(tab: Tab, folder: Path, name: str, size: tuple[int, int], part: str = "") -> Path:
    """Take what is shown, as high as it is, or its part from one element on; return the file."""
    page = tab.page
    hidden = page.locator("main").evaluate("one => one.scrollHeight - one.clientHeight")
    if part:
        height = page.locator(part).evaluate("one => one.offsetHeight")
        hidden = height + BELOW - page.locator("main").evaluate("one => one.clientHeight")
    page.set_viewport_size(
        {"width": size[0], "height": min(size[1] + max(0, round(hidden)), MOST_HEIGHT)}
    )
    time.sleep(1.5)  # the view is drawn anew once a second
    if part:
        page.locator(part).evaluate("one => one.scrollIntoView()")
    path = folder / f"{name}-{size[0]}.png"
    page.screenshot(path=path)
    page.set_viewport_size({"width": size[0], "height": size[1]})
    return path


def take_trace(tab: Tab, name: str, folder: Path, size: tuple[int, int]) -> Path:
    """Take what the ranks did for a request: at the width of a desk in one step."""
    page = tab.page
    page.get_by_role("button", name=f"Show {name}", exact=True).click()
    page.wait_for_selector(".lanes svg")
    if size == WIDE:
        for _ in range(3):
            page.get_by_role("button", name="Next step").click()
    path = shot(tab, folder, "trace", size, ".lanes")
    page.get_by_role("button", name=f"Hide {name}", exact=True).click()
    return path


def take(tab: Tab, node: Node, folder: Path, size: tuple[int, int]) -> list[Path]:
    """Take the picture of each view; return the files."""
    found: list[Path] = []
    page = tab.page
    answer = node.chat(QUESTIONS[0], x_trace=True, max_tokens=TRACED_TOKENS, ignore_eos=True)
    traced = answer.json()["id"].removeprefix("chatcmpl-")
    page.click("nav a[href='#chat']")
    page.fill("#message", QUESTIONS[0])
    page.press("#message", "Enter")
    page.wait_for_selector(".acts")
    found.append(shot(tab, folder, "chat", size))
    for view in VIEWS:
        tab.view(view)
        if view == "models":
            page.wait_for_selector(".chip")
            page.get_by_role("button", name=f"Load {MODEL}", exact=True).click()
            page.wait_for_selector(".plan form")
        else:
            time.sleep(2.5)
        found.append(shot(tab, folder, view, size))
        if view == "requests":
            found.append(take_trace(tab, traced, folder, size))
    return found


def are_measured(cluster: Cluster) -> bool:
    """Whether each link is, by one of its ends at least."""
    links = cluster.nodes[0].http.get("/state").json()["telemetry"]["links"]
    known = {frozenset((node, link["peer"])) for node in links for link in links[node]["links"]}
    return len(known) == len(NAMES) * (len(NAMES) - 1) // 2


@contextmanager
def busy_pool() -> Iterator[Node]:
    """Yield a node with three models and memory for one, all of which are asked."""
    with tempfile.TemporaryDirectory() as folder:
        for name in OF_POOL:
            ignored = shutil.ignore_patterns("make", "*.py")
            shutil.copytree(ROOT / "conf" / "tiny", Path(folder) / name, ignore=ignored)
        with running_node(
            SHOAL_NODE_NAME=NAMES[0],
            SHOAL_MODEL_FOLDERS=folder,
            SHOAL_SLOTS="1",
            SHOAL_PRELOAD="",
            SHOAL_POOL__TURN_S="10",
            SHOAL_POOL__TURN_LOADS="0",
        ) as node:
            over = threading.Event()

            def ask(model: str, priority: str) -> None:
                """Ask again and again, as urgently as that."""
                for turn in itertools.count():
                    if over.wait(0.3 if priority == "normal" else 9.0):
                        return
                    with suppress(httpx.TimeoutException):  # it waited in vain
                        node.chat(
                            QUESTIONS[turn % len(QUESTIONS)],
                            model=model, x_priority=priority, max_tokens=300, ignore_eos=True,
                        )  # fmt: skip

            askers = [
                threading.Thread(target=ask, args=one) for one in OF_POOL.items() for _ in range(3)
            ]
            for asker in askers:
                asker.start()
            try:
                yield node
            finally:
                over.set()
                for asker in askers:
                    asker.join(90)


def take_pool(browser: Browser, folder: Path) -> list[Path]:
    """Take the pictures of the pool, when something waits; return the files."""
    found: list[Path] = []
    with busy_pool() as node:
        time.sleep(POOL_WATCHED_S)
        for size, scheme in ((WIDE, "light"), (PHONE, "dark")):
            with opened(browser, node.url, (size[0], MOST_HEIGHT), scheme) as tab:
                tab.open("/#pool")
                tab.page.wait_for_selector(".plan-card")
                tab.page.wait_for_selector("td .pill.good:has-text('in use')")
                path = folder / f"pool-{size[0]}.png"
                tab.page.screenshot(path=path)
                found.append(path)
                tab.check()
    return found


def main(arguments: list[str]) -> int:
    """Write the pictures; 1 where they are too many bytes."""
    folder = Path(arguments[0]) if arguments else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(len(NAMES))
    for node, name in zip(cluster.nodes, NAMES, strict=True):
        node.env["SHOAL_NODE_NAME"] = name
    taken: list[Path] = []
    try:
        cluster.up()
        cluster.place(min_nodes=len(NAMES))
        eventually(lambda: are_measured(cluster), MEASURED_S, "the idle links are measured")
        askers = Askers(cluster.nodes[0], 3)
        try:
            with sync_playwright() as playwright:
                browser = launched(playwright)
                url = cluster.nodes[0].url
                with opened(browser, url) as wide, opened(browser, url, PHONE, "dark") as phone:
                    wide.open()
                    phone.open()
                    time.sleep(WATCHED_S)
                    taken += take(wide, cluster.nodes[0], folder, WIDE)
                    taken += take(phone, cluster.nodes[0], folder, PHONE)
                    wide.check()
                    phone.check()
                browser.close()
        finally:
            askers.stop()
    finally:
        cluster.close()
    with sync_playwright() as playwright:
        browser = launched(playwright)
        taken += take_pool(browser, folder)
        browser.close()
    size = sum(path.stat().st_size for path in taken)
    print(f"{len(taken)} pictures, {size} bytes, in {folder}")
    return int(size > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
