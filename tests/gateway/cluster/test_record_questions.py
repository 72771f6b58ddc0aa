"""What gateways ask each other about records: over a real switchboard, in one loop."""

from __future__ import annotations

import asyncio
import io
import os
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bus.client import BusClient, Speaker
from bus.links.reactor import AsyncioReactor
from bus.process.clock import now
from bus.process.endpoints import Endpoints
from bus.process.identity import new_boot
from bus.process.logs import Log
from bus.switchboard.switchboard import Switchboard
from bus.wire.errors import ShoalError
from bus.wire.ids import NodeId
from bus.wire.messages.peers import PeerReading, PeersReading
from gateway.cluster.record_questions import (
    ANSWER_S,
    ATTEMPTS_EACH,
    REPEAT_S,
    RecordQuestions,
    RecordsElsewhere,
    Standing,
    standing_of,
)

N1, N2 = NodeId("n1"), NodeId("n2")


class Site:
    """A switchboard, and HTTP processes of several nodes at it, as if their boards were linked."""

    def __init__(self, folder: str) -> None:
        self.log = Log(node="n1", process="bus", stream=io.StringIO())
        self.endpoints = Endpoints(folder)
        self.reactor = AsyncioReactor(asyncio.get_running_loop())
        self.board = Switchboard(self.endpoints, self.reactor, self.log)
        self.standings = {N1: Standing("one"), N2: Standing("two")}
        self.open: list[tuple[BusClient, RecordQuestions]] = []

    def process(self, node: NodeId, number: int = 0, processes: int = 1) -> RecordQuestions:
        speaker = Speaker(node, f"gateway:{number}", new_boot())
        bus = BusClient(speaker, self.endpoints, self.reactor, self.log, follow=False)
        made = RecordQuestions(bus, number=number, processes=processes, standing=self.standings.get)
        self.open.append((bus, made))
        return made

    def end(self, made: RecordQuestions) -> None:
        for one in [one for one in self.open if one[1] is made]:
            self.open.remove(one)
            made.close()
            one[0].close()

    def close(self) -> None:
        for _, made in list(self.open):
            self.end(made)
        self.board.close()


def play(trace: Callable[[Site], Awaitable[None]]) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory(prefix="shoal-asked-", dir="/tmp") as folder:
            site = Site(folder)
            try:
                await trace(site)
            finally:
                site.close()

    asyncio.run(run())


async def echo(given: Any) -> Any:
    return ["said", given]


def test_another_node_answers_what_its_verb_makes_of_the_arguments() -> None:
    async def trace(site: Site) -> None:
        site.process(N2).answer("echo", echo)
        asker = site.process(N1)
        asker.answer("own", echo)
        assert await asker.ask(N2, "echo", {"a": [1, None, b"\xff"]}) == [
            "said",
            {"a": [1, None, b"\xff"]},
        ]
        assert await asker.ask(N1, "own", 1) == ["said", 1]

    play(trace)


def test_an_answer_of_many_megabytes_arrives_whole_and_is_found_once() -> None:
    async def trace(site: Site) -> None:
        large, asked = os.urandom(12 << 20), list[Any]()

        async def find(given: Any) -> bytes:
            asked.append(given)
            return large

        site.process(N2).answer("find", find)
        assert await site.process(N1).ask(N2, "find", "x") == large
        assert asked == ["x"]

    play(trace)


def test_an_answer_that_takes_longer_than_a_repeat_is_found_once() -> None:
    async def trace(site: Site) -> None:
        asked = list[Any]()

        async def find(given: Any) -> int:
            asked.append(given)
            await asyncio.sleep(REPEAT_S * (ATTEMPTS_EACH + 2))
            return 7

        for number in range(2):
            site.process(N2, number, 2).answer("find", find)
        assert await site.process(N1).ask(N2, "find", "x") == 7
        assert asked == ["x"]

    play(trace)


def test_only_what_may_be_slow_is_waited_for_beyond_the_usual() -> None:
    async def trace(site: Site) -> None:
        asked = list[Any]()

        async def find(given: Any) -> int:
            asked.append(given)
            await asyncio.sleep(ANSWER_S + 2 * REPEAT_S)
            return 7

        site.process(N2).answer("find", find)
        asker = site.process(N1)
        slow = asker.ask(N2, "find", "slow", within_s=3 * ANSWER_S)
        usual = asker.ask(N2, "find", "usual")
        answer, failed = await asyncio.gather(slow, usual, return_exceptions=True)
        assert answer == 7 and sorted(asked) == ["slow", "usual"]
        assert isinstance(failed, RecordsElsewhere) and failed.why == "silent"

    play(trace)


