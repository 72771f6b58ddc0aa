"""The streams of one process: who reads them, how long they last, and what memory they take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.links.reactor import AsyncioReactor, Timer
from bus.wire.calls.processes import ReadStream
from bus.wire.ids import RequestId
from gateway.exchange.streams import LastingStream, OpenStream, OpenStreams, StreamFolder
from gateway.exchange.streams.open_streams import LEAST_BYTES, STREAM_BYTES
from tests.harness.stream_heads import LOG, OWNER, RID, head


class Site:
    """The streams of one process. `cancelled` has the requests that were abandoned."""

    def __init__(self, folder: Path, limit_bytes: int = 1 << 20) -> None:
        self.reactor = AsyncioReactor(asyncio.get_running_loop())
        self.streams = OpenStreams(self.reactor, StreamFolder(folder, LOG), limit_bytes=limit_bytes)
        self.cancelled: list[str] = []

    def open(self, name: str, wait_s: float = 30.0) -> tuple[Any, asyncio.Queue[bytes]]:
        """A stream, and the queue of its pieces; b"" ends it."""
        pieces: asyncio.Queue[bytes] = asyncio.Queue()

        async def made() -> AsyncGenerator[bytes]:
            while piece := await pieces.get():
                yield piece

        def abandon() -> None:
            self.cancelled.append(name)
            pieces.put_nowait(b"")

        stream = self.streams.open(RequestId(name), LastingStream(OWNER, wait_s))
        stream.begin(made(), abandon)
        return stream, pieces


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "streams"


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def event(size: int = 10) -> bytes:
    return b"data: %b\n\n" % (b"x" * size)


async def rest(stream: Any, after: int) -> list[bytes]:
    return [piece async for piece in stream.follow(stream.attach(after))]


def test_the_memory_of_a_process_goes_to_streams_that_clients_read(folder: Path) -> None:
    async def scenario() -> None:
        site = Site(folder, limit_bytes=20_000)
        done, running, read = site.open("done"), site.open("running"), site.open("read")
        reader = read[0].attach(-1)
        for _, pieces in (done, running, read):
            pieces.put_nowait(event(6000))
        done[1].put_nowait(b"")
        await settle()
        assert site.cancelled == [] and 18_000 < site.streams.held_bytes < 20_000
        read[1].put_nowait(event(6000))
        await settle()
        assert site.cancelled == ["done"], "what is complete goes first"
        for _ in range(20):
            read[1].put_nowait(event(6000))
        await settle()
        assert site.cancelled == ["done", "running"]
        held = site.streams.held_bytes
        assert 20_000 < held < LEAST_BYTES + 7000, "its client has not read, so it waits"
        for _ in range(4):
            read[0].take(reader)
            await settle()
        assert site.streams.held_bytes < LEAST_BYTES + 7000 and read[0].buffer.end == 22
        assert site.streams.of(RequestId("read"), OWNER) is read[0]
        assert site.streams.of(RequestId("read"), "key-2") is None
        site.streams.close()
        assert site.streams.held_bytes == 0

    asyncio.run(scenario())


def test_a_stream_without_a_client_is_made_until_its_memory_is_full(folder: Path) -> None:
    async def scenario() -> None:
        site = Site(folder, limit_bytes=64 << 20)
        stream, pieces = site.open("alone")
        for _ in range(8):
            pieces.put_nowait(event(1 << 20))
        await settle()
        assert STREAM_BYTES < stream.buffer.held_bytes < STREAM_BYTES + (2 << 20)
        pieces.put_nowait(b"")
        assert len(b"".join(await rest(stream, -1))) > 8 << 20
        site.streams.close()

    asyncio.run(scenario())


def test_another_process_polls_until_the_end_and_a_silent_one_counts_as_gone(folder: Path) -> None:
    async def scenario() -> None:
        site = Site(folder)
        stream, pieces = site.open("far")
        pieces.put_nowait(event() + event())
        await settle()

        def ask(reader: str, after: int = -1, owner: str = OWNER) -> Any:
            call = ReadStream(owner=owner, request=RequestId("far"), reader=reader, after=after)
            return site.streams.read_for(call)

        assert not ask("r0", owner="key-2").is_open
        first = ask("r1", after=0)
        assert first.events.startswith(b"id: 1\n") and (first.last, first.is_over) == (1, False)
        assert ask("r1").events == b""
        assert ask("r2").events.startswith(b"id: 0\n")
        taken = ask("r1")
        assert taken.is_taken and not taken.is_over, "the later one reads"
        pieces.put_nowait(event())
        pieces.put_nowait(b"")
        await settle()
        assert ask("r2").last == 2
        assert ask("r2").is_over
        assert stream.left_at is not None
        assert ask("r3", after=1).last == 2
        site.streams.leave()
        assert not ask("r3").is_open, "so that the other process continues the stream itself"
        site.streams.close()

    asyncio.run(scenario())


class Clock:
    """Timers of a loop whose time passes when the test says so."""

    def __init__(self) -> None:
        self._now = 0.0
        self._timers: list[Timer] = []

    def now(self) -> float:
        return self._now

    def later(self, delay_s: float, action: Callable[[], None]) -> Timer:
        timer = Timer(self._now + delay_s, action, None)
        self._timers.append(timer)
        return timer

    def pass_s(self, seconds: float) -> None:
        self._now += seconds
        due = [each for each in self._timers if each.at <= self._now]
        self._timers = [each for each in self._timers if each.at > self._now]
        for timer in due:
            if not timer.cancelled:
                timer.action()


class Life:
    """One stream, its clients, and what they have read."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.cancels = self.made = 0
        self.seen = b""
        self.pieces: asyncio.Queue[bytes] = asyncio.Queue()
        reactor: Any = self.clock
        self.stream = OpenStream(
            RequestId("r"),
            lasting=LastingStream(OWNER, 10.0),
            reactor=reactor,
            has_room=lambda stream: stream.buffer.shrink(2000),
            on_gone=lambda _: None,
        )
        self.stream.begin(self._answer(), self._cancel)
        self.client = self.stream.attach(-1)

    async def _answer(self) -> AsyncGenerator[bytes]:
        while piece := await self.pieces.get():
            yield piece

    def _cancel(self) -> None:
        self.cancels += 1
        self.pieces.put_nowait(b"")

    def act(self, act: str) -> None:
        """Let something happen, and check what must follow at once."""
        stream, client = self.stream, self.client
        was_read = stream.is_read_by(client)
        if act == "make" and not stream.is_done:
            self.pieces.put_nowait(b"data: %d %b\n\n" % (self.made, b"x" * 100))
            self.made += 1
        elif act == "come" and not stream.is_gone:
            self.client = stream.attach(client.next - 1)
            assert not stream.is_read_by(client), "the later one takes over"
        elif act == "read" and was_read:
            self.seen += stream.take(client)
        elif act == "leave":
            stream.leave(client)
        elif act == "wait":
            self.clock.pass_s(11.0)
            assert stream.is_gone != was_read, "it waits for no one else"
        elif act == "end":
            self.pieces.put_nowait(b"")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(("make", "come", "read", "leave", "wait", "end")), max_size=40))
def test_a_client_gets_each_event_once_and_a_stream_that_was_left_ends(acts: list[str]) -> None:
    async def scenario() -> None:
        life = Life()
        await settle()
        for act in acts:
            life.act(act)
            await settle()
            assert life.stream.buffer.held_bytes <= 2000 + 300
        lines = life.seen.splitlines()
        numbers = [int(line[4:]) for line in lines if line.startswith(b"id: ")]
        assert numbers == list(range(len(numbers))), "each once, none left out"
        life.stream.end()
        await settle()
        assert life.stream.is_done and life.cancels == 1 and life.stream.buffer.held_bytes == 0

    asyncio.run(scenario())


def test_at_its_end_a_process_leaves_its_streams_to_others(folder: Path) -> None:
    async def scenario() -> None:
        site = Site(folder)
        stream, pieces = site.open(RID)
        await stream.lasting.begin(site.streams.files, head())
        following = asyncio.ensure_future(rest(stream, -1))
        pieces.put_nowait(event())
        await settle()
        site.streams.close()
        assert await following, "the connection closes without a last event"
        assert site.cancelled == [RID]
        other = StreamFolder(folder, LOG)
        assert await other.claim(RID, OWNER) is not None
        other.close()

    asyncio.run(scenario())
