"""Writes the pictures of the page in `docs/pictures/`: each view, of a cluster of three at work.

`python -m tests.browser.pictures [FOLDER]`; `make pictures` runs it. It starts the nodes, has them
asked by several clients, and takes each view at the width of a desk and of a phone.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.browser.browsing import PHONE, WIDE, Tab, launched, opened
from tests.harness.clusters import Cluster
from tests.harness.nodes import MODEL, ROOT, Node

FOLDER = ROOT / "docs" / "pictures"
NAMES = ("reef", "kelp", "tide")
VIEWS = ("cluster", "models", "requests", "watch")
QUESTIONS = ("What is shoal?", "How do nodes find each other?", "What is a shard?", "Hello!")
WATCHED_S = 75.0
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
        while not self._over.wait(0.4 + 0.9 * ((turn * 7 + number) % 4)):
            turn += 1
            question = QUESTIONS[turn % len(QUESTIONS)]
            self._node.chat(question, max_tokens=30 + 40 * (turn % 3), user=f"client-{number}")


def take(tab: Tab, folder: Path, kind: str) -> list[Path]:
    """Take the picture of each view; return the files."""
    found: list[Path] = []

    def shot(name: str) -> None:
        """Take what is shown."""
        path = folder / f"{name}-{kind}.png"
        tab.page.screenshot(path=path)
        found.append(path)

    page = tab.page
    page.click("nav a[href='#chat']")
    page.fill("#message", QUESTIONS[0])
    page.press("#message", "Enter")
    page.wait_for_selector(".acts")
    shot("chat")
    for view in VIEWS:
        tab.view(view)
        if view == "models":
            page.wait_for_selector(".chip")
            page.get_by_role("button", name=f"Load {MODEL}", exact=True).click()
            page.wait_for_selector(".plan form")
        else:
            time.sleep(2.5)
        shot(view)
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
        askers = Askers(cluster.nodes[0], 3)
        try:
            with sync_playwright() as playwright:
                browser = launched(playwright)
                url = cluster.nodes[0].url
                with opened(browser, url) as wide, opened(browser, url, PHONE, "dark") as phone:
                    wide.open()
                    phone.open()
                    time.sleep(WATCHED_S)
                    taken += take(wide, folder, f"{WIDE[0]}")
                    taken += take(phone, folder, f"{PHONE[0]}")
                    wide.check()
                    phone.check()
                browser.close()
        finally:
            askers.stop()
    finally:
        cluster.close()
    size = sum(path.stat().st_size for path in taken)
    print(f"{len(taken)} pictures, {size} bytes, in {folder}")
    return int(size > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
