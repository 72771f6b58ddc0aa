"""Stacks of a runner that fell silent, with a real ROUTER where telemetry would be."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bus.client import BusClient, Speaker
from bus.links.reactor import PollReactor
from bus.links.transport import Link
from bus.process.endpoints import Endpoints
from bus.process.logs import Log
from bus.wire.codec import Envelope, decode, encode
from bus.wire.ids import Boot, NodeId
from bus.wire.messages.control import AskDiagnosis, Diagnosis, DiagnosisRefused
from bus.wire.messages.wire import Message
from worker.slots.diagnoses import AGAIN_S, STACKS_BYTES, STACKS_S, SuspectStacks

NODE, PID = NodeId("n1"), 77


class Desk:
    """A worker's looks, and a telemetry that answers by rote: None is no answer."""

    def __init__(self, folder: str) -> None:
        self.reactor = PollReactor()
        endpoints = Endpoints(folder)
        self.telemetry = Link("router")
        self.telemetry.bind(endpoints.telemetry)
        self.reactor.watch(self.telemetry, self.asked)
        speaker = Speaker(NODE, "worker", Boot("b"))
        log = Log(node=NODE, process="worker", stream=io.StringIO())
        self.client = BusClient(speaker, endpoints, self.reactor, log, follow=False)
        self.stacks = SuspectStacks(self.client)
        self.answers: list[Message | None] = []
        self.heard: list[AskDiagnosis] = []

    def asked(self, frames: list[bytes]) -> None:
        question = decode(frames[1]).message
        assert isinstance(question, AskDiagnosis)
        self.heard.append(question)
        answer = self.answers.pop(0)
        if answer is not None:
            self.telemetry.send(frames[0], encode(Envelope(NODE, "t", Boot("c"), 1, answer)))

    def until(self, condition: Callable[[], object]) -> None:
        for _ in range(500):
            if condition():
                return
            self.reactor.turn(0.02)
        raise AssertionError("not in time")

    def found(self) -> dict[str, Any]:
        self.until(lambda: self.stacks.of(PID))
        return json.loads(self.stacks.of(PID))

    def close(self) -> None:
        self.stacks.close()
        self.reactor.unwatch(self.telemetry)
        self.telemetry.close()
        self.client.close()


@pytest.fixture
def desk() -> Iterator[Desk]:
    with tempfile.TemporaryDirectory(prefix="sh") as folder:
        made = Desk(folder)
        try:
            yield made
        finally:
            made.close()


def diagnosis(pid: int = PID, padding: int = 0) -> Diagnosis:
    threads = [{"name": "x" * padding}]
    told = {"process": "runner:00", "pid": pid, "method": "py-spy", "note": "", "threads": threads}
    return Diagnosis(method="py-spy", content=json.dumps(told).encode())


def test_a_look_is_asked_once_and_kept_until_the_process_is_gone(desk: Desk) -> None:
    desk.answers = [diagnosis()]
    desk.stacks.look("runner:00", PID)
    desk.stacks.look("runner:00", PID)  # under way
    assert desk.found()["method"] == "py-spy"
    assert desk.heard == [AskDiagnosis(want="stacks", process="runner:00")]
    assert json.loads(desk.stacks.forget(PID))["threads"]
    assert desk.stacks.of(PID) == b"" == desk.stacks.forget(PID)


def test_a_telemetry_that_looks_elsewhere_is_asked_again(desk: Desk) -> None:
    desk.answers = [DiagnosisRefused(status=429, message="another"), diagnosis()]
    desk.stacks.look("runner:00", PID)
    began = desk.reactor.now()
    desk.until(lambda: desk.stacks.tick(desk.reactor.now()) or desk.stacks.of(PID))
    assert desk.reactor.now() - began >= AGAIN_S and len(desk.heard) == 2
    assert desk.found()["method"] == "py-spy"


@pytest.mark.parametrize(
    ("answer", "note"),
    [
        (DiagnosisRefused(status=504, message="no stacks of it"), "no stacks of it"),
        (diagnosis(pid=PID + 1), "another process replaced it"),
        (diagnosis(padding=STACKS_BYTES), "too many to keep"),
        (Diagnosis(method="py-spy", content=b"?"), "cannot read"),
    ],
)
def test_where_there_are_no_stacks_it_is_said_why(desk: Desk, answer: Message, note: str) -> None:
    desk.answers = [answer]
    desk.stacks.look("runner:00", PID)
    found = desk.found()
    assert (found["method"], found["threads"]) == ("none", []) and note in found["note"]


def test_a_telemetry_that_says_nothing_is_given_up(desk: Desk) -> None:
    desk.answers = [None]
    desk.stacks.look("runner:00", PID)
    desk.until(lambda: desk.heard)
    desk.stacks.tick(desk.reactor.now() + STACKS_S)
    assert "did not answer in time" in desk.found()["note"]


def test_what_a_stuck_runner_tells_of_itself_is_kept_and_nothing_else_is_waited_for(
    desk: Desk,
) -> None:
    desk.answers = [None]
    desk.stacks.look("runner:00", PID)
    desk.stacks.keep("runner:00", PID, diagnosis().content)
    desk.stacks.tick(desk.reactor.now() + STACKS_S)
    assert json.loads(desk.stacks.forget(PID))["method"] == "py-spy"
    desk.stacks.keep("runner:00", PID, diagnosis(pid=PID + 1).content)
    assert "another process" in json.loads(desk.stacks.forget(PID))["note"]


def test_a_process_that_goes_before_it_is_seen_says_so_in_its_last_account(desk: Desk) -> None:
    desk.answers = [None]
    desk.stacks.look("runner:00", PID)
    assert "ended before" in json.loads(desk.stacks.forget(PID))["note"]
    assert desk.stacks.of(PID) == b""
