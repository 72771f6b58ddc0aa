"""The thread of store and fetcher, as the worker uses it."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from bus.client import Speaker
from bus.links.transport import Link
from bus.process.logs import Log
from bus.wire.ids import Boot, ModelId, NodeId
from tests.worker.transfer.test_store import big_model, content
from worker.transfer.downloader import Wanted
from worker.transfer.source import StoreAddress
from worker.transfer.thread import WeightsSettings, WeightsThread, open_link

pytestmark = pytest.mark.slow

M = ModelId("m")
HERE = ("tcp://127.0.0.1:*",)


def thread(
    folder: Path,
    name: str,
    listen: tuple[str, ...] = HERE,
    *,
    log: io.StringIO | None = None,
    link: Callable[[Literal["dealer", "router"], NodeId | None], Link] = open_link,
) -> WeightsThread:
    settings = WeightsSettings(folder / name, folder / f"{name}-hashes", listen)
    speaker = Speaker(NodeId(name), "worker", Boot("b"))
    said = Log(node=name, process="worker", level="error", stream=log or io.StringIO())
    return WeightsThread(settings, speaker, said, link=link)


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.02)


def phase(of: WeightsThread) -> str:
    news = of.news().get(M)
    return "" if news is None else news.reading.phase


def test_two_nodes_pass_a_model_on_to_a_third_and_it_gives_it_too(tmp_path: Path) -> None:
    folder = big_model(tmp_path / "big", 24)
    threads = [thread(tmp_path, name) for name in ("a", "b", "c")]
    try:
        first, second, third = threads
        first.offers({M: folder})
        second.want(Wanted(M, 1, [StoreAddress(NodeId("a"), first.addresses[0])]))
        until(lambda: phase(second) == "done", "the second")
        first.offers({})
        second.offers({M: tmp_path / "b" / "m"})
        both = [
            StoreAddress(NodeId(n), t.addresses[0]) for n, t in zip("ab", threads, strict=False)
        ]
        third.want(Wanted(M, 1, both))
        until(lambda: phase(third) == "done", "the third")
        assert content(tmp_path / "c" / "m") == content(folder)
        third.cancel(M)
        until(lambda: not third.news(), "the end forgotten")
    finally:
        for one in threads:
            one.close()


def test_an_address_that_is_taken_is_said_once_and_the_node_still_fetches(tmp_path: Path) -> None:
    log = io.StringIO()
    first = thread(tmp_path, "a")
    second = thread(tmp_path, "b", first.addresses, log=log)
    try:
        assert (
            second.addresses == () and "cannot offer weights to other nodes yet" in log.getvalue()
        )
        first.offers({M: big_model(tmp_path / "big", 4)})
        second.want(Wanted(M, 1, [StoreAddress(NodeId("a"), first.addresses[0])]))
        until(lambda: phase(second) == "done", "the model")
    finally:
        first.close()
        second.close()


def test_a_defect_in_the_thread_is_raised_where_news_are_read(tmp_path: Path) -> None:
    def broken(_kind: Literal["dealer", "router"], _node: NodeId | None) -> Link:
        raise ZeroDivisionError("no link")

    one = thread(tmp_path, "a", (), link=broken)
    try:
        one.want(Wanted(M, 1, [StoreAddress(NodeId("b"), "tcp://127.0.0.1:1")]))
        with pytest.raises(RuntimeError, match="no link"):
            until(lambda: one.news(), "news")
    finally:
        one.close()


def test_without_a_cluster_key_nothing_listens_beyond_this_machine(tmp_path: Path) -> None:
    log = io.StringIO()
    one = thread(tmp_path, "a", ("tcp://0.0.0.0:*",), log=log)
    try:
        assert one.addresses == () and "a cluster key is needed" in log.getvalue()
    finally:
        one.close()
