"""A cluster with 32 streams: what the page says against what the clients counted, and what open
pages cost the node. At full size (SHOAL_PROVE=1) it has three nodes and 20 pages are open; figures
are printed."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import pairwise
from statistics import mean
from typing import Any

import psutil
import pytest
from playwright.sync_api import Browser, expect

from tests.bench import load
from tests.browser.browsing import Tab, opened
from tests.harness.clusters import Cluster
from tests.harness.nodes import MODEL, Node, eventually

PROVING = bool(os.environ.get("SHOAL_PROVE"))
STREAMS = 32
TOKENS = 1200 if PROVING else 100
PAGES = 20 if PROVING else 3
WATCHED_S = 20.0 if PROVING else 4.0
WITHIN = 0.02
SETTLED_S = 5.0
"""HTTP processes put their counts together each second, and pages are told each second."""


@contextmanager
def a_three() -> Iterator[Cluster]:
    """Three nodes, of which the asked one has two HTTP processes."""
    made = Cluster(3)
    made.nodes[0].env["SHOAL_HTTP_PROCESSES"] = "2"
    try:
        made.up()
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def placed(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The shared pair, at full size three nodes, and a model over all of them."""
    with a_three() if PROVING else nullcontext(request.getfixturevalue("cluster")) as made:
        made.place(min_nodes=len(made.nodes))
        yield made
        made.clear()


SEEN = """async () => {
  const { live } = await import("/dashboard/live.js");
  const { snapshot, past } = live;
  return { at_s: snapshot.at_s, counters: snapshot.counters, running: snapshot.running,
           past: past.map(({ at_s, generated, running }) => ({ at_s, generated, running })) };
}"""
"""What the page's views are drawn from."""


def seen_by(tab: Tab) -> dict[str, Any]:
    return tab.page.evaluate(SEEN)


class Streams(threading.Thread):
    """32 streams at once, read in a thread of their own: Playwright has the loop of this one."""

    def __init__(self, node: Node) -> None:
        super().__init__(daemon=True)
        self._port = int(node.url.rsplit(":", 1)[1])
        self.timings: list[load.Timing] = []
        self.start()

    def run(self) -> None:
        """Read them all."""
        more = {"ignore_eos": True, "stream_options": {"include_usage": True}}
        jobs = [load.Job(f"Tell me of number {at}.", TOKENS, more) for at in range(STREAMS)]
        self.timings = asyncio.run(load.run(self._port, MODEL, jobs))


def counted(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    """What the page's counters say of the time between two looks."""
    first = {name: after[name]["sum"] - before[name]["sum"] for name in ("ttft_s", "itl_s")}
    many = {
        name: sum(after[name]["counts"]) - sum(before[name]["counts"]) for name in first
    }  # fmt: skip
    return {
        "requests": sum(after["requests"].values()) - sum(before["requests"].values()),
        "tokens": after["generation_tokens"] - before["generation_tokens"],
        "errors": after["http_errors"] - before["http_errors"],
        "ttft_s": first["ttft_s"] / max(1, many["ttft_s"]),
    }


def plotted_tokens(past: list[dict[str, Any]], begin_s: float, end_s: float) -> float:
    """The tokens under the page's curve of tokens per second."""
    points = [point for point in past if begin_s <= point["at_s"] <= end_s]
    return sum(
        (after["at_s"] - before["at_s"]) * (before["generated"] + after["generated"]) / 2
        for before, after in pairwise(points)
    )


def seconds_of(node: Node) -> float:
    """The processor's seconds that the gateway's processes have taken."""
    arbiter = psutil.Process(node.pid("gateway"))
    return sum(sum(one.cpu_times()[:2]) for one in (arbiter, *arbiter.children(recursive=True)))


@pytest.mark.proof
def test_the_pages_figures_are_those_that_the_clients_counted(
    browser: Browser, placed: Cluster
) -> None:
    asked = placed.nodes[0]
    with ExitStack() as stack:
        tabs = [stack.enter_context(opened(browser, asked.url)) for _ in range(PAGES)]
        for tab in tabs:
            tab.open("/#watch")
            tab.page.wait_for_selector(".pulse.good")
        before = seen_by(tabs[0])["counters"]
        streams, began_s = Streams(asked), time.time()
        most = 0
        while streams.is_alive():
            most = max(most, seen_by(tabs[0])["running"])
            streams.join(0.5)
        timings, ended_s = streams.timings, time.time()
        assert [one.error for one in timings] == [None] * STREAMS
        tokens = sum(one.tokens for one in timings)
        assert tokens == STREAMS * TOKENS, "counted by the clients, from what each was told"

        def settled() -> list[dict[str, float]] | None:
            """What all pages say, once each was told some seconds after the last stream's end."""
            seen = [seen_by(tab) for tab in tabs]
            if any(one["at_s"] < ended_s + SETTLED_S for one in seen):
                return None
            return [counted(before, one["counters"]) for one in seen]

        said = eventually(settled, 30, "the last counts are on every page")
        past = seen_by(tabs[0])["past"]
        for tab in tabs:
            tab.check()
    ttft_s = mean(one.ttft_s for one in timings)
    curve = plotted_tokens(past, began_s - 2, ended_s + 3)
    print(
        f"{STREAMS} streams in {ended_s - began_s:.1f} s, {PAGES} pages: tokens {tokens} counted, "
        f"{said[0]['tokens']} on the page, {curve:.0f} under its curve "
        f"({curve / tokens - 1:+.1%}); "
        f"at most {most} rows at once; mean time to first token {ttft_s:.3f} s at the clients, "
        f"{said[0]['ttft_s']:.3f} s on the page ({said[0]['ttft_s'] / ttft_s - 1:+.1%})"
    )
    for one in said:
        assert one["requests"] == STREAMS and one["errors"] == 0
        assert abs(one["tokens"] / tokens - 1) <= WITHIN
    assert 0 < most <= STREAMS


@pytest.mark.proof
def test_open_pages_share_one_snapshot_and_go_on_being_told(
    browser: Browser, placed: Cluster
) -> None:
    asked = placed.nodes[0]

    def spent(seconds: float) -> float:
        """The share of a core that the gateway takes."""
        before, began = seconds_of(asked), time.monotonic()
        time.sleep(seconds)
        return (seconds_of(asked) - before) / (time.monotonic() - began)

    alone = spent(WATCHED_S)
    with ExitStack() as stack:
        tabs = [stack.enter_context(opened(browser, asked.url)) for _ in range(PAGES)]
        for tab in tabs:
            tab.open("/#cluster")
            tab.page.wait_for_selector(".pulse.good")
        before = [len(seen_by(tab)["past"]) for tab in tabs]
        watched = spent(WATCHED_S)
        expect(tabs[-1].page.locator(".node-card")).to_have_count(len(placed.nodes))
        more = [len(seen_by(tab)["past"]) - had for tab, had in zip(tabs, before, strict=True)]
        assert min(more) > WATCHED_S / 3, "each is told again and again"
        for tab in tabs:
            assert tab.page.locator(".pulse.good").count() == 1
            tab.check()
    print(
        f"the gateway takes {alone:.2%} of a core without a page, {watched:.2%} with {PAGES} open: "
        f"{(watched - alone) / PAGES:.2%} a page"
    )
