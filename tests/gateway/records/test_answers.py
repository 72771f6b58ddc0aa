"""Kept answers of a node's HTTP processes: one file, and whoever makes an answer stops it."""

from __future__ import annotations

import asyncio
import io
import json
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bus.calls import CallFailed, NodeCalls, ProcessCalls, Standing
from bus.client import BusClient, Speaker
from bus.links.reactor import AsyncioReactor
from bus.process.endpoints import Endpoints
from bus.process.identity import new_boot
from bus.process.logs import Log
from bus.switchboard.switchboard import Switchboard
from bus.wire.errors import OwnerSilent
from bus.wire.ids import NodeId, RequestId
from gateway.dialects.dialect import KeptAnswer
from gateway.records import (
    AnswerBounds,
    AnswerRecords,
    LogBounds,
    NodeRecords,
    RecordsUnavailable,
)
from gateway.records.kept_answers import LARGEST_BYTES
from gateway.records.statements import Statement
from tests.harness.called_nodes import known

N1, N2 = NodeId("n1"), NodeId("n2")
KEPT = KeptAnswer(b'{"status":"completed"}', (b"{}", b"[]"))
BOUNDS = AnswerBounds(rows=1000, bytes=64 << 20, age_s=1e6)


class Process:
    """One HTTP process, as far as kept answers go; `stopped` is what it was told to stop."""

    def __init__(self, site: Site, node: NodeId, bounds: AnswerBounds, **more: Any) -> None:
        self.stopped: list[RequestId] = []
        self.said = io.StringIO()
        log = Log(node=node, process="gateway:0", stream=self.said)
        own = Endpoints(str(site.folder / node))
        self.near = ProcessCalls(own, site.reactor)
        number = self.near.number
        speaker = Speaker(node, f"gateway:{number}", new_boot())
        self.bus = BusClient(speaker, site.endpoints, site.reactor, log, follow=False)
        self.far = NodeCalls(self.bus, known(site.standings), number=number, processes=2)
        path = site.folder / node / "records.sqlite"
        logged = LogBounds(rows=100, bytes=1 << 20, age_s=1e6)
        self.records = NodeRecords(path, logged, log, **({"retry_s": 0.05} | more))
        self.answers = AnswerRecords(
            records=self.records,
            bounds=bounds,
            near=self.near,
            calls=self.far,
            node=node,
            processes=3,
            stop=self.cancel,
            log=log,
        )

    def cancel(self, request_id: RequestId) -> bool:
        self.stopped.append(request_id)
        return True

    def close(self) -> None:
        self.far.close()
        self.near.close()
        self.bus.close()
        self.records.close()


