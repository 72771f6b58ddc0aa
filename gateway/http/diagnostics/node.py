"""Talks to telemetry and the runners through the bus: what this node is doing, down to its stacks;
to the disk: what its processes have logged.

`GET /v1/diagnostics/node` gathers what is known already and asks each ready runner for its own
account, all at once and for at most 2 s; a runner that does not answer is a warning, never an
error. Stacks and profiles are telemetry's, one at a time; its refusal keeps its HTTP status.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from falcon.asgi import Request, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bus.process.tree import running_code
from bus.wire.codec import first_problem
from bus.wire.errors import BadMessage, BadRequest, Unavailable
from bus.wire.ids import InstanceId, NodeId
from bus.wire.messages.control import (
    AskDiagnosis,
    AskEnded,
    AskRunner,
    Diagnosis,
    DiagnosisRefused,
    RunnerReport,
    RunnersEnded,
)
from bus.wire.messages.readings import NodeReading, RunnerReading
from bus.wire.messages.wire import PROTOCOL_MAX, PROTOCOL_MIN, Message
from gateway.cluster.watch import MOST_LINES, log_tail, logged_processes
from gateway.dialects.body import bad_field
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.http.ask import ask
from gateway.http.middleware import Resource, answer_json, read_body
from gateway.http.query import number_of
from gateway.service import HttpService

ROOT = "/v1/diagnostics/node"
READING_FRESH_S = 15.0
MAX_BODY_BYTES = 64 << 10
LOG_LINES = 100
CODES = {
    404: "process_not_found",
    409: "process_not_running",
    429: "examination_under_way",
    501: "profiles_not_possible",
    504: "process_silent",
}
"""What telemetry's refusals are called."""
PACKAGES = ("shoal", "mlx", "mlx-lm", "pyzmq", "falcon", "gunicorn", "uvloop", "pydantic")


@dataclass(frozen=True, slots=True)
class DiagnosticsTiming:
    """How long answers are waited for: a runner's account, stacks, a profile after its seconds."""

    report_s: float = 2.0
    stacks_s: float = 20.0
    profile_slack_s: float = 20.0


class ProfileOrder(BaseModel):
    """The body of a profile: every field may be left out."""

    model_config = ConfigDict(extra="forbid")

    seconds: float = Field(default=2.0, ge=0.1, le=30.0)
    rate_hz: int = Field(default=100, ge=1, le=1000)
    format: Literal["speedscope", "flamegraph"] = "speedscope"


@dataclass(frozen=True)
class _Diagnosing(Resource):
    timing: DiagnosticsTiming = DiagnosticsTiming()


class NodeDiagnostics(_Diagnosing):
    """`GET /v1/diagnostics/node`."""

    async def on_get(self, _req: Request, resp: Response) -> None:
        """Answer with runtime, processes, runners with their own accounts and those that ended
        last, memory, warnings."""
        answer_json(resp, await node_document(self.service, self.timing))


class ProcessStacks(_Diagnosing):
    """`GET /v1/diagnostics/node/processes/{name}/stacks[?format=text]`."""

    async def on_get(self, req: Request, resp: Response, name: str, part: str = "") -> None:
        """Answer with the stack of each thread of the process, never locals; as JSON or text."""
        form = req.get_param("format", default="json")
        if form not in ("json", "text"):
            raise bad_field("format", f"{form!r} is neither json nor text")
        question = AskDiagnosis(want="stacks", process=_named(name, part))
        found = await asked_of_telemetry(self.service, question, self.timing.stacks_s)
        if form == "text":
            resp.content_type = "text/plain; charset=utf-8"
            resp.text = stacks_text(json.loads(found.content))
        else:
            resp.content_type = found.content_type
            resp.data = found.content


class ProcessLog(_Diagnosing):
    """`GET /v1/diagnostics/node/processes/{name}/log[?lines=]`."""

    async def on_get(self, req: Request, resp: Response, name: str) -> None:
        """Answer with the last lines that the process has logged, oldest first, and the names of
        those that have a log."""
        lines = round(number_of(req, "lines", LOG_LINES, least=1, most=MOST_LINES))
        folder = self.service.options.logs_folder
        known, found = await asyncio.to_thread(_logged, folder, name, lines)
        if found is None:
            there = ", ".join(known) or "none"
            text = f"no process {name[:100]!r} has a log on this node; there are: {there}"
            raise HttpFaultRaised(HttpFault(404, "process_not_found", text))
        told = {"node": self.service.options.node, "process": name, "lines": found}
        answer_json(resp, {**told, "processes": known})
        resp.set_header("cache-control", "no-store")


