"""Conversations of a node's HTTP processes and of other nodes': what ends there is added here."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from bus.wire.ids import NodeId, RequestId
from gateway.dialects.dialect import KeptAnswer, NamedItem
from gateway.records import AnswerBounds, RecordsUnavailable
from gateway.records.conversations import ConversationRecords, EndedTurn
from tests.gateway.records.test_answers import BOUNDS, N1, N2, Process, Site, named

KEPT = KeptAnswer(b'{"status":"completed"}', (b"{}",))
QUESTION: NamedItem = ("msg_q", b'{"id":"msg_q"}')
ANSWER: NamedItem = ("msg_a", b'{"id":"msg_a"}')


class Talker:
    """One HTTP process of a node, with its conversations."""

    def __init__(self, site: Site, node: NodeId = N1, bounds: AnswerBounds = BOUNDS) -> None:
        self.process: Process = site.process(node, bounds)
        self.records = ConversationRecords(
            self.process.records, self.process.answers, self.process.far, node
        )

    async def end(
        self, conversation: RequestId, run: RequestId, *items: NamedItem, **more: Any
    ) -> str:
        turn = EndedTurn("o", conversation, run, more.get("answer", run), items, more.get("kept"))
        return await self.records.end(turn)

    async def names(self, conversation: RequestId) -> list[bytes] | None:
        return await self.records.items("o", conversation, RequestId("none"))


def play(trace: Callable[[Site], Awaitable[None]]) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory(prefix="shoal-conversations-", dir="/tmp") as folder:
            site = Site(folder)
            try:
                await trace(site)
            finally:
                site.close()

    asyncio.run(asyncio.wait_for(run(), 30))


def contents(*items: NamedItem) -> Sequence[bytes]:
    return [content for _, content in items]


@pytest.mark.parametrize("asker", [N1, N2])
def test_what_ends_at_any_node_is_in_the_conversation_and_its_answer_at_its_own(
    asker: NodeId,
) -> None:
    async def trace(site: Site) -> None:
        home = Talker(site)
        talker = home if asker == N1 else Talker(site, N2)
        conversation, run = named(0, 1), named(0, 2, node=asker)
        await home.records.begin("o", conversation, b"{}", [])
        assert await talker.end(conversation, run, QUESTION, ANSWER, kept=KEPT) == ""
        assert await home.names(conversation) == contents(QUESTION, ANSWER)
        assert await talker.names(conversation) == contents(QUESTION, ANSWER)
        assert await talker.process.answers.find("o", run) == KEPT
        # the words for it may be heard twice
        assert await talker.end(conversation, run, QUESTION, ANSWER) == ""
        assert await home.names(conversation) == contents(QUESTION, ANSWER)
        found = await talker.records.find("o", conversation)
        assert found is not None and found.items == 2
        assert await talker.records.find("another", conversation) is None

    play(trace)


@pytest.mark.parametrize("asker", [N1, N2])
def test_of_a_conversation_that_is_gone_it_is_said_and_the_answer_is_kept(asker: NodeId) -> None:
    async def trace(site: Site) -> None:
        home = Talker(site)
        talker = home if asker == N1 else Talker(site, N2)
        run = named(0, 2, node=asker)
        why = await talker.end(named(0, 1), run, QUESTION, kept=KEPT)
        assert "deleted in the meantime" in why
        assert await talker.process.answers.find("o", run) == KEPT
        assert await home.names(named(0, 1)) is None

    play(trace)


def test_a_node_that_is_to_keep_no_answers_keeps_no_conversations() -> None:
    async def trace(site: Site) -> None:
        home = Talker(site, bounds=AnswerBounds(rows=0, bytes=1, age_s=1.0))
        with pytest.raises(RecordsUnavailable, match="no conversations"):
            await home.records.begin("o", named(0, 1), b"{}", [])

    play(trace)


def test_a_question_that_is_repeated_adds_once_and_another_is_told_of_it() -> None:
    async def trace(site: Site) -> None:
        Talker(site)
        talker = Talker(site, N2)
        home = talker.records
        conversation = named(0, 1, node=N2)
        await home.begin("o", conversation, b"{}", [])
        for _ in range(2):
            assert await home.add("o", conversation, [QUESTION], named(0, 5)) == "added"
        assert await home.add("o", conversation, [QUESTION], named(0, 6)) == "there"
        assert await home.add("o", named(0, 9, node=N2), [QUESTION], named(0, 7)) == "gone"
        large = [(f"i{count}", b"x" * (5 << 20)) for count in range(2)]
        assert await home.add("o", conversation, large, named(0, 8)) == "full"
        assert await talker.names(conversation) == contents(QUESTION)

    play(trace)