class Site:
    """Nodes whose switchboards are linked: here one board is all of theirs."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.reactor = AsyncioReactor(asyncio.get_running_loop())
        self.endpoints = Endpoints(folder)
        log = Log(node="n1", process="bus", stream=io.StringIO())
        self.board = Switchboard(self.endpoints, self.reactor, log)
        self.standings = {N1: Standing("one"), N2: Standing("two")}
        self.open: list[Process] = []

    def process(self, node: NodeId = N1, bounds: AnswerBounds = BOUNDS, **more: Any) -> Process:
        (self.folder / node).mkdir(exist_ok=True)
        self.open.append(Process(self, node, bounds, **more))
        return self.open[-1]

    def close(self) -> None:
        for one in self.open:
            one.close()
        self.board.close()


def named(number: int, count: int = 1, node: NodeId = N1) -> RequestId:
    return RequestId(f"req-{node}-h{number}-boot-{count}")


def play(trace: Callable[[Site], Awaitable[None]]) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory(prefix="shoal-answers-", dir="/tmp") as folder:
            site = Site(folder)
            try:
                await trace(site)
            finally:
                site.close()

    asyncio.run(run())


def test_an_answer_is_found_labelled_and_removed_by_every_gateway() -> None:
    async def trace(site: Site) -> None:
        makers = site.process(), site.process()
        for asker in (*makers, site.process(N2)):
            assert await makers[1].answers.keep("a", named(1), KEPT) == ""
            assert await asker.answers.find("a", named(1)) == KEPT
            assert await asker.answers.find("b", named(1)) is None
            assert not await asker.answers.label("b", named(1), b"{}")
            assert await asker.answers.label("a", named(1), b'{"k":"v"}')
            labelled = await asker.answers.find("a", named(1))
            assert labelled is not None and labelled.labels == b'{"k":"v"}'
            assert not await asker.answers.remove("b", named(1))
            assert await asker.answers.remove("a", named(1))
            assert not await asker.answers.remove("a", named(1))
            assert await makers[0].answers.find("a", named(1)) is None

    play(trace)


def test_an_answer_of_many_megabytes_is_found_by_another_node() -> None:
    async def trace(site: Site) -> None:
        maker, asker = site.process(), site.process(N2)
        large = KeptAnswer(b"x" * (7 << 20), (b"y" * (1 << 19),))
        assert await maker.answers.keep("a", named(0), large) == ""
        assert await asker.answers.find("a", named(0)) == large
        too_large = KeptAnswer(b"x" * LARGEST_BYTES, (b"y",))
        assert "the limit is" in await maker.answers.keep("a", named(0, 2), too_large)
        assert await maker.answers.find("a", named(0, 2)) is None

    play(trace)


def test_only_its_owner_stops_an_answer_and_only_while_it_is_made() -> None:
    async def trace(site: Site) -> None:
        first, second, other = site.process(), site.process(), site.process(N2)
        for asker in (first, second, other):
            second.stopped.clear()
            second.answers.begin("a", named(1))
            assert not await asker.answers.stop("b", named(1))
            assert second.stopped == []
            assert await asker.answers.stop("a", named(1))
            assert second.stopped == [named(1)]
            second.answers.end(named(1))
            assert not await asker.answers.stop("a", named(1))
        with pytest.raises(OwnerSilent, match="HTTP process 2"):
            await first.answers.stop("a", named(2))

    play(trace)


def test_ids_of_no_node_and_no_process_name_nothing() -> None:
    async def trace(site: Site) -> None:
        first = site.process()
        for name in (
            "req-n3-h1-boot-1",
            "req-n1-h3-boot-1",
            "req-n1-h²-boot-1",
            "req-n1-h-b-1",
            "x",
        ):
            assert await first.answers.find("a", RequestId(name)) is None
            assert not await first.answers.stop("a", RequestId(name))

    play(trace)


def test_a_node_that_is_down_is_named() -> None:
    async def trace(site: Site) -> None:
        asker = site.process()
        site.standings[N2] = Standing("two", "silent")
        with pytest.raises(CallFailed, match="node two is not connected"):
            await asker.answers.find("a", named(0, node=N2))

    play(trace)


def test_answers_that_end_together_are_written_together_and_each_is_there() -> None:
    async def trace(site: Site) -> None:
        both = site.process(), site.process()
        keeps = [both[count % 2].answers.keep("a", named(0, count), KEPT) for count in range(300)]
        assert set(await asyncio.gather(*keeps)) == {""}
        for count in range(300):
            assert await both[0].answers.find("a", named(0, count)) == KEPT

    play(trace)


def test_what_cannot_be_kept_is_said_and_the_next_is_kept_once_there_is_room() -> None:
    async def trace(site: Site) -> None:
        full = site.process(max_pages=60, retry_s=1.0)
        large = KeptAnswer(b"x" * (1 << 20), ())
        assert "full" in await full.answers.keep("a", named(0), large)
        assert await full.answers.find("a", named(0)) is None
        assert "cannot write the records" in await full.answers.keep("a", named(0, 2), KEPT)
        lines = [json.loads(line) for line in full.said.getvalue().splitlines()]
        assert [one["level"] for one in lines].count("critical") == 1, "said once"
        await asyncio.sleep(1.1)
        assert await full.answers.keep("a", named(0, 3), KEPT) == ""
        assert await full.answers.find("a", named(0, 3)) == KEPT

    play(trace)


def test_a_file_that_breaks_is_set_aside_and_the_next_answer_is_kept() -> None:
    async def trace(site: Site) -> None:
        first = site.process()
        assert await first.answers.keep("a", named(0), KEPT) == ""
        path = site.folder / N1 / "records.sqlite"
        for suffix in ("", "-wal", "-shm"):  # the log of a file that is whole would mend it
            path.with_name(path.name + suffix).unlink()
        path.write_bytes(b"no database at all" * 1000)
        assert await first.answers.keep("a", named(0, 2), KEPT) == ""
        assert await first.answers.find("a", named(0, 2)) == KEPT
        assert await first.answers.find("a", named(0)) is None
        assert list(path.parent.glob("records.sqlite.broken-*"))

    play(trace)


def test_a_defect_in_one_write_costs_the_others_nothing() -> None:
    async def trace(site: Site) -> None:
        first = site.process()
        defect = Statement("INSERT INTO answer (request) VALUES (NULL)")
        with pytest.raises(RecordsUnavailable, match="see the log"):
            await asyncio.gather(
                *(first.answers.keep("a", named(0, count), KEPT) for count in range(20)),
                first.records.write([defect]),
            )
        await asyncio.sleep(0.3)
        for count in range(20):
            assert await first.answers.find("a", named(0, count)) == KEPT

    play(trace)


def test_a_node_that_keeps_none_says_so() -> None:
    async def trace(site: Site) -> None:
        none = site.process(bounds=AnswerBounds(rows=0, bytes=1 << 24, age_s=1))
        assert await none.answers.keep("a", named(0), KEPT) == "this node stores no answers"
        assert await none.answers.find("a", named(0)) is None

    play(trace)
