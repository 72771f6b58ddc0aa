"""Calls between the gateways of nodes: over a real switchboard, in one loop."""

from __future__ import annotations

import asyncio
import io
import os
import random
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from bus.calls import CALLS, CallFailed, NodeCalls, Standing, TypedCall, refusal_of, standing_of
from bus.calls.node_calls import UNKNOWN_ATTEMPTS, Judge
from bus.calls.pending import ANSWER_S, ATTEMPTS_EACH, REPEAT_S
from bus.calls.table import EXAMINE, FIND_TRACE, RESTART, TAKE_CAPTURE
from bus.client import BusClient, Speaker
from bus.links.reactor import AsyncioReactor
from bus.process.clock import now
from bus.process.endpoints import Endpoints
from bus.process.identity import new_boot
from bus.process.logs import Log
from bus.switchboard.switchboard import Switchboard
from bus.wire.api_keys import ApiKey
from bus.wire.calls.nodes import (
    Capture,
    Examine,
    Examined,
    Restarting,
    RestartServices,
    TakeCapture,
)
from bus.wire.calls.traces import FindTrace, TraceFound
from bus.wire.codec import Envelope
from bus.wire.errors import BadRequest, ShoalError
from bus.wire.ids import NodeId, RequestId
from bus.wire.messages.control import AskDiagnosis
from bus.wire.messages.gateways import CallAnswered, CallAsked, CallRefusal
from bus.wire.messages.peers import PeerReading, PeersReading
from bus.wire.messages.wire import Message
from tests.bus.calls.test_call_rules import mangled
from tests.harness.called_nodes import known
from tests.harness.seeds import seed_for
from tests.recorded.specimens import full

N1, N2 = NodeId("n1"), NodeId("n2")


class Site:
    """A switchboard, and HTTP processes of several nodes at it, as if their boards were linked."""

    def __init__(self, folder: str) -> None:
        self.log = Log(node="n1", process="bus", stream=io.StringIO())
        self.endpoints = Endpoints(folder)
        self.reactor = AsyncioReactor(asyncio.get_running_loop())
        self.board = Switchboard(self.endpoints, self.reactor, self.log)
        self.standings = {N1: Standing("one"), N2: Standing("two")}
        self.open: list[tuple[BusClient, NodeCalls]] = []

    def process(
        self, node: NodeId, number: int = 0, processes: int = 1, judge: Judge | None = None
    ) -> NodeCalls:
        speaker = Speaker(node, f"gateway:{number}", new_boot())
        bus = BusClient(speaker, self.endpoints, self.reactor, self.log, follow=False)
        around = known(self.standings)
        if judge is not None:
            around = replace(around, judge=judge)
        made = NodeCalls(bus, around, number=number, processes=processes)
        self.open.append((bus, made))
        return made

    def end(self, made: NodeCalls) -> None:
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


async def echo(asked: FindTrace) -> TraceFound:
    return TraceFound(trace=asked.request.encode())


def about(name: object) -> FindTrace:
    return FindTrace(request=RequestId(str(name)))


async def ask(asker: NodeCalls, node: NodeId, name: object) -> bytes | None:
    return (await asker.ask(node, FIND_TRACE, about(name), key="")).trace


def test_a_node_replies_with_what_its_handler_returns_and_so_does_the_own_node() -> None:
    async def trace(site: Site) -> None:
        site.process(N2).answer(FIND_TRACE, echo)
        asker = site.process(N1)
        asker.answer(FIND_TRACE, echo)
        assert await ask(asker, N2, "é") == "é".encode()
        assert await ask(asker, N1, "own") == b"own"

    play(trace)


def test_a_reply_of_many_megabytes_arrives_whole_and_is_computed_once() -> None:
    async def trace(site: Site) -> None:
        large, asked = os.urandom(12 << 20), list[str]()

        async def find(question: FindTrace) -> TraceFound:
            asked.append(question.request)
            return TraceFound(trace=large)

        site.process(N2).answer(FIND_TRACE, find)
        assert await ask(site.process(N1), N2, "x") == large
        assert asked == ["x"]

    play(trace)


