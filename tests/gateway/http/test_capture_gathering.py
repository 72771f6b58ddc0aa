"""A node's capture while parts of the node stand still: each is named, and the capture ends."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from bus.client import Speaker
from bus.links.reactor import AsyncioReactor
from bus.links.transport import Link
from bus.process.endpoints import Endpoints
from bus.replica.state import ClusterState
from bus.wire.codec import Envelope, decode, encode
from bus.wire.ids import Boot, NodeId
from bus.wire.messages.control import AskDiagnosis, Diagnosis, DiagnosisRefused
from bus.wire.messages.readings import NodeReading, ProcessReading
from gateway.control.captures import NodeCapture
from gateway.http.diagnostics import gathering
from gateway.http.diagnostics.gathering import CaptureTiming

NODE = NodeId("n1")
Answers = Callable[[AskDiagnosis], Diagnosis | DiagnosisRefused | None]
PROCESSES = ("bus", "gateway", "gateway/1", "runner:00")


def listed(name: str) -> ProcessReading:
    return ProcessReading(
        name=name, pid=2**22 + 1, status="running", cpu_s=0.0, cpu_ratio=0.0,
        resident_bytes=1, threads=1, uptime_s=1.0, description="",
    )  # fmt: skip


def reading() -> NodeReading:
    return NodeReading(
        node=NODE, memory_total_bytes=1, memory_available_bytes=1, cpu_ratio=0.0, load_1m=0.0,
        disk_total_bytes=1, disk_free_bytes=1, processes=tuple(map(listed, PROCESSES)),
        measured_at_s=1.0,
    )  # fmt: skip


@pytest.fixture
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="sh") as made:
        yield made


def nodes(_now: float) -> list[tuple[NodeReading, float]]:
    return [(reading(), 0.5)]


def runners(_now: float) -> list[Any]:
    return []


def gathered(folder: str, answers: Answers, timing: CaptureTiming) -> NodeCapture:
    """A capture of a node whose telemetry answers so, and where nothing else does."""

    async def main() -> NodeCapture:
        reactor = AsyncioReactor(asyncio.get_running_loop())
        endpoints = Endpoints(folder)
        link = Link("router")
        link.bind(endpoints.telemetry)

        def asked(frames: list[bytes]) -> None:
            question = decode(frames[1]).message
            assert isinstance(question, AskDiagnosis)
            answer = answers(question)
            if answer is not None:
                link.send(frames[0], encode(Envelope(NODE, "telemetry", Boot("b2"), 1, answer)))

        reactor.watch(link, asked)
        parts: Any = SimpleNamespace(
            bus=SimpleNamespace(
                speaker=Speaker(NODE, "gateway:0", Boot("b1")),
                reactor=reactor,
                endpoints=endpoints,
                state=ClusterState(),
            ),
            readings=SimpleNamespace(nodes=nodes, runners=runners),
            reactor=reactor,
            tasks=SimpleNamespace(variables=frozenset),
            options=SimpleNamespace(
                node=NODE, node_name="desk", endpoints=endpoints, logs_folder="",
                secret_files=(), settings_shown={},
            ),
        )  # fmt: skip
        parts.cluster = parts
        try:
            return await gathering.gathered(parts, timing)
        finally:
            reactor.unwatch(link)
            link.close()

    return asyncio.run(main())


def stacks(question: AskDiagnosis) -> Diagnosis:
    found: dict[str, Any] = {"process": question.process, "pid": 1, "method": "py-spy", "note": ""}
    return Diagnosis(method="py-spy", content=json.dumps({**found, "threads": []}).encode())


def whys(capture: NodeCapture) -> dict[str, str]:
    return {one.what: one.why for one in capture.missing}


def test_stacks_are_of_each_process_and_http_processes_are_asked_one_by_one(folder: str) -> None:
    asked: list[str] = []

    def answer(question: AskDiagnosis) -> Diagnosis:
        asked.append(question.process)
        return stacks(question)

    capture = gathered(folder, answer, CaptureTiming(step_s=5.0))
    assert [one for one in asked if one] == ["bus", "gateway/1", "runner:00"]
    assert capture.files["stacks/runner-00.txt"].startswith(b"runner:00 pid 1, by py-spy")
    # nothing else is there: supervisord does not answer, the processes are gone
    assert {"processes.json", "memory of bus"} <= set(whys(capture))
    assert [one["name"] for one in json.loads(capture.files["processes.json"])] == list(PROCESSES)


def test_a_process_whose_stacks_cannot_be_had_is_named_and_the_next_is_asked(folder: str) -> None:
    def answer(question: AskDiagnosis) -> Diagnosis | DiagnosisRefused:
        if question.process == "bus":
            return DiagnosisRefused(status=504, message="py-spy did not finish within 5 s")
        return stacks(question)

    capture = gathered(folder, answer, CaptureTiming(step_s=5.0))
    assert whys(capture)["stacks/bus.txt"] == "py-spy did not finish within 5 s"
    assert "stacks/runner-00.txt" in capture.files


def test_a_telemetry_that_is_frozen_is_waited_for_once(folder: str) -> None:
    asked: list[str] = []

    def answer(question: AskDiagnosis) -> Diagnosis | None:
        if question.want == "capability":
            return stacks(question)
        asked.append(question.process)
        return None

    capture = gathered(folder, answer, CaptureTiming(step_s=0.05))
    assert asked == ["bus"]
    told = whys(capture)
    assert "telemetry does not answer" in told["stacks/bus.txt"]
    assert "telemetry did not answer earlier" in told["stacks/runner-00.txt"]
    assert "versions.json" in capture.files


def test_a_telemetry_at_work_for_another_is_asked_again(folder: str) -> None:
    busy = [True, True]

    def answer(question: AskDiagnosis) -> Diagnosis | DiagnosisRefused:
        if question.process == "bus" and busy and busy.pop():
            return DiagnosisRefused(status=429, message="another examination is under way")
        return stacks(question)

    capture = gathered(folder, answer, CaptureTiming(step_s=5.0, again_s=0.01))
    assert "stacks/bus.txt" in capture.files and busy == []


def test_what_no_time_is_left_for_is_named(folder: str) -> None:
    capture = gathered(folder, stacks, CaptureTiming(whole_s=-1.0))
    assert "the time limit of the capture (-1 s) was reached" in whys(capture)["node.json"]
    assert "the time limit of the capture (-1 s) was reached" in whys(capture)["memory of bus"]
