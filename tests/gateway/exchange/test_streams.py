"""Streams that clients read again: numbers, memory, who reads, and what a file holds."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.process.clock import wall
from bus.wire.data_frames import pack_ids
from bus.wire.errors import BadMessage
from bus.wire.ids import RequestId
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import (
    Accepted,
    Begun,
    ChoiceEnd,
    Entry,
    Finished,
    StepEntries,
    TokenDelta,
)
from gateway.dialects.openai.responses import OpenAIResponses
from gateway.exchange.features import let_reattach
from gateway.exchange.flow import TaskTry
from gateway.exchange.streams import (
    EventBuffer,
    EventsGone,
    LastingStream,
    StreamFolder,
)
from gateway.exchange.streams.event_buffer import EVENT_BYTES
from gateway.exchange.streams.stream_journal import MOST_MOVES, DiskUse
from gateway.exchange.streams.stream_records import (
    MOVED,
    head_record,
    read_records,
    runner_record,
)
from gateway.http.resources.jobs.restoring import restored
from gateway.runners.resuming import KeptMemory, Resuming
from tests.harness.exchange_parts import WARM, Request
from tests.harness.stream_heads import LOG, OWNER, RID, head

COMMENT, PING = b": keep-alive\n\n", b'event: ping\ndata: {"type": "ping"}\n\n'
FRAMES = st.lists(
    st.sampled_from((b"data: one\n\n", b"event: x\ndata: two\n\n", COMMENT, PING)), max_size=8
)


# --- the buffer ----------------------------------------------------------------------------------


@given(st.lists(FRAMES, max_size=6), st.integers(0, 12), st.integers(1, 40))
def test_each_event_has_its_number_however_the_pieces_are_cut(
    pieces: list[list[bytes]], start: int, most_bytes: int
) -> None:
    buffer = EventBuffer()
    for frames in pieces:
        aside = buffer.add(b"".join(frames))
        assert aside == b"".join(frame for frame in frames if frame in (COMMENT, PING))
    events = [f for frames in pieces for f in frames if f not in (COMMENT, PING)]
    assert buffer.end == len(events)
    read, number = b"", min(start, buffer.end)
    while number < buffer.end:
        more, number = buffer.read(number, most_bytes)
        read += more
    expected = [b"id: %d\n%b" % pair for pair in enumerate(events)]
    assert read == b"".join(expected[start:])


@given(st.lists(st.integers(1, 3000), max_size=30), st.lists(st.integers(0, 30), max_size=30))
def test_only_sent_events_are_forgotten_and_only_past_the_limit(
    sizes: list[int], reads: list[int]
) -> None:
    buffer, limit = EventBuffer(), 4000
    for index, size in enumerate(sizes):
        buffer.add(b"data: %b\n\n" % (b"x" * size))
        if index < len(reads):
            buffer.sent_to(reads[index])
        has_room = buffer.shrink(limit)
        assert buffer.first <= buffer.sent <= buffer.end == index + 1
        assert has_room == (buffer.held_bytes <= limit)
        assert has_room or buffer.first == buffer.sent, "the rest was never sent"
        if index % 3 == 2:
            buffer.begin_at(buffer.first)
            assert buffer.sent == buffer.first, "a client that came back has nothing yet"
        held, _ = buffer.read(buffer.first, 1 << 30)
        assert buffer.held_bytes == len(held) + EVENT_BYTES * (buffer.end - buffer.first)
        if buffer.first:
            with pytest.raises(EventsGone):
                buffer.begin_at(buffer.first - 1)


# --- the file ------------------------------------------------------------------------------------


def delta(number: int) -> TokenDelta:
    return TokenDelta(RID, number, 0, "text", f"w{number} ", 1, (), pack_ids((number,)))


BEGUN = Begun(RID, pack_ids((1, 2, 3)), 9, (7,), 0)


@given(st.integers(0, 4), st.integers(0, 2), st.data())
def test_a_torn_file_has_what_was_written_before_the_tear(
    batches: int, moves: int, data: st.DataObject
) -> None:
    records = [head_record(head()), runner_record(Accepted(RID, 0, 3)), runner_record(BEGUN)]
    records += [runner_record(StepEntries(0, (delta(n), delta(n + 1)))) for n in range(batches)]
    records += [MOVED] * moves
    whole = b"".join(records)
    cut = data.draw(st.integers(len(records[0]), len(whole)))
    _, answer, size_bytes = read_records(whole[:cut])
    ends = [sum(map(len, records[: n + 1])) for n in range(len(records))]
    assert size_bytes == max(end for end in ends if end <= cut)
    intact = ends.index(size_bytes) + 1
    assert len(answer.entries) == 2 * max(0, min(intact - 3, batches))
    assert answer.moves == 1 + max(0, intact - 3 - batches)
    assert (answer.begun == BEGUN) == (intact >= 3)
    with pytest.raises(BadMessage):
        read_records(whole[: len(records[0]) - 1])


def test_a_file_is_one_process_s_until_that_dies(tmp_path: Path) -> None:
    async def scenario() -> None:
        mine, other = (StreamFolder(tmp_path / "streams", LOG) for _ in range(2))
        journal = await mine.begin(head())
        assert journal is not None and await journal.add([StepEntries(0, (delta(0),))])
        assert await other.claim(RID, OWNER) is None, "its process lives"
        assert await other.is_held(RID, OWNER) and not await other.is_held(RID, "key-2")
        journal.leave()
        mine.close()
        assert not await journal.add([StepEntries(0, (delta(1),))])
        assert await other.claim(RID, "key-2") is None, "another key's"
        assert await other.claim(RequestId("../streams/req-n1-h0-b-1"), OWNER) is None
        claimed = await other.claim(RID, OWNER)
        assert claimed is not None and claimed.head == head()
        assert (claimed.answer.moves, claimed.answer.entries) == (1, (delta(0),))
        claimed.journal.leave()
        again = await other.claim(RID, OWNER)
        assert again is not None and again.answer.moves == 2
        again.journal.remove()
        other.close()
        assert list((tmp_path / "streams").iterdir()) == []

    asyncio.run(scenario())


def test_files_without_a_process_are_deleted_once_nobody_may_read_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        files = StreamFolder(tmp_path, LOG)
        (tmp_path / "torn.stream").write_bytes(b"\0\0")
        short, long = head(wait_s=0.0), head(wait_s=300.0).model_copy(update={"request": "req-2"})
        for each in (short, long):
            journal = await files.begin(each)
            assert journal is not None
            journal.leave()
        assert await files.claim(RID, OWNER) is None
        assert await files.orphans() == [], "young files may be new"
        for path in tmp_path.iterdir():
            os.utime(path, (wall() - 1, wall() - 1))
        assert await files.orphans() == [(RequestId("req-2"), OWNER)]
        for _ in range(MOST_MOVES):
            claimed = await files.claim(RequestId("req-2"), OWNER)
            assert claimed is not None
            claimed.journal.leave()
        os.utime(tmp_path / "req-2.stream", (wall() - 1, wall() - 1))
        assert await files.orphans() == [], "it may have killed its processes"
        files.close()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["req-2.stream", "torn.stream"]

    asyncio.run(scenario())


def test_files_have_a_limit_of_disk_and_then_streams_go_without(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = len(head_record(head()))
        use = DiskUse(limit_bytes=2 * first - 1)
        files = StreamFolder(tmp_path, LOG, use)
        journal = await files.begin(head())
        assert journal is not None and use.used_bytes == first
        other = head().model_copy(update={"request": "req-n1-h0-b-2"})
        assert await files.begin(other) is None
        while await journal.add([StepEntries(0, (delta(0),))]):
            assert use.used_bytes <= use.limit_bytes
        assert use.used_bytes == 0
        files.close()
        assert list(tmp_path.iterdir()) == [], "half of an answer is of no use"

    asyncio.run(scenario())


def test_another_version_does_not_continue_a_stream(tmp_path: Path) -> None:
    async def scenario() -> None:
        files = StreamFolder(tmp_path, LOG)
        journal = await files.begin(head())
        assert journal is not None
        journal.leave()
        context = SimpleNamespace(fingerprint="shoal-2")
        parts: Any = SimpleNamespace(
            streams=SimpleNamespace(files=files), parse_context=lambda: context
        )
        assert await restored(parts, RID, OWNER) is None
        files.close()
        assert list(tmp_path.iterdir()) == [], "its events could have other numbers"

    asyncio.run(scenario())


def test_the_journal_has_what_the_client_gets_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        files = StreamFolder(tmp_path, LOG)
        lasting = LastingStream(OWNER, 30.0)
        await lasting.begin(files, head())
        entries: list[Entry] = [delta(0), delta(1)]
        exchange: Any = _Exchange()
        await lasting.note(exchange, entries)
        lasting.leave()
        claimed = await files.claim(RID, OWNER)
        assert claimed is not None and claimed.answer.begun == BEGUN
        again = LastingStream.taken_over(OWNER, 30.0, claimed.answer, claimed.journal)
        end: list[Entry] = [ChoiceEnd(RID, 2, 0, "stop", None), Finished(RID, 3, Usage())]
        await again.note(exchange, entries[:1])
        await again.note(exchange, [*entries[1:], *end])
        again.leave()
        last = await files.claim(RID, OWNER)
        assert last is not None and list(last.answer.entries) == [*entries, *end]
        last.journal.remove()
        files.close()

    asyncio.run(scenario())


def test_a_stream_that_a_provider_may_answer_is_not_read_again_and_says_so() -> None:
    async def scenario() -> None:
        fields = {"model": WARM, "input": "hi", "stream": True, "x_reattach_s": 5}
        parts, http, flow = Request(fields).begun()
        everything: Any = parts
        parsed = OpenAIResponses().parse(await http.body(), parts.parse_context())
        asked = replace(flow, parsed=parsed, trial=TaskTry("a-provider"))
        after = await let_reattach(everything, asked)
        assert after.lasting is None
        assert http.reply.headers["x-shoal-ignored"] == "x_reattach_s"
        await parts.close()

    asyncio.run(scenario())


class _Exchange:
    """An exchange of one request, whose runner reported its tokens."""

    def __init__(self) -> None:
        resuming = Resuming(KeptMemory())
        resuming.began(BEGUN, 0.0)
        self.request_id, self.prompt_tokens, self.resuming = RID, 3, resuming
        self.requests = (self,)