def test_a_reply_that_takes_longer_than_a_repeat_is_computed_once() -> None:
    async def trace(site: Site) -> None:
        asked = list[str]()

        async def find(question: FindTrace) -> TraceFound:
            asked.append(question.request)
            await asyncio.sleep(REPEAT_S * (ATTEMPTS_EACH + 2))
            return TraceFound()

        for number in range(2):
            site.process(N2, number, 2).answer(FIND_TRACE, find)
        assert await ask(site.process(N1), N2, "x") is None
        assert asked == ["x"]

    play(trace)


def test_only_a_slow_call_waits_longer_than_usual_for_a_node_that_computes() -> None:
    async def trace(site: Site) -> None:
        asked = list[str]()

        async def slow(question: RestartServices) -> Restarting:
            asked.append("slow")
            await asyncio.sleep(ANSWER_S + 2 * REPEAT_S)
            return Restarting(services=question.services)

        async def usual(_question: FindTrace) -> TraceFound:
            asked.append("usual")
            await asyncio.sleep(ANSWER_S + 2 * REPEAT_S)
            return TraceFound()

        answering = site.process(N2)
        answering.answer(RESTART, slow)
        answering.answer(FIND_TRACE, usual)
        asker = site.process(N1)
        restart = RestartServices(services=("bus",))
        answer, failed = await asyncio.gather(
            asker.ask(N2, RESTART, restart, key="", within_s=3 * ANSWER_S),
            ask(asker, N2, "usual"),
            return_exceptions=True,
        )
        assert answer == Restarting(services=("bus",)) and sorted(asked) == ["slow", "usual"]
        assert isinstance(failed, CallFailed) and failed.why == "silent"

    play(trace)


@pytest.mark.parametrize("gone", [0, 1])
def test_where_a_process_is_gone_another_of_its_node_answers(gone: int) -> None:
    async def trace(site: Site) -> None:
        site.process(N2, 1 - gone, 2).answer(FIND_TRACE, echo)
        asker = site.process(N1)
        for count in range(3):
            assert await ask(asker, N2, count) == str(count).encode()

    play(trace)


def test_a_process_that_dies_amid_a_reply_costs_nothing_but_time() -> None:
    """Two processes give different replies: never a piece of one and a piece of the other."""

    async def trace(site: Site) -> None:
        both = [site.process(N2, number, 2) for number in range(2)]
        answered = list[int]()

        def finds(number: int) -> Callable[[TakeCapture], Awaitable[Capture]]:
            async def find(_asked: TakeCapture) -> Capture:
                answered.append(number)
                loop.call_later(0.02, die, number)
                return Capture(content=bytes([number]) * (15 << 20))

            return find

        def die(number: int) -> None:
            if answered == [number]:
                site.end(both[number])

        loop = asyncio.get_running_loop()
        for number, process in enumerate(both):
            process.answer(TAKE_CAPTURE, finds(number))
        asker = site.process(N1)
        reply = await asker.ask(N2, TAKE_CAPTURE, TakeCapture(name="x"), key="")
        assert len(reply.content) == 15 << 20 and set(reply.content) == {answered[-1]}
        assert len(answered) == 2, "the first died before it had sent all"

    play(trace)


def test_a_node_that_does_not_answer_is_named_with_the_time() -> None:
    async def trace(site: Site) -> None:
        asker, begun_at = site.process(N1), now()
        with pytest.raises(CallFailed, match="node two did not answer within 5 s") as raised:
            await ask(asker, N2, "x")
        assert raised.value.why == "silent" and raised.value.waited_s == ANSWER_S
        assert ANSWER_S <= now() - begun_at < 3 * ANSWER_S

    play(trace)


def test_a_node_that_is_down_or_unknown_is_reported_at_once() -> None:
    async def trace(site: Site) -> None:
        asker, begun_at = site.process(N1), now()
        site.standings[N2] = Standing("two", "silent for 9 s")
        with pytest.raises(CallFailed, match="node two is not connected: silent for 9 s") as down:
            await ask(asker, N2, "x")
        with pytest.raises(CallFailed, match="n3") as unknown:
            await ask(asker, NodeId("n3"), "x")
        assert (down.value.why, unknown.value.why) == ("down", "unknown")
        assert now() - begun_at < ANSWER_S, "no answer was waited for"

    play(trace)


