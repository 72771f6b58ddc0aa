"""Talks to telemetry and the runners through the bus, and to the disk: diagnostics of this node.

`GET /v1/diagnostics/node` combines the latest readings with a report of each ready runner. All
runners are asked for their reports at the same time, and have at most 2 s. If a runner does not
report, the answer has a warning and never an error. Its entry then comes from the worker's report
and from the flight recorder on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from falcon.asgi import Request, Response

from bus.calls import ask_service
from bus.process.installation import DISTRIBUTION, running_code
from bus.wire.errors import BadMessage, Unavailable
from bus.wire.ids import InstanceId, NodeId
from bus.wire.instances import Instance
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
from gateway.cluster import Cluster
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.http.diagnostics.runners import known_runners, process_of, stacks_of
from gateway.http.middleware import Resource, answer_json
from gateway.http.query import number_of
from gateway.view.watch import MOST_LINES, log_tail, logged_processes

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
"""Error codes of telemetry's refusals, by HTTP status."""
OF_RUNNERS = ("pid", "instance", "generation", "rank", "step", "recorder")
PACKAGES = (DISTRIBUTION, "mlx", "mlx-lm", "pyzmq", "falcon", "gunicorn", "uvloop", "pydantic")


@dataclass(frozen=True, slots=True)
class DiagnosticsTiming:
    """Time limits for answers: for a runner's report, for stacks, and for a profile (after its
    sampling time)."""

    report_s: float = 2.0
    stacks_s: float = 20.0
    profile_slack_s: float = 20.0


@dataclass(frozen=True)
class Diagnosing(Resource):
    """Base of resources that diagnose a node, with their deadlines."""

    timing: DiagnosticsTiming = DiagnosticsTiming()


class NodeDiagnostics(Diagnosing):
    """`GET /v1/diagnostics/node`."""

    async def on_get(self, _req: Request, resp: Response) -> None:
        """Answer with versions, processes, running and recently ended runners, memory, warnings."""
        answer_json(resp, await node_document(self.cluster, self.timing))


class ProcessLog(Diagnosing):
    """`GET /v1/diagnostics/node/processes/{name}/log[?lines=]`."""

    async def on_get(self, req: Request, resp: Response, name: str) -> None:
        """Answer with the last lines of the process's log, oldest first, and the names of all
        processes with a log. 404 without a log."""
        lines = round(number_of(req, "lines", LOG_LINES, least=1, most=MOST_LINES))
        folder = self.cluster.options.logs_folder
        names, log_lines = await asyncio.to_thread(_logged, folder, name, lines)
        if log_lines is None:
            there = ", ".join(names) or "none"
            text = f"no log of a process {name[:100]!r} on this node; the logs are: {there}"
            raise HttpFaultRaised(HttpFault(404, "process_not_found", text))
        log = {"node": self.cluster.options.node, "process": name, "lines": log_lines}
        answer_json(resp, {**log, "processes": names})
        resp.set_header("cache-control", "no-store")


async def node_document(cluster: Cluster, timing: DiagnosticsTiming) -> dict[str, Any]:
    """Return the document of `GET /v1/diagnostics/node`, within `timing.report_s`."""
    node, state = cluster.bus.speaker.node, cluster.bus.state
    now = cluster.reactor.now()
    fresh = [r for r, age_s in cluster.readings.nodes(now) if _is_fresh(r, age_s, node)]
    reading = fresh[0] if fresh else None
    readings = {r.process: r for r in cluster.readings.runners(now) if r.node == node}
    within_s = timing.report_s
    (reports, failed), answer, capability = await asyncio.gather(
        _reports(cluster, within_s),
        _worker_reports(cluster, within_s),
        _capability(cluster, within_s),
    )
    warnings = [] if reading is None else [f.model_dump() for f in reading.findings]
    if reading is None:
        warnings.append(_warning(node, "telemetry_silent", "telemetry sends no readings"))
    warnings += [_warning(node, "runner_silent", text) for text in failed]
    # a runner's own report replaces its worker's, except for the fields that only the worker knows
    by_process = {process_of(report): report for report in answer.run}
    for report in reports:
        last = by_process.get(process_of(report))
        seen = {} if last is None else {"silent_s": last.silent_s, "stacks": last.stacks}
        by_process[process_of(report)] = report.model_copy(update=seen)
    runners = [_runner(report, readings.get(name)) for name, report in sorted(by_process.items())]
    runners += [_unheard(r) for name, r in sorted(readings.items()) if name not in by_process]
    return {
        "node": node,
        "runtime": runtime(),
        "diagnosis": capability,
        "memory": _memory(reading),
        "processes": [p.model_dump() for p in reading.processes] if reading else [],
        "runners": runners,
        "ended": [_ended_runner(report) for report in answer.reports],
        "groups": groups_of(node, state.instances.values()),
        "state": {"term": state.term, "index": state.index},
        "warnings": warnings,
    }


