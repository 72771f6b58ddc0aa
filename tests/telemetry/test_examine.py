"""Questions about a process: who may be examined, one at a time, and the way round ptrace."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from bus.client import Speaker
from bus.process.endpoints import Endpoints
from bus.service import stack_sampler
from bus.wire.ids import Boot, NodeId
from bus.wire.messages.control import AskDiagnosis, Diagnosis, DiagnosisRefused
from telemetry import diagnose
from telemetry.diagnose import Capability
from telemetry.examine import Answer, Examiner, ProcessTarget

SPEAKER = Speaker(NodeId("n1"), "telemetry", Boot("b1"))
FORBIDDEN = Capability(False, "the system forbids ptrace")
Make = Callable[..., Examiner]


@pytest.fixture
def endpoints() -> Iterator[Endpoints]:
    with tempfile.TemporaryDirectory(prefix="sh") as folder:
        yield Endpoints(folder)


@pytest.fixture
def examiner(endpoints: Endpoints) -> Make:
    def make(capability: Capability = FORBIDDEN, **targets: ProcessTarget) -> Examiner:
        known: Mapping[str, ProcessTarget] = {one.name: one for one in targets.values()}
        return Examiner(SPEAKER, endpoints, capability, lambda: known)

    return make


@pytest.fixture(scope="module")
def allowed() -> Capability:
    can = diagnose.probe()
    if not can.allowed:
        pytest.skip(f"py-spy may not be used here: {can.reason}")
    return can


def here(name: str = "bus", **more: Any) -> ProcessTarget:
    return ProcessTarget(name, os.getpid(), "running", **more)


def refused(answer: Answer) -> DiagnosisRefused:
    assert isinstance(answer, DiagnosisRefused)
    return answer


def found(answer: Answer) -> dict[str, Any]:
    assert isinstance(answer, Diagnosis), answer
    return json.loads(answer.content)


def test_a_process_that_supervisord_does_not_know_is_never_examined(examiner: Make) -> None:
    answer = examiner(bus=here()).examine(AskDiagnosis(want="stacks", process="1"))
    assert refused(answer).status == 404
    assert "it has bus" in refused(answer).message


def test_a_process_that_does_not_run_is_said_so(examiner: Make) -> None:
    stopped = ProcessTarget("runner:00", 0, "stopped")
    answer = examiner(one=stopped).examine(AskDiagnosis(want="stacks", process="runner:00"))
    assert refused(answer).status == 409 and "stopped" in refused(answer).message


def test_where_ptrace_is_forbidden_a_process_speaks_for_itself(
    examiner: Make, endpoints: Endpoints
) -> None:
    with stack_sampler(endpoints, Speaker(NodeId("n1"), "bus", Boot("b2"))):
        answer = examiner(bus=here()).examine(AskDiagnosis(want="stacks", process="bus"))
    content = found(answer)
    assert (content["method"], content["note"]) == ("in-process", FORBIDDEN.reason)
    names = {frame["name"] for thread in content["threads"] for frame in thread["frames"]}
    assert "test_where_ptrace_is_forbidden_a_process_speaks_for_itself" in names
    assert all(thread["pid"] == os.getpid() for thread in content["threads"])
    assert all(thread["frames"][0]["name"] != "_bootstrap" for thread in content["threads"])


def test_a_process_that_does_not_speak_either_is_a_timeout(
    examiner: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("telemetry.examine.SAMPLE_TIMEOUT_S", 0.05)
    answer = examiner(bus=here()).examine(AskDiagnosis(want="stacks", process="bus"))
    assert refused(answer).status == 504 and FORBIDDEN.reason in refused(answer).message


def test_profiles_need_ptrace_and_the_refusal_says_why(examiner: Make) -> None:
    answer = examiner(bus=here()).examine(AskDiagnosis(want="profile", process="bus"))
    assert refused(answer).status == 501 and FORBIDDEN.reason in refused(answer).message


def test_the_capability_is_told_at_once(examiner: Make) -> None:
    answers: list[Answer] = []
    examiner().start(AskDiagnosis(want="capability"), answers.append)
    assert found(answers[0]) == {"py_spy": False, "reason": FORBIDDEN.reason}


def test_only_one_examination_at_a_time(endpoints: Endpoints) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def targets() -> Mapping[str, ProcessTarget]:
        entered.set()
        assert go_on.wait(20)
        return {}

    answers: queue.Queue[Answer] = queue.Queue()
    examiner = Examiner(SPEAKER, endpoints, FORBIDDEN, targets)
    ask = AskDiagnosis(want="stacks", process="bus")
    examiner.start(ask, answers.put)
    assert entered.wait(20)
    examiner.start(ask, answers.put)
    assert refused(answers.get(timeout=20)).status == 429
    go_on.set()
    assert refused(answers.get(timeout=20)).status == 404
    examiner.start(ask, answers.put)
    assert refused(answers.get(timeout=20)).status == 404


def test_an_examination_that_breaks_off_is_answered_and_the_next_may_come(
    endpoints: Endpoints,
) -> None:
    def targets() -> Mapping[str, ProcessTarget]:
        raise OSError("supervisord is gone")

    answers: queue.Queue[Answer] = queue.Queue()
    examiner = Examiner(SPEAKER, endpoints, FORBIDDEN, targets)
    for _ in range(2):
        examiner.start(AskDiagnosis(want="stacks", process="bus"), answers.put)
        answer = refused(answers.get(timeout=20))
        assert (answer.status, "supervisord is gone" in answer.message) == (500, True)


def test_a_gateway_is_examined_with_its_children(examiner: Make, allowed: Capability) -> None:
    program = [sys.executable, "-c", "print(flush=True)\ndef await_tide(): input()\nawait_tide()"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline()
        target = ProcessTarget("gateway", child.pid, "running", children=(child.pid,))
        ask = AskDiagnosis(want="stacks", process="gateway")
        content = found(examiner(allowed, gateway=target).examine(ask))
        child.communicate(b"\n", timeout=20)
    frames = [frame["name"] for thread in content["threads"] for frame in thread["frames"]]
    assert frames.count("await_tide") == 2
    assert content["method"] == "py-spy"


def test_when_pyspy_fails_the_process_itself_is_asked_and_the_note_says_why(
    examiner: Make, endpoints: Endpoints
) -> None:
    broken = Capability(True, "was fine at the start", "/nowhere/py-spy")
    with stack_sampler(endpoints, Speaker(NodeId("n1"), "bus", Boot("b2"))):
        ask = AskDiagnosis(want="stacks", process="bus")
        content = found(examiner(broken, bus=here()).examine(ask))
    assert content["method"] == "in-process" and "cannot start py-spy" in content["note"]