class ProcessProfile(_Diagnosing):
    """`POST /v1/diagnostics/node/processes/{name}/profile`."""

    async def on_post(self, req: Request, resp: Response, name: str, part: str = "") -> None:
        """Sample the process for some seconds; a speedscope JSON or a flame graph (SVG)."""
        body = await read_body(req, MAX_BODY_BYTES, self.service.options.body_s)
        try:
            order = ProfileOrder.model_validate_json(body or b"{}")
        except ValidationError as error:
            problem = first_problem(error)
            raise BadRequest(problem, field=problem.partition(":")[0]) from error
        question = AskDiagnosis(want="profile", process=_named(name, part), **order.model_dump())
        deadline_s = order.seconds + self.timing.profile_slack_s
        found = await asked_of_telemetry(self.service, question, deadline_s)
        resp.content_type = found.content_type
        resp.data = found.content


async def node_document(service: HttpService, timing: DiagnosticsTiming) -> dict[str, Any]:
    """Return what `GET /v1/diagnostics/node` tells; at most `timing.report_s` is waited."""
    node, state = service.bus.speaker.node, service.bus.state
    now = service.reactor.now()
    fresh = [r for r, age_s in service.readings.nodes(now) if _is_fresh(r, age_s, node)]
    reading = fresh[0] if fresh else None
    readings = {r.process: r for r in service.readings.runners(now) if r.node == node}
    within_s = timing.report_s
    (reports, failed), ended, capability = await asyncio.gather(
        _reports(service, within_s), _ended(service, within_s), _capability(service, within_s)
    )
    warnings = [] if reading is None else [f.model_dump() for f in reading.findings]
    if reading is None:
        warnings.append(_warning(node, "telemetry_silent", "telemetry sends no readings"))
    warnings += [_warning(node, "runner_silent", text) for text in failed]
    runners = [_runner(report, readings.get(_process_of(report))) for report in reports]
    told = {runner["process"] for runner in runners}
    runners += [_runner(None, r) for name, r in sorted(readings.items()) if name not in told]
    return {
        "node": node,
        "runtime": runtime(),
        "diagnosis": capability,
        "memory": _memory(reading),
        "processes": [p.model_dump() for p in reading.processes] if reading else [],
        "runners": runners,
        "ended": [_ended_runner(report) for report in ended],
        "state": {"term": state.term, "index": state.index},
        "warnings": warnings,
    }


async def _reports(service: HttpService, within_s: float) -> tuple[list[RunnerReport], list[str]]:
    node = service.bus.speaker.node
    mine = [
        instance.instance
        for instance in service.bus.state.instances.values()
        if any(rank.node == node for rank in instance.ready)
    ]
    found = await asyncio.gather(*(_report(service, instance, within_s) for instance in mine))
    reports = [report for report in found if isinstance(report, RunnerReport)]
    return reports, [text for text in found if isinstance(text, str)]


async def _report(
    service: HttpService, instance: InstanceId, within_s: float
) -> RunnerReport | str:
    question = AskRunner(instance=instance)
    try:
        answer = await _ask(service, service.bus.endpoints.worker, question, within_s)
    except (Unavailable, BadMessage) as error:
        return f"no account of {instance}: {error}"
    if isinstance(answer, RunnerReport):
        return answer
    said = answer.message if isinstance(answer, DiagnosisRefused) else type(answer).__name__
    return f"no account of {instance}: {said}"


async def _ended(service: HttpService, within_s: float) -> tuple[RunnerReport, ...]:
    """Return the worker's accounts of runners that have ended; none where it does not answer."""
    try:
        answer = await _ask(service, service.bus.endpoints.worker, AskEnded(), within_s)
    except (Unavailable, BadMessage):
        return ()
    return answer.reports if isinstance(answer, RunnersEnded) else ()


async def _capability(service: HttpService, within_s: float) -> dict[str, Any]:
    question = AskDiagnosis(want="capability")
    try:
        answer = await _ask(service, service.bus.endpoints.telemetry, question, within_s)
    except (Unavailable, BadMessage) as error:
        return {"py_spy": None, "reason": str(error)}
    if isinstance(answer, Diagnosis):
        return cast(dict[str, Any], json.loads(answer.content))
    return {"py_spy": None, "reason": f"telemetry answered {type(answer).__name__}"}


