"""Diagnostics through HTTP, with a real ROUTER where telemetry would be."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from falcon import testing
from falcon.asgi import App

from bus.calls import ask_service
from bus.client import Speaker
from bus.links.reactor import AsyncioReactor
from bus.links.transport import Link
from bus.process.endpoints import Endpoints
from bus.process.flight import FlightFile
from bus.replica.state import ClusterState
from bus.wire.codec import Envelope, decode, encode
from bus.wire.errors import BadRequest, Unavailable
from bus.wire.ids import Boot, InstanceId, NodeId, RequestId
from bus.wire.instances import RankReady
from bus.wire.messages.control import (
    AskDiagnosis,
    AskEnded,
    AskRunner,
    Diagnosis,
    DiagnosisRefused,
    RunnerReport,
    RunnersEnded,
)
from bus.wire.messages.gateways import CancelRow, RowCancelled
from bus.wire.messages.readings import HealthFinding, NodeReading, ProcessReading
from bus.wire.messages.wire import Message
from gateway.dialects.faults import HttpFaultRaised
from gateway.http import diagnostics
from gateway.http.diagnostics import DiagnosticsTiming
from gateway.http.diagnostics.node import Diagnosing, groups_of
from gateway.http.diagnostics.processes import answer_examined
from gateway.http.diagnostics.runners import answer_cancels
from gateway.http.routes import ROUTES
from tests.harness.called_nodes import CalledNodes
from tests.harness.node_server import instance, reading

NODE = NodeId("n1")
SPEAKER = Speaker(NODE, "gateway:0", Boot("b1"))
STACKS = {
    "process": "bus",
    "pid": 7,
    "method": "py-spy",
    "note": "",
    "threads": [
        {
            "pid": 7,
            "thread_id": 8,
            "name": "main",
            "active": True,
            "owns_gil": False,
            "frames": [
                {"name": "inner", "filename": "a.py", "line": 2},
                {"name": "outer", "filename": "a.py", "line": 1},
            ],
        }
    ],
}


class Desk:
    """Telemetry and a worker that answer by rote, behind the real resources."""

    def __init__(self, folder: str) -> None:
        self.endpoints = Endpoints(folder)
        self.asked: list[Message] = []
        self.answers: dict[type[Message], Message] = {}
        self.readings: list[tuple[NodeReading, float]] = []
        self.runners: list[Any] = []
        self.state = ClusterState()
        self.timing = DiagnosticsTiming()

    def run(self, act: Callable[[testing.ASGIConductor], Coroutine[Any, Any, Any]]) -> Any:
        async def main() -> Any:
            reactor = AsyncioReactor(asyncio.get_running_loop())
            links = [Link("router"), Link("router")]
            for link, address in zip(
                links, (self.endpoints.telemetry, self.endpoints.worker), strict=True
            ):
                link.bind(address)
                reactor.watch(link, lambda frames, link=link: self._answer(link, frames))
            bus = SimpleNamespace(
                speaker=SPEAKER, reactor=reactor, endpoints=self.endpoints, state=self.state
            )
            readings = SimpleNamespace(
                nodes=lambda _: self.readings, runners=lambda _: self.runners
            )
            options = SimpleNamespace(
                body_s=5.0, body_limit_bytes=1 << 20, body_depth=16, node=NODE
            )
            cluster: Any = SimpleNamespace(
                bus=bus,
                readings=readings,
                reactor=reactor,
                options=options,
                calls=CalledNodes(NODE)[NODE],
            )
            answer_cancels(cluster)
            answer_examined(cluster)
            app: App[Any, Any] = App()
            for kind in (HttpFaultRaised, BadRequest):
                app.add_error_handler(kind, _told)
            handle: Any = SimpleNamespace(service=SimpleNamespace(cluster=cluster))
            for route in ROUTES:
                if route.path.startswith(diagnostics.ROOT):
                    make: Any = route.resource
                    more = [self.timing] if issubclass(make, Diagnosing) else []
                    app.add_route(route.path, make(handle, *more))
            try:
                async with testing.ASGIConductor(app) as conductor:
                    return await act(conductor)
            finally:
                for link in links:
                    reactor.unwatch(link)
                    link.close()

        return asyncio.run(main())

    def get(self, path: str) -> testing.Result:
        return self.run(lambda conductor: conductor.simulate_get(path))

    def post(self, path: str, body: str) -> testing.Result:
        return self.run(lambda conductor: conductor.simulate_post(path, body=body))

    def _nodes(self, _now: float) -> list[tuple[NodeReading, float]]:
        return self.readings

    def _runners(self, _now: float) -> list[Any]:
        return self.runners

    def _answer(self, link: Link, frames: list[bytes]) -> None:
        question = decode(frames[1]).message
        self.asked.append(question)
        answer = self.answers.get(type(question))
        if answer is not None:
            link.send(frames[0], encode(Envelope(NODE, "telemetry", Boot("b2"), 1, answer)))


async def _told(_req: Any, resp: Any, error: Any, _params: Any) -> None:
    fault = getattr(error, "fault", None)
    resp.status = fault.status if fault else 400
    resp.media = {"message": str(error), "code": fault.code if fault else error.field}


@pytest.fixture
def desk() -> Iterator[Desk]:
    with tempfile.TemporaryDirectory(prefix="sh") as folder:
        yield Desk(folder)


def stacks_answer() -> Diagnosis:
    return Diagnosis(method="py-spy", content=json.dumps(STACKS).encode())


def test_stacks_are_passed_on_as_telemetry_found_them(desk: Desk) -> None:
    desk.answers[AskDiagnosis] = stacks_answer()
    found = desk.get("/v1/diagnostics/node/processes/runner:00/stacks")
    assert (found.status_code, found.json) == (200, STACKS)
    assert desk.asked == [AskDiagnosis(want="stacks", process="runner:00")]


def test_stacks_as_text_begin_with_the_outermost_call(desk: Desk) -> None:
    desk.answers[AskDiagnosis] = stacks_answer()
    found = desk.get("/v1/diagnostics/node/processes/gateway/2/stacks?format=text")
    assert found.headers["content-type"].startswith("text/plain")
    lines = found.text.splitlines()
    assert lines[0] == "bus pid 7, by py-spy"
    assert lines[2:] == [
        "thread main of pid 7 (8) [active]",
        "  outer (a.py:1)",
        "  inner (a.py:2)",
    ]
    assert desk.asked == [AskDiagnosis(want="stacks", process="gateway/2")]


def test_an_unknown_format_is_refused_by_name(desk: Desk) -> None:
    found = desk.get("/v1/diagnostics/node/processes/bus/stacks?format=xml")
    assert (found.status_code, found.json["code"], desk.asked) == (400, "format", [])


def test_a_profile_is_ordered_as_asked_and_keeps_its_type(desk: Desk) -> None:
    desk.answers[AskDiagnosis] = Diagnosis(
        method="py-spy", content_type="image/svg+xml", content=b"<svg/>"
    )
    body = '{"seconds": 1.5, "rate_hz": 50, "format": "flamegraph"}'
    found = desk.post("/v1/diagnostics/node/processes/bus/profile", body)
    assert found.headers["content-type"] == "image/svg+xml" and found.content == b"<svg/>"
    (asked,) = desk.asked
    assert asked == AskDiagnosis(
        want="profile", process="bus", seconds=1.5, rate_hz=50, format="flamegraph"
    )


@pytest.mark.parametrize(
    ("body", "field"),
    [('{"seconds": 31}', "seconds"), ('{"second": 1}', "second"), ("[", "message")],
)
def test_a_profile_that_cannot_be_is_refused_with_the_field(
    desk: Desk, body: str, field: str
) -> None:
    found = desk.post("/v1/diagnostics/node/processes/bus/profile", body)
    assert (found.status_code, found.json["code"], desk.asked) == (400, field, [])


@pytest.mark.parametrize(("status", "code"), list(diagnostics.CODES.items()))
def test_telemetrys_refusals_keep_their_status(desk: Desk, status: int, code: str) -> None:
    desk.answers[AskDiagnosis] = DiagnosisRefused(status=status, message="the reason")
    found = desk.get("/v1/diagnostics/node/processes/bus/stacks")
    assert (found.status_code, found.json) == (status, {"message": "the reason", "code": code})


def test_a_silent_telemetry_is_a_503_and_the_wait_is_named(desk: Desk) -> None:
    desk.timing = DiagnosticsTiming(stacks_s=0.05)
    found = desk.get("/v1/diagnostics/node/processes/bus/stacks")
    assert (found.status_code, found.json["code"]) == (503, "telemetry_silent")
    assert "AskDiagnosis" in found.json["message"]


def test_the_node_tells_of_processes_runners_and_what_is_wrong(desk: Desk) -> None:
    one = instance("tiny")
    desk.state = ClusterState(term=3, index=9, instances={str(one.instance): one})
    desk.runners = [reading(one)]
    desk.readings = [(node_reading(), 0.5)]
    can = json.dumps({"py_spy": True, "reason": "may"}).encode()
    desk.answers[AskDiagnosis] = Diagnosis(method="py-spy", content=can)
    desk.answers[AskRunner] = RunnerReport(
        slot="00",
        pid=9,
        instance=one.instance,
        generation=1,
        phase="ready",
        recorder=({"at_s": 1.0, "phase": "idle"},),
        memory={"active_bytes": 5},
    )
    desk.answers[AskEnded] = RunnersEnded(
        reports=(
            RunnerReport(
                slot="01", pid=8, instance=one.instance, generation=1, phase="ended",
                recorder=({"at_s": 0.5, "phase": "error"},), ended_at_s=1.0, exit_code=-1,
            ),
        )
    )  # fmt: skip
    found = desk.get("/v1/diagnostics/node").json
    (ended,) = found["ended"]
    assert (ended["process"], ended["pid"], ended["exit_code"]) == ("runner:01", 8, -1)
    assert ended["recorder"] == [{"at_s": 0.5, "phase": "error"}] and "memory" not in ended
    assert found["diagnosis"] == {"py_spy": True, "reason": "may"}
    assert [process["name"] for process in found["processes"]] == ["bus"]
    (runner,) = found["runners"]
    assert (runner["process"], runner["memory"]) == ("runner:00", {"active_bytes": 5})
    assert runner["recorder"] == [{"at_s": 1.0, "phase": "idle"}]
    assert runner["reading"]["generation_tokens_per_s"] == 42.0
    assert [warning["code"] for warning in found["warnings"]] == ["disk_low"]
    assert found["runtime"]["packages"]["falcon"]
    assert AskRunner(instance=InstanceId("inst-tiny")) in desk.asked


def test_a_runner_that_does_not_answer_is_told_of_as_its_worker_and_its_recorder_have_it(
    desk: Desk,
) -> None:
    desk.timing = DiagnosticsTiming(report_s=0.5)
    one = instance("tiny")
    desk.state = ClusterState(instances={str(one.instance): one})
    flight = FlightFile(Path(desk.endpoints.folder), "runner:00", 4)
    flight.add({"at_s": 1.0, "phase": "steps", "step": 7})
    frozen = RunnerReport(
        slot="00", pid=os.getpid(), instance=one.instance, generation=1, phase="ready", step=7,
        silent_s=4.5, stacks=json.dumps(STACKS).encode(), facts={"model": "tiny"},
    )  # fmt: skip
    desk.answers[AskEnded] = RunnersEnded(run=(frozen,))
    found = desk.get("/v1/diagnostics/node").json
    flight.close()
    (runner,) = found["runners"]
    assert (runner["process"], runner["silent_s"], runner["step"]) == ("runner:00", 4.5, 7)
    assert runner["recorder"] == [{"at_s": 1.0, "phase": "steps", "step": 7}]
    assert runner["stacks"] == STACKS
    assert "runner_silent" in [warning["code"] for warning in found["warnings"]]


def test_a_node_has_a_rank_in_each_of_its_groups_or_is_alone() -> None:
    (alone,) = groups_of(NODE, [instance("tiny")])
    assert (alone["is_available"], alone["rank"], alone["world_size"]) == (False, 0, 1)
    assert alone["backend"] is None and "split over several nodes" in alone["failure_reason"]
    here, there = (shard.model_copy(update={"rank": rank, "node": node})
                   for rank, node, shard in zip((1, 0), (NODE, "n9"), instance("big").shards * 2,
                                                strict=True))  # fmt: skip
    ranks = [RankReady(rank=rank, node=node, process="runner:00", addresses=(), pid=1)
             for rank, node in ((0, NodeId("n9")), (1, NODE))]  # fmt: skip
    forming = instance("big").model_copy(
        update={"shards": (here, there), "status": "placed", "ready": tuple(ranks[:1])}
    )
    whole = forming.model_copy(
        update={"status": "ready", "ready": tuple(ranks), "collectives": "jaccl"}
    )
    failed = forming.model_copy(update={"status": "failed", "why": "no link"})
    groups = groups_of(NODE, [forming, whole, failed])
    assert [(group["is_available"], group["failure_reason"]) for group in groups] == [
        (False, "1 of 2 ready"),
        (True, None),
        (False, "no link"),
    ]
    assert {(group["rank"], group["world_size"]) for group in groups} == {(1, 2)}
    assert [group["backend"] for group in groups] == ["ring", "jaccl", "ring"]
    assert groups_of(NodeId("n7"), [whole])[0]["world_size"] == 1


CANCEL = "/v1/diagnostics/node/runners/runner:00/cancel"


@pytest.mark.parametrize("there", [True, False])
def test_a_runner_is_asked_through_its_worker_to_end_a_request(desk: Desk, there: bool) -> None:
    request = RequestId("req-n1-h0-b-1")
    desk.answers[CancelRow] = RowCancelled(slot="00", request=request, found=there)
    found = desk.post(CANCEL, json.dumps({"request_id": f"chatcmpl-{request}"}))
    assert found.status_code == 200
    assert found.json == {
        "id": f"chatcmpl-{request}", "node": NODE, "process": "runner:00", "cancelled": there,
    }  # fmt: skip
    assert desk.asked == [CancelRow(slot="00", request=request)]


@pytest.mark.parametrize(
    ("status", "code"),
    [(404, "process_not_found"), (409, "not_rank_0"), (504, "process_silent")],
)
def test_a_workers_refusal_to_end_a_request_keeps_its_status(
    desk: Desk, status: int, code: str
) -> None:
    desk.answers[CancelRow] = DiagnosisRefused(status=status, message="the reason")
    found = desk.post(CANCEL, '{"request_id": "x"}')
    assert (found.status_code, found.json["code"]) == (status, code)
    assert found.json["message"] == "runner:00: the reason"


@pytest.mark.parametrize(
    ("body", "field"), [("{}", "request_id"), ('{"request_id": "x", "row": 1}', "row")]
)
def test_a_cancel_that_names_no_request_is_refused_with_the_field(
    desk: Desk, body: str, field: str
) -> None:
    found = desk.post(CANCEL, body)
    assert (found.status_code, found.json["code"], desk.asked) == (400, field, [])


def test_only_a_runner_can_be_asked_to_end_a_request(desk: Desk) -> None:
    found = desk.post("/v1/diagnostics/node/runners/bus/cancel", '{"request_id": "x"}')
    assert (found.status_code, found.json["code"], desk.asked) == (404, "process_not_found", [])


def test_what_does_not_answer_is_a_warning_and_never_an_error(desk: Desk) -> None:
    desk.timing = DiagnosticsTiming(report_s=0.05)
    one = instance("tiny")
    desk.state = ClusterState(instances={str(one.instance): one})
    desk.runners = [reading(one)]
    desk.readings = [(node_reading(), 20.0)]
    found = desk.get("/v1/diagnostics/node")
    assert found.status_code == 200
    codes = [warning["code"] for warning in found.json["warnings"]]
    assert codes == ["telemetry_silent", "runner_silent"]
    assert found.json["diagnosis"]["py_spy"] is None
    assert [runner["process"] for runner in found.json["runners"]] == ["runner:00"]


def test_two_questions_at_once_get_each_its_own_answer(desk: Desk) -> None:
    desk.answers = {
        AskDiagnosis: stacks_answer(),
        AskRunner: DiagnosisRefused(status=404, message="no runner"),
    }

    async def act(_conductor: testing.ASGIConductor) -> list[Message]:
        reactor = AsyncioReactor(asyncio.get_running_loop())
        bus: Any = SimpleNamespace(speaker=SPEAKER, reactor=reactor)
        asking = partial(ask_service, bus)
        both = (
            asking(desk.endpoints.telemetry, AskDiagnosis(want="stacks", process="x"), 10.0),
            asking(desk.endpoints.worker, AskRunner(instance=InstanceId("i")), 10.0),
        )
        return list(await asyncio.gather(*both))

    first, second = desk.run(act)
    assert isinstance(first, Diagnosis) and isinstance(second, DiagnosisRefused)


def test_a_question_without_an_answer_ends_with_the_wait_named(desk: Desk) -> None:
    async def act(_conductor: testing.ASGIConductor) -> None:
        reactor = AsyncioReactor(asyncio.get_running_loop())
        bus: Any = SimpleNamespace(speaker=SPEAKER, reactor=reactor)
        await ask_service(bus, desk.endpoints.worker, AskRunner(instance=InstanceId("i")), 0.05)

    with pytest.raises(Unavailable, match=r"AskRunner at worker\.slots"):
        desk.run(act)


def node_reading() -> NodeReading:
    process = ProcessReading(
        name="bus",
        pid=7,
        status="running",
        cpu_s=1.0,
        cpu_ratio=0.1,
        resident_bytes=1,
        threads=2,
        uptime_s=3.0,
    )
    low = HealthFinding(
        node=NODE, level="warn", code="disk_low", message="5 GB", remediation="make room"
    )
    return NodeReading(
        node=NODE,
        memory_total_bytes=2,
        memory_available_bytes=1,
        cpu_ratio=0.5,
        load_1m=1.0,
        disk_total_bytes=2,
        disk_free_bytes=1,
        processes=(process,),
        findings=(low,),
        measured_at_s=1.0,
    )
