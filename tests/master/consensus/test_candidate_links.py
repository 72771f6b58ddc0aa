"""Whom a candidate dials, and what it lets itself be asked."""

from __future__ import annotations

import io
from pathlib import Path

from bus.client import BusClient, Speaker
from bus.links.reactor import PollReactor
from bus.links.transport import Link
from bus.process.clock import now
from bus.process.endpoints import Endpoints
from bus.process.identity import new_boot
from bus.process.logs import Log
from bus.wire.codec import MAX_QUESTION_BYTES
from bus.wire.ids import NodeId
from bus.wire.messages.control import AskSnapshot, NotHolder
from bus.wire.messages.peers import PeerReading, PeersReading, PeerStatus
from bus.wire.messages.wire import Message
from master.consensus.candidate_links import CandidateRouter, candidates_in


def peer(name: str, status: PeerStatus, host: str, port: int = 9) -> PeerReading:
    return PeerReading(node=NodeId(name), name=name, status=status, host=host, candidate_port=port)


def test_only_who_can_answer_is_dialled() -> None:
    reading = PeersReading(
        node=NodeId("me"),
        peers=(
            peer("linked", "linked", "10.0.0.2"),
            peer("silent", "silent", "10.0.0.3"),
            peer("has called, and was not called back yet", "silent", ""),
            peer("gone", "left", "10.0.0.4"),
            peer("nobody may join", "linked", "10.0.0.5", 0),
        ),
    )
    assert candidates_in(reading) == {
        "linked": ("tcp://10.0.0.2:9",),
        "silent": ("tcp://10.0.0.3:9",),
    }


def test_a_question_that_is_far_too_long_is_dropped_and_the_next_is_answered(
    tmp_path: Path,
) -> None:
    reactor, said = PollReactor(), io.StringIO()
    log = Log(node="me", process="master", stream=said)
    speaker = Speaker(NodeId("me"), "master", new_boot())
    client = BusClient(speaker, Endpoints(str(tmp_path)), reactor, log, follow=False)
    asked: list[Message] = []

    def answer(question: Message, _asker: bytes) -> Message:
        asked.append(question)
        return NotHolder()

    router = CandidateRouter(client, reactor, log, answer)
    asker, answers = Link("dealer", identity="asker"), []
    reactor.watch(asker, answers.append)
    asker.connect(client.endpoints.candidate)
    asker.send(b"\x90" * (MAX_QUESTION_BYTES + 1))
    end = now() + 10.0
    while not answers and now() < end:
        asker.send(client.write(AskSnapshot()))
        reactor.turn(0.05)
    for part in (router, client, asker, reactor):
        part.close()
    assert answers and {type(one) for one in asked} == {AskSnapshot}
