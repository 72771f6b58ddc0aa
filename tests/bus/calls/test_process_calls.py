"""Calls between the HTTP processes of one node: over real sockets, in one loop."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable

import pytest

from bus.calls import ProcessCalls
from bus.calls.process_calls import MAX_PROCESSES, PROCESS_ANSWER_S
from bus.calls.table import NOTE_RESTS, READ_PROBLEMS, STOP_HERE
from bus.links.reactor import AsyncioReactor
from bus.links.transport import Link
from bus.process.clock import now
from bus.process.endpoints import Endpoints
from bus.wire.calls.answers import Done
from bus.wire.calls.jobs import Noted
from bus.wire.calls.processes import NoteRests, ProblemsRead, ReadProblems, StopHere
from bus.wire.codec import pack
from bus.wire.errors import AlreadyRunning
from bus.wire.ids import RequestId

STOP = StopHere(request=RequestId("req-n1-h1-b-1"))


class Gateway:
    """The HTTP processes of a node."""

    def __init__(self, folder: str) -> None:
        self.endpoints = Endpoints(folder)
        self.reactor = AsyncioReactor(asyncio.get_running_loop())
        self.open: list[ProcessCalls] = []

    def process(self) -> ProcessCalls:
        self.open.append(ProcessCalls(self.endpoints, self.reactor))
        return self.open[-1]

    def end(self, process: ProcessCalls) -> None:
        self.open.remove(process)
        process.close()


def play(trace: Callable[[Gateway], Awaitable[None]]) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory(prefix="shoal-asked-", dir="/tmp") as folder:
            gateway = Gateway(folder)
            try:
                await trace(gateway)
            finally:
                for process in list(gateway.open):
                    gateway.end(process)

    asyncio.run(asyncio.wait_for(run(), 60))


def answering(process: ProcessCalls, text: str) -> None:
    process.answer(READ_PROBLEMS, lambda _: ProblemsRead(problems=(text,)))
    process.answer(STOP_HERE, lambda asked: Done(done=asked.request == STOP.request))


def test_each_process_answers_and_so_does_the_own_one() -> None:
    async def trace(gateway: Gateway) -> None:
        first, second = gateway.process(), gateway.process()
        answering(first, "one")
        answering(second, "two" * (1 << 20))
        assert (first.number, second.number) == (0, 1)
        assert await first.ask(1, STOP_HERE, STOP) == Done(done=True)
        assert await first.ask(0, STOP_HERE, StopHere(request=RequestId("x"))) == Done(done=False)
        replies = await first.ask_each(2, READ_PROBLEMS, ReadProblems())
        assert {number: len(reply.problems[0]) for number, reply in replies.items()} == {
            0: 3, 1: 3 << 20,
        }  # fmt: skip

    play(trace)


def test_a_process_that_is_gone_has_no_reply_and_its_number_is_taken_again() -> None:
    async def trace(gateway: Gateway) -> None:
        first, second = gateway.process(), gateway.process()
        answering(first, "one")
        answering(second, "two")
        gateway.end(second)
        begun_at = now()
        assert await first.ask(1, STOP_HERE, STOP) is None
        assert PROCESS_ANSWER_S <= now() - begun_at < 3 * PROCESS_ANSWER_S
        assert [*await first.ask_each(2, READ_PROBLEMS, ReadProblems())] == [0]
        third = gateway.process()
        assert third.number == 1
        answering(third, "three")
        assert await first.ask(1, STOP_HERE, STOP) == Done(done=True)

    play(trace)


def test_what_is_told_needs_no_reply_and_reaches_every_other_process() -> None:
    async def trace(gateway: Gateway) -> None:
        processes = [gateway.process() for _ in range(3)]
        told = asyncio.Queue[tuple[int, NoteRests]]()
        for process in processes:

            def note(rests: NoteRests, number: int = process.number) -> Noted:
                told.put_nowait((number, rests))
                return Noted()

            process.answer(NOTE_RESTS, note)
        rests = NoteRests(number=0, rows=(("key", "ann", 12.5, 3),))
        processes[0].tell_others(3, NOTE_RESTS, rests)
        heard = [await asyncio.wait_for(told.get(), 10) for _ in range(2)]
        assert sorted(heard) == [(1, rests), (2, rests)]

    play(trace)


@pytest.mark.parametrize(
    "frames",
    [
        (b"1",),
        (b"1", b"process.stop", b""),
        (b"1", b"process.stop", pack({"request": 7})),
        (b"1", b"process.stop", pack({"request": "x", "more": 1})),
        (b"1", b"\xff\xfe", pack({})),
        (b"1", b"node.restart", pack({"services": []})),
        (b"1", b"process.stop", pack({"request": "x"}), b"more"),
    ],
)
def test_garbage_has_no_answer_and_ends_nothing(frames: tuple[bytes, ...]) -> None:
    async def trace(gateway: Gateway) -> None:
        first, second = gateway.process(), gateway.process()
        answering(second, "two")
        link = Link("dealer")
        link.connect(gateway.endpoints.gateway(1))
        link.send(*frames)
        assert await first.ask(1, STOP_HERE, STOP) == Done(done=True)
        assert link.receive() is None
        link.close()

    play(trace)


def test_a_gateway_has_so_many_processes() -> None:
    async def trace(gateway: Gateway) -> None:
        for _ in range(MAX_PROCESSES):
            gateway.process()
        with pytest.raises(AlreadyRunning, match="64 HTTP processes"):
            gateway.process()

    play(trace)