def test_a_node_that_the_answering_node_does_not_know_is_judged_after_some_attempts() -> None:
    """A new node may call before its card has arrived: the first attempts get no answer."""

    async def trace(site: Site) -> None:
        site.process(N2).answer(FIND_TRACE, echo)
        stranger = site.process(NodeId("n3"))
        begun_at, late = now(), asyncio.create_task(ask(stranger, N2, "x"))
        await asyncio.sleep(REPEAT_S)
        assert not late.done()
        assert await late == b"x", "this harness judges nobody"
        assert now() - begun_at >= (UNKNOWN_ATTEMPTS - 1) * REPEAT_S
        site.standings[NodeId("n3")] = Standing("three")
        assert await ask(stranger, N2, "y") == b"y"

    play(trace)


def test_the_reason_for_a_refusal_arrives_and_an_unanswered_call_is_named() -> None:
    async def trace(site: Site) -> None:
        async def fails(asked: FindTrace) -> TraceFound:
            if asked.request == "breaks":
                raise KeyError("secret")
            if asked.request == "too much":
                return TraceFound(trace=bytes(17 << 20))
            raise ShoalError("the disk is full")

        owner, asker = site.process(N2), site.process(N1)
        owner.answer(FIND_TRACE, fails)
        for name, words in (
            ("fails", "node two: the disk is full"),
            ("breaks", "see its log"),
            ("too much", "too large"),
        ):
            with pytest.raises(CallFailed, match=words) as raised:
                await ask(asker, N2, name)
            assert raised.value.why == "refused"
            assert "secret" not in str(raised.value)
        with pytest.raises(CallFailed, match=r"unknown call 'capture\.take'"):
            await asker.ask(N2, TAKE_CAPTURE, TakeCapture(name="x"), key="")

    play(trace)


def test_a_call_of_an_admin_says_whose_key_is_behind_it_and_is_not_too_large() -> None:
    async def trace(site: Site) -> None:
        asker = site.process(N1)
        with pytest.raises(ValueError, match="needs `key`, the id of the API key"):
            await asker.ask(N2, FIND_TRACE, about("x"))
        services = ("x" * (1 << 20), "y" * 100)
        with pytest.raises(BadRequest, match="a call to another node holds at most 1048576 bytes"):
            await asker.ask(N2, RESTART, RestartServices(services=services), key="")

    play(trace)


def test_many_calls_at_once_have_each_their_own_reply() -> None:
    async def trace(site: Site) -> None:
        for number in range(2):
            site.process(N2, number, 2).answer(FIND_TRACE, echo)
        askers = [site.process(N1, number, 2) for number in range(2)]
        replies = await asyncio.gather(*(ask(askers[n % 2], N2, n) for n in range(100)))
        assert replies == [str(n).encode() for n in range(100)]

    play(trace)


def test_all_nodes_are_asked_at_once_and_those_without_a_reply_are_named() -> None:
    async def trace(site: Site) -> None:
        asker = site.process(N1)
        asker.answer(FIND_TRACE, echo)
        gathered = await asker.ask_each(FIND_TRACE, about("x"), key="")
        assert {node: reply.trace for node, reply in gathered.replies.items()} == {N1: b"x"}
        assert gathered.missing == ("two (silent)",)
        site.standings[N2] = Standing("two", "silent for 9 s")
        assert (await asker.ask_each(FIND_TRACE, about("x"), key="")).missing == ("two (down)",)
        site.process(N2).answer(FIND_TRACE, echo)
        site.standings[N2] = Standing("two")
        gathered = await asker.ask_each(FIND_TRACE, about("x"), nodes=[N2], key="")
        assert [*gathered.replies] == [N2] and not gathered.missing

    play(trace)


def test_the_node_in_a_request_id_is_asked_and_an_unknown_one_has_no_reply() -> None:
    async def trace(site: Site) -> None:
        site.process(N2).answer(FIND_TRACE, echo)
        asker = site.process(N1)
        for name, reply in (("req-n2-h0-b-1", True), ("req-n3-h0-b-1", False), ("x", False)):
            request = RequestId(name)
            asked = FindTrace(request=request)
            answer = await asker.ask_owner(request, FIND_TRACE, asked, key="")
            assert (answer is not None) == reply, name

    play(trace)


