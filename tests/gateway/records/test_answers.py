"""Kept answers of a node's HTTP processes: asked by the id, over real sockets."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bus.links.reactor import AsyncioReactor
from bus.process.endpoints import Endpoints
from bus.wire.ids import NodeId, RequestId
from gateway.cluster.http_processes import HttpProcesses
from gateway.dialects.dialect import KeptAnswer
from gateway.records import AnswerRecords, AnswersSilent

NODE = NodeId("n1")
KEPT = KeptAnswer(b'{"status":"completed"}', (b"{}", b"[]"))


class Process:
    """One HTTP process, as far as kept answers go; `stopped` is what it was told to stop."""

    def __init__(self, folder: str) -> None:
        self.stopped: list[RequestId] = []
        self.near = HttpProcesses(
            Endpoints(folder), AsyncioReactor(asyncio.get_running_loop()), self
        )
        self.records = AnswerRecords(node=NODE, processes=3, near=self.near, stop=self.cancel)

    def cancel(self, request_id: RequestId) -> bool:
        self.stopped.append(request_id)
        return True

    def open_requests(self) -> list[dict[str, Any]]:
        return []

    def about_answer(self, verb: str, request_id: RequestId, owner: str, given: bytes) -> Any:
        return self.records.here(verb, request_id, owner, given)


def named(number: int, count: int = 1) -> RequestId:
    return RequestId(f"req-{NODE}-h{number}-boot-{count}")


def play(trace: Callable[[Process, Process], Awaitable[None]]) -> None:
    """Run a trace of two processes of one node that is to have three."""

    async def run() -> None:
        with tempfile.TemporaryDirectory(prefix="shoal-answers-", dir="/tmp") as folder:
            both = Process(folder), Process(folder)
            try:
                await trace(*both)
            finally:
                for one in both:
                    one.near.close()

    asyncio.run(run())


def test_an_answer_is_found_and_removed_by_the_other_process() -> None:
    async def trace(first: Process, second: Process) -> None:
        second.records.keep("a", named(1), KEPT)
        assert await first.records.find("a", named(1)) == KEPT
        assert await first.records.find("b", named(1)) is None
        assert not await first.records.remove("b", named(1))
        assert await first.records.remove("a", named(1))
        assert not await first.records.remove("a", named(1))
        assert await second.records.find("a", named(1)) is None

    play(trace)


def test_an_answer_of_many_megabytes_is_found_by_the_other_process() -> None:
    async def trace(first: Process, second: Process) -> None:
        large = KeptAnswer(b"x" * (7 << 20), (b"y" * (1 << 19),))
        assert second.records.keep("a", named(1), large)
        assert await first.records.find("a", named(1)) == large

    play(trace)


def test_only_its_owner_stops_an_answer_and_only_while_it_is_made() -> None:
    async def trace(first: Process, second: Process) -> None:
        second.records.begin("a", named(1))
        assert not await first.records.stop("b", named(1))
        assert second.stopped == []
        assert await first.records.stop("a", named(1))
        assert second.stopped == [named(1)]
        second.records.end(named(1))
        assert not await first.records.stop("a", named(1))

    play(trace)


def test_answers_of_other_nodes_and_of_no_process_are_not_found() -> None:
    async def trace(first: Process, _second: Process) -> None:
        for name in ("req-n2-h1-boot-1", "req-n1-h3-boot-1", "req-n1-h²-boot-1", "req-n1-h-b-1"):
            assert await first.records.find("a", RequestId(name)) is None

    play(trace)


def test_a_process_that_is_gone_is_told_apart_from_an_answer_that_is_not_kept() -> None:
    async def trace(first: Process, _second: Process) -> None:
        with pytest.raises(AnswersSilent, match="HTTP process 2"):
            await first.records.find("a", named(2))

    play(trace)