@pytest.mark.parametrize("gone", [0, 1])
def test_where_a_process_is_gone_another_of_its_node_answers(gone: int) -> None:
    async def trace(site: Site) -> None:
        site.process(N2, 1 - gone, 2).answer("echo", echo)
        asker = site.process(N1)
        for count in range(3):
            assert await asker.ask(N2, "echo", count) == ["said", count]

    play(trace)


def test_a_process_that_dies_amid_an_answer_costs_nothing_but_time() -> None:
    """Two processes give different answers: never a piece of one and a piece of the other."""

    async def trace(site: Site) -> None:
        both = [site.process(N2, number, 2) for number in range(2)]
        answered = list[int]()

        def finds(number: int) -> Callable[[Any], Awaitable[bytes]]:
            async def find(_given: Any) -> bytes:
                answered.append(number)
                loop.call_later(0.02, die, number)
                return bytes([number]) * (15 << 20)

            return find

        def die(number: int) -> None:
            if answered == [number]:
                site.end(both[number])

        loop = asyncio.get_running_loop()
        for number, one in enumerate(both):
            one.answer("find", finds(number))
        asker = site.process(N1)
        found = await asker.ask(N2, "find", None)
        assert len(found) == 15 << 20 and set(found) == {answered[-1]}
        assert len(answered) == 2, "the first died before it had said all"

    play(trace)


def test_a_node_that_does_not_answer_is_named_with_the_time() -> None:
    async def trace(site: Site) -> None:
        asker, begun_at = site.process(N1), now()
        with pytest.raises(RecordsElsewhere, match="node two did not answer within 5 s") as raised:
            await asker.ask(N2, "echo", None)
        assert raised.value.why == "silent" and raised.value.waited_s == ANSWER_S
        assert ANSWER_S <= now() - begun_at < 3 * ANSWER_S

    play(trace)


def test_a_node_that_is_down_or_unknown_is_said_at_once() -> None:
    async def trace(site: Site) -> None:
        asker, begun_at = site.process(N1), now()
        site.standings[N2] = Standing("two", "silent for 9 s")
        with pytest.raises(
            RecordsElsewhere, match="node two is not connected: silent for 9 s"
        ) as one:
            await asker.ask(N2, "echo", None)
        with pytest.raises(RecordsElsewhere, match="n3") as other:
            await asker.ask(NodeId("n3"), "echo", None)
        assert (one.value.why, other.value.why) == ("down", "unknown")
        assert now() - begun_at < ANSWER_S, "no answer was waited for"

    play(trace)


def test_why_there_is_no_answer_is_told_and_an_unknown_verb_too() -> None:
    async def trace(site: Site) -> None:
        async def fails(_given: Any) -> None:
            raise ShoalError("the disk is full")

        async def breaks(_given: Any) -> None:
            raise KeyError("secret")

        async def too_much(_given: Any) -> bytes:
            return bytes(17 << 20)

        owner, asker = site.process(N2), site.process(N1)
        for verb, by in (("fails", fails), ("breaks", breaks), ("too_much", too_much)):
            owner.answer(verb, by)
        for verb, words in (
            ("fails", "node two: the disk is full"),
            ("breaks", "see its log"),
            ("too_much", "too large"),
            ("none", "unknown request 'none'"),
        ):
            with pytest.raises(RecordsElsewhere, match=words) as raised:
                await asker.ask(N2, verb, None)
            assert raised.value.why == "refused"
            assert "secret" not in str(raised.value)

    play(trace)


def test_many_questions_at_once_have_each_their_own_answer() -> None:
    async def trace(site: Site) -> None:
        for number in range(2):
            site.process(N2, number, 2).answer("echo", echo)
        askers = [site.process(N1, number, 2) for number in range(2)]
        asked = [(askers[count % 2], count) for count in range(100)]
        found = await asyncio.gather(*(one.ask(N2, "echo", count) for one, count in asked))
        assert found == [["said", count] for count in range(100)]

    play(trace)


def test_a_node_stands_as_its_switchboard_tells() -> None:
    def told(node: NodeId, *peers: PeerReading) -> PeersReading:
        return PeersReading(node=node, peers=peers)

    linked = PeerReading(node=N2, name="two", status="linked")
    silent = PeerReading(node=N2, name="two", status="silent", why="no answer for 4 s")
    left = PeerReading(node=N2, name="two", status="left")
    names = {N1: "one", N2: "named"}

    def stands(*readings: PeersReading, names: dict[NodeId, str] = names) -> Standing | None:
        return standing_of(N2, own=N1, names=names, peers=readings)

    assert stands(told(N1, linked)) == Standing("two")
    assert stands(told(N1, silent)) == Standing("two", "no answer for 4 s")
    assert stands(told(N1, left), names={}) == Standing("two", "left")
    assert stands(told(NodeId("n3"), silent)) == Standing("named"), "another's word"
    assert stands(told(N1)) == Standing("named"), "in the state, and no peer yet"
    assert stands(told(N1), names={}) is None