async def _reports(cluster: Cluster, within_s: float) -> tuple[list[RunnerReport], list[str]]:
    node = cluster.bus.speaker.node
    mine = [
        instance.instance
        for instance in cluster.bus.state.instances.values()
        if any(rank.node == node for rank in instance.ready)
    ]
    answers = await asyncio.gather(*(_report(cluster, instance, within_s) for instance in mine))
    reports = [answer for answer in answers if isinstance(answer, RunnerReport)]
    return reports, [answer for answer in answers if isinstance(answer, str)]


async def _report(cluster: Cluster, instance: InstanceId, within_s: float) -> RunnerReport | str:
    question = AskRunner(instance=instance)
    try:
        answer = await _ask(cluster, cluster.bus.endpoints.worker, question, within_s)
    except (Unavailable, BadMessage) as error:
        return f"no data about {instance}: {error}"
    if isinstance(answer, RunnerReport):
        return answer
    why = answer.message if isinstance(answer, DiagnosisRefused) else type(answer).__name__
    return f"no data about {instance}: {why}"


async def _worker_reports(cluster: Cluster, within_s: float) -> RunnersEnded:
    """Return the worker's reports of its runners; an empty result if the worker does not answer."""
    try:
        return await known_runners(cluster, within_s)
    except (Unavailable, BadMessage):
        return RunnersEnded()


async def _capability(cluster: Cluster, within_s: float) -> dict[str, Any]:
    question = AskDiagnosis(want="capability")
    try:
        answer = await _ask(cluster, cluster.bus.endpoints.telemetry, question, within_s)
    except (Unavailable, BadMessage) as error:
        return {"py_spy": None, "reason": str(error)}
    if isinstance(answer, Diagnosis):
        return cast(dict[str, Any], json.loads(answer.content))
    return {
        "py_spy": None,
        "reason": f"telemetry sent an unexpected reply: {type(answer).__name__}",
    }


async def diagnosis_of(cluster: Cluster, question: AskDiagnosis, deadline_s: float) -> Diagnosis:
    """Return telemetry's diagnosis. Raises HttpFaultRaised if telemetry refuses or is silent."""
    try:
        answer = await _ask(cluster, cluster.bus.endpoints.telemetry, question, deadline_s)
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
        HttpFault(502, "bad_answer", f"telemetry sent an unexpected reply: {type(answer).__name__}")
    )


async def _ask(cluster: Cluster, address: str, question: Message, deadline_s: float) -> Message:
    return await ask_service(cluster.bus, address, question, deadline_s)


def _logged(folder: str, name: str, lines: int) -> tuple[list[str], list[str] | None]:
    """Return the names of the processes that have a log, and the last lines of one log; None if
    that log does not exist."""
    files = logged_processes(Path(folder)) if folder else {}
    tail = None
    if name in files:
        with contextlib.suppress(OSError):
            tail = log_tail(files[name], lines)
    return list(files), tail


def _is_fresh(reading: NodeReading, age_s: float, node: NodeId) -> bool:
    return reading.node == node and age_s < READING_FRESH_S


def runtime() -> dict[str, Any]:
    """Return versions of Python, the system, the protocol, the code and installed packages."""
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
    fields = {"memory", "facts", "phase", "silent_s", *OF_RUNNERS}
    return {
        **report.model_dump(include=fields),
        "process": process_of(report),
        "stacks": stacks_of(report),
        "reading": reading.model_dump() if reading else None,
    }


def groups_of(node: NodeId, instances: Iterable[Instance]) -> list[dict[str, Any]]:
    """Return this node's rank in each group.

    `is_available`: all ranks of the group are ready. Else `failure_reason` says why not.
    `world_size` is the number of ranks, and `backend` joins them: `ring` or `jaccl`. A model on one
    node needs no group. On a node without a group, the list has one entry with rank 0 of 1.
    """
    groups: list[dict[str, Any]] = []
    for instance in instances:
        size = len(instance.shards)
        for shard in instance.shards if size > 1 else ():
            if shard.node != node:
                continue
            why_not = "" if instance.lead is not None else f"{len(instance.ready)} of {size} ready"
            if instance.status == "failed":
                why_not = instance.reason
            groups.append(
                {
                    "is_available": not why_not,
                    "rank": shard.rank,
                    "world_size": size,
                    "backend": instance.collectives,
                    "failure_reason": why_not or None,
                    "instance": instance.instance,
                }
            )
    alone = {"is_available": False, "rank": 0, "world_size": 1, "backend": None}
    why = "no model on this node is split over several nodes"
    return groups or [{**alone, "failure_reason": why, "instance": None}]


def _ended_runner(report: RunnerReport) -> dict[str, Any]:
    fields = {"exit_code", "message", "ended_at_s", "silent_s", *OF_RUNNERS}
    return {
        **report.model_dump(include=fields),
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