def test_what_a_process_computes_ends_with_it() -> None:
    async def trace(site: Site) -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def examine(_asked: Examine) -> Examined:
            begun.set()
            try:
                await asyncio.sleep(60)
            finally:
                ended.set()
            raise AssertionError

        answering, asker = site.process(N2), site.process(N1)
        answering.answer(EXAMINE, examine)
        question = AskDiagnosis(want="stacks", process="bus")
        asked = Examine(question=question, within_s=60.0)
        late = asyncio.create_task(asker.ask(N2, EXAMINE, asked, key="", within_s=60.0))
        await asyncio.wait_for(begun.wait(), 10)
        site.end(answering)
        await asyncio.wait_for(ended.wait(), 10)
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)

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


def test_every_call_without_the_right_is_refused_over_the_bus_and_its_handler_is_not_run() -> None:
    inference = full(ApiKey).model_copy(
        update={"id": "key-00000001", "scope": "inference", "expires_at_s": None}
    )

    async def trace(site: Site) -> None:
        def judge(call: TypedCall[Any, Any], asker: NodeId, key: str) -> CallRefusal | None:
            return refusal_of(
                call, site.standings.get(asker), key, {inference.id: inference}, 100.0
            )

        async def handle(_request: Message) -> Message:
            raise ShoalError("it ran")

        owner = site.process(N2, judge=judge)
        member, stranger = site.process(N1), site.process(NodeId("n3"))
        for call in CALLS.values():
            owner.answer(call, handle)

        async def why(asker: NodeCalls, call: TypedCall[Any, Any], key: str) -> str:
            with pytest.raises(CallFailed) as raised:
                await asker.ask(N2, call, full(call.request), key=key)
            refusal = raised.value.refusal
            assert refusal is not None and refusal.status in (0, 403), call.name
            return "forbidden" if refusal.status else refusal.message

        calls = list(CALLS.values())
        with_key = await asyncio.gather(*(why(member, call, inference.id) for call in calls))
        of_owner = await asyncio.gather(*(why(member, call, "") for call in calls))
        unknown = await asyncio.gather(*(why(stranger, call, "") for call in calls))
        for call, *answers in zip(calls, with_key, of_owner, unknown, strict=True):
            allowed = {"peer": ["it ran", "it ran"], "admin": ["forbidden", "it ran"]}
            assert answers == [*allowed.get(call.right, ["forbidden"] * 2), "forbidden"], call

    play(trace)


def test_malformed_requests_of_every_call_are_refused_over_the_bus() -> None:
    """The process answers each of them, names what is wrong, and serves the next call."""
    chance = random.Random(seed_for("MALFORMED_ON_THE_BUS", 20261129))

    async def trace(site: Site) -> None:
        owner, asker = site.process(N2), site.process(N1)
        answers = dict[str, CallAnswered]()
        bus = site.open[-1][0]

        def take(_topic: str, envelope: Envelope) -> None:
            if isinstance(envelope.message, CallAnswered) and envelope.message.refused:
                answers[envelope.message.call_id] = envelope.message

        async def handle(_request: Message) -> Message:
            raise AssertionError("a malformed request reached its handler")

        bus.hear(f"call.answered.{N1}", take)
        for call in CALLS.values():
            owner.answer(call, echo if call is FIND_TRACE else handle)
        asked = {
            f"call-{n}": CallAsked(
                call_id=f"call-{n}", name=call.name, request=mangled(call, chance)
            )
            for n, call in enumerate([*CALLS.values()] * 5)
        }
        while missing := [asked[name] for name in asked if name not in answers]:
            for message in missing:
                bus.publish(f"call.asked.{N2}", message)
            await asyncio.sleep(0.1)
        refusals = [answer.refused for answer in answers.values()]
        assert all(refusal is not None and refusal.message for refusal in refusals)
        assert await ask(asker, N2, "x") == b"x"

    play(trace)