async def asked_of_telemetry(
    service: HttpService, question: AskDiagnosis, deadline_s: float
) -> Diagnosis:
    """Return telemetry's diagnosis. Raises HttpFaultRaised when it refuses or is silent."""
    try:
        answer = await _ask(service, service.bus.endpoints.telemetry, question, deadline_s)
    except Unavailable as error:
        text = f"telemetry does not answer: {error}; see `shoal status`"
        raise HttpFaultRaised(
            HttpFault(503, "telemetry_silent", text, retry_after_s=2.0)
        ) from error
    except BadMessage as error:
        raise HttpFaultRaised(HttpFault(502, "bad_answer", f"telemetry: {error}")) from error
    if isinstance(answer, Diagnosis):
        return answer
    if isinstance(answer, DiagnosisRefused):
        code = CODES.get(answer.status, "diagnosis_failed")
        again_s = 2.0 if answer.status in (429, 504) else None
        raise HttpFaultRaised(HttpFault(answer.status, code, answer.message, retry_after_s=again_s))
    raise HttpFaultRaised(
        HttpFault(502, "bad_answer", f"telemetry answered {type(answer).__name__}")
    )


async def _ask(service: HttpService, address: str, question: Message, deadline_s: float) -> Message:
    return await ask(service.bus.speaker, service.reactor, address, question, deadline_s)


def _logged(folder: str, name: str, lines: int) -> tuple[list[str], list[str] | None]:
    """Return which processes have a log, and the end of one of them; None where it has none."""
    files = logged_processes(Path(folder)) if folder else {}
    found = None
    if name in files:
        with contextlib.suppress(OSError):
            found = log_tail(files[name], lines)
    return list(files), found


def _is_fresh(reading: NodeReading, age_s: float, node: NodeId) -> bool:
    return reading.node == node and age_s < READING_FRESH_S


def _named(name: str, part: str) -> str:
    return f"{name}/{part}" if part else name


def _process_of(report: RunnerReport) -> str:
    return report.slot if ":" in report.slot else f"runner:{report.slot}"


def runtime() -> dict[str, Any]:
    """Return the versions of what this node runs on; packages not installed are left out."""
    versions: dict[str, str] = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "protocol": [PROTOCOL_MIN, PROTOCOL_MAX],
        "code": running_code(),
        "packages": versions,
    }


def stacks_text(found: dict[str, Any]) -> str:
    """Return stacks as people read them: outermost call first."""
    how = found["method"] + (f" ({found['note']})" if found["note"] else "")
    lines = [f"{found['process']} pid {found['pid']}, by {how}"]
    for thread in cast(list[dict[str, Any]], found["threads"]):
        marks = [m for m, on in (("active", thread["active"]), ("GIL", thread["owns_gil"])) if on]
        mark = f" [{', '.join(marks)}]" if marks else ""
        name = thread["name"] or "unnamed"
        lines += ["", f"thread {name} of pid {thread['pid']} ({thread['thread_id']}){mark}"]
        frames = cast(list[dict[str, Any]], thread["frames"])
        lines += [f"  {f['name']} ({f['filename']}:{f['line']})" for f in reversed(frames)]
    return "\n".join(lines) + "\n"


def _runner(report: RunnerReport | None, reading: RunnerReading | None) -> dict[str, Any]:
    if report is None:
        assert reading is not None
        return {
            "process": reading.process,
            "instance": reading.instance,
            "generation": reading.generation,
            "phase": reading.phase,
            "reading": reading.model_dump(),
        }
    return {
        "process": _process_of(report),
        "pid": report.pid,
        "instance": report.instance,
        "generation": report.generation,
        "phase": report.phase,
        "memory": report.memory,
        "facts": report.facts,
        "recorder": list(report.recorder),
        "reading": reading.model_dump() if reading else None,
    }


def _ended_runner(report: RunnerReport) -> dict[str, Any]:
    kept = ("pid", "instance", "generation", "exit_code", "message", "ended_at_s", "recorder")
    return {"process": _process_of(report), **report.model_dump(include=set(kept))}


def _memory(reading: NodeReading | None) -> dict[str, Any] | None:
    if reading is None:
        return None
    return {
        "total_bytes": reading.memory_total_bytes,
        "available_bytes": reading.memory_available_bytes,
        "disk_total_bytes": reading.disk_total_bytes,
        "disk_free_bytes": reading.disk_free_bytes,
        "cpu_ratio": reading.cpu_ratio,
        "load_1m": reading.load_1m,
        "measured_at_s": reading.measured_at_s,
    }


def _warning(node: NodeId, code: str, message: str) -> dict[str, Any]:
    return {
        "node": node,
        "level": "warn",
        "code": code,
        "message": message,
        "remediation": "see `shoal status` and `shoal logs`",
    }
