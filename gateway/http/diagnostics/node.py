"""Talks to telemetry and the runners through the bus: what this node is doing, down to its stacks;
to the disk: what its processes have logged.

`GET /v1/diagnostics/node` gathers what is known already and asks each ready runner for its own
account, all at once and for at most 2 s; a runner that does not answer is a warning, never an
error, and what is told of it then is what its worker knows, with its flight recorder as it lies.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from falcon.asgi import Request, Response

from bus.process.tree import running_code
from bus.wire.errors import BadMessage, Unavailable
from bus.wire.ids import InstanceId, NodeId
from bus.wire.messages.control import (
    AskDiagnosis,
    AskRunner,
    Diagnosis,
    DiagnosisRefused,
    RunnerReport,
    RunnersEnded,
)
from bus.wire.messages.readings import NodeReading, RunnerReading
from bus.wire.messages.wire import PROTOCOL_MAX, PROTOCOL_MIN, Message
from gateway.cluster.watch import MOST_LINES, log_tail, logged_processes
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.http.ask import ask
from gateway.http.diagnostics.runners import known_runners, process_of, stacks_of
from gateway.http.middleware import Resource, answer_json
from gateway.http.query import number_of
from gateway.service import HttpService

ROOT = "/v1/diagnostics/node"
READING_FRESH_S = 15.0
LOG_LINES = 100
CODES = {
    404: "process_not_found",
    409: "process_not_running",
    429: "examination_under_way",
    501: "profiles_not_possible",
    504: "process_silent",
}
"""What telemetry's refusals are called."""
OF_RUNNERS = ("pid", "instance", "generation", "rank", "step", "recorder")
PACKAGES = ("shoal", "mlx", "mlx-lm", "pyzmq", "falcon", "gunicorn", "uvloop", "pydantic")


@dataclass(frozen=True, slots=True)
class DiagnosticsTiming:
    """How long answers are waited for: a runner's account, stacks, a profile after its seconds."""

    report_s: float = 2.0
    stacks_s: float = 20.0
    profile_slack_s: float = 20.0


@dataclass(frozen=True)
class Diagnosing(Resource):
    """What looks into nodes, and how long it waits for that."""

    timing: DiagnosticsTiming = DiagnosticsTiming()


class NodeDiagnostics(Diagnosing):
    """`GET /v1/diagnostics/node`."""

    async def on_get(self, _req: Request, resp: Response) -> None:
        """Answer with runtime, processes, runners with their own accounts and those that ended
        last, memory, warnings."""
        answer_json(resp, await node_document(self.service, self.timing))


class ProcessLog(Diagnosing):
    """`GET /v1/diagnostics/node/processes/{name}/log[?lines=]`."""

    async def on_get(self, req: Request, resp: Response, name: str) -> None:
        """Answer with the last lines that the process has logged, oldest first, and the names of
        those that have a log."""
        lines = round(number_of(req, "lines", LOG_LINES, least=1, most=MOST_LINES))
        folder = self.service.options.logs_folder
        known, found = await asyncio.to_thread(_logged, folder, name, lines)
        if found is None:
            there = ", ".join(known) or "none"
            text = f"no log of a process {name[:100]!r} on this node; the logs are: {there}"
            raise HttpFaultRaised(HttpFault(404, "process_not_found", text))
        told = {"node": self.service.options.node, "process": name, "lines": found}
        answer_json(resp, {**told, "processes": known})
        resp.set_header("cache-control", "no-store")


async def node_document(service: HttpService, timing: DiagnosticsTiming) -> dict[str, Any]:
    """Return what `GET /v1/diagnostics/node` tells; at most `timing.report_s` is waited."""
    node, state = service.bus.speaker.node, service.bus.state
    now = service.reactor.now()
    fresh = [r for r, age_s in service.readings.nodes(now) if _is_fresh(r, age_s, node)]
    reading = fresh[0] if fresh else None
    readings = {r.process: r for r in service.readings.runners(now) if r.node == node}
    within_s = timing.report_s
    (reports, failed), known, capability = await asyncio.gather(
        _reports(service, within_s), _known(service, within_s), _capability(service, within_s)
    )
    warnings = [] if reading is None else [f.model_dump() for f in reading.findings]
    if reading is None:
        warnings.append(_warning(node, "telemetry_silent", "telemetry sends no readings"))
    warnings += [_warning(node, "runner_silent", text) for text in failed]
    # its own account of a runner is better than its worker's, which has what it cannot tell
    accounts = {process_of(one): one for one in known.run}
    for one in reports:
        last = accounts.get(process_of(one))
        seen = {} if last is None else {"silent_s": last.silent_s, "stacks": last.stacks}
        accounts[process_of(one)] = one.model_copy(update=seen)
    runners = [_runner(one, readings.get(name)) for name, one in sorted(accounts.items())]
    runners += [_unheard(r) for name, r in sorted(readings.items()) if name not in accounts]
    return {
        "node": node,
        "runtime": runtime(),
        "diagnosis": capability,
        "memory": _memory(reading),
        "processes": [p.model_dump() for p in reading.processes] if reading else [],
        "runners": runners,
        "ended": [_ended_runner(report) for report in known.reports],
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
        return f"no data about {instance}: {error}"
    if isinstance(answer, RunnerReport):
        return answer
    said = answer.message if isinstance(answer, DiagnosisRefused) else type(answer).__name__
    return f"no data about {instance}: {said}"


async def _known(service: HttpService, within_s: float) -> RunnersEnded:
    """Return the worker's accounts of its runners; none where it does not answer."""
    try:
        return await known_runners(service, within_s)
    except (Unavailable, BadMessage):
        return RunnersEnded()


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


def _unheard(reading: RunnerReading) -> dict[str, Any]:
    return {
        "process": reading.process,
        "instance": reading.instance,
        "generation": reading.generation,
        "phase": reading.phase,
        "reading": reading.model_dump(),
    }


def _runner(report: RunnerReport, reading: RunnerReading | None) -> dict[str, Any]:
    told = {"memory", "facts", "phase", "silent_s", *OF_RUNNERS}
    return {
        **report.model_dump(include=told),
        "process": process_of(report),
        "stacks": stacks_of(report),
        "reading": reading.model_dump() if reading else None,
    }


def _ended_runner(report: RunnerReport) -> dict[str, Any]:
    told = {"exit_code", "message", "ended_at_s", "silent_s", *OF_RUNNERS}
    return {
        **report.model_dump(include=told),
        "process": process_of(report),
        "stacks": stacks_of(report),
    }


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
