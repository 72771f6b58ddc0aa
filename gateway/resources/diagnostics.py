"""Talks to telemetry and the runners through the bus: what this node is doing, down to its stacks.

`GET /v1/diagnostics/node` gathers what is known already and asks each ready runner for its own
account, all at once and for at most 2 s; a runner that does not answer is a warning, never an
error. Stacks and profiles are telemetry's, one at a time; its refusal keeps its HTTP status.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import platform
from collections.abc import Sequence
from typing import Any, Protocol, cast

import falcon
import falcon.asgi
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bus.client import Speaker
from bus.codec import first_problem
from bus.endpoints import Endpoints
from bus.errors import BadMessage, Unavailable
from bus.ids import InstanceId, NodeId
from bus.messages.control import (
    AskDiagnosis,
    AskRunner,
    Diagnosis,
    DiagnosisRefused,
    RunnerReport,
)
from bus.messages.readings import NodeReading, RunnerReading
from bus.messages.wire import PROTOCOL_MAX, PROTOCOL_MIN, Message
from bus.state import ClusterState

REPORT_DEADLINE_S = 2.0
STACKS_DEADLINE_S = 20.0
PROFILE_SLACK_S = 20.0
READING_FRESH_S = 15.0
MAX_BODY_BYTES = 64 << 10
PACKAGES = ("shoal", "mlx", "mlx-lm", "pyzmq", "falcon", "gunicorn", "uvloop", "pydantic")


class Ask(Protocol):
    """One question to a local service; raises Unavailable after `deadline_s`."""

    async def ask(self, address: str, message: Message, deadline_s: float) -> Message: ...


class Bus(Protocol):
    """What is read of the bus client: who we are, where the services are, the mirror."""

    @property
    def speaker(self) -> Speaker: ...
    @property
    def endpoints(self) -> Endpoints: ...
    @property
    def state(self) -> ClusterState: ...


class Readings(Protocol):
    """What was heard of nodes (with its age in seconds) and runners."""

    def nodes(self) -> Sequence[tuple[NodeReading, float]]: ...
    def runners(self) -> Sequence[RunnerReading]: ...


class ProfileOrder(BaseModel):
    """The body of a profile: every field may be left out."""

    model_config = ConfigDict(extra="forbid")

    seconds: float = Field(default=2.0, ge=0.1, le=30.0)
    rate_hz: int = Field(default=100, ge=1, le=1000)
    format: str = Field(default="speedscope", pattern="^(speedscope|flamegraph)$")


class NodeDiagnostics:
    """`GET /v1/diagnostics/node`."""

    def __init__(self, bus: Bus, readings: Readings, asker: Ask) -> None:
        self._bus = bus
        self._readings = readings
        self._asker = asker

    async def on_get(self, _req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Runtime, processes, runners with their own accounts, memory, warnings."""
        node, state = self._bus.speaker.node, self._bus.state
        reading = next(
            (r for r, age_s in self._readings.nodes() if _is_fresh(r, age_s, node)), None
        )
        readings = {r.process: r for r in self._readings.runners() if r.node == node}
        warnings = [] if reading is None else [f.model_dump() for f in reading.findings]
        if reading is None:
            warnings.append(_warning(node, "telemetry_silent", "telemetry sends no readings"))
        reports, failed = await self._reports()
        warnings += [_warning(node, "runner_silent", text) for text in failed]
        runners = [_runner(report, readings.get(_process_of(report))) for report in reports]
        told = {runner["process"] for runner in runners}
        runners += [_runner(None, r) for name, r in sorted(readings.items()) if name not in told]
        capability = await self._capability()
        resp.media = {
            "node": node,
            "runtime": runtime(),
            "diagnosis": capability,
            "memory": _memory(reading),
            "processes": [p.model_dump() for p in reading.processes] if reading else [],
            "runners": runners,
            "state": {"term": state.term, "index": state.index},
            "warnings": warnings,
        }

    async def _reports(self) -> tuple[list[RunnerReport], list[str]]:
        node = self._bus.speaker.node
        mine = [
            instance.instance
            for instance in self._bus.state.instances.values()
            if any(rank.node == node for rank in instance.ready)
        ]
        found = await asyncio.gather(*(self._report(instance) for instance in mine))
        reports = [report for report in found if isinstance(report, RunnerReport)]
        return reports, [text for text in found if isinstance(text, str)]

    async def _report(self, instance: InstanceId) -> RunnerReport | str:
        question = AskRunner(instance=instance)
        try:
            answer = await self._asker.ask(self._bus.endpoints.worker, question, REPORT_DEADLINE_S)
        except (Unavailable, BadMessage) as error:
            return f"no account of {instance}: {error}"
        if isinstance(answer, RunnerReport):
            return answer
        said = answer.message if isinstance(answer, DiagnosisRefused) else type(answer).__name__
        return f"no account of {instance}: {said}"

    async def _capability(self) -> dict[str, Any]:
        question = AskDiagnosis(want="capability")
        try:
            answer = await self._asker.ask(
                self._bus.endpoints.telemetry, question, REPORT_DEADLINE_S
            )
        except (Unavailable, BadMessage) as error:
            return {"py_spy": None, "reason": str(error)}
        if isinstance(answer, Diagnosis):
            return cast(dict[str, Any], json.loads(answer.content))
        return {"py_spy": None, "reason": f"telemetry answered {type(answer).__name__}"}


class ProcessStacks:
    """`GET /v1/diagnostics/node/processes/{name}/stacks[?format=text]`."""

    def __init__(self, bus: Bus, asker: Ask) -> None:
        self._endpoints = bus.endpoints
        self._asker = asker

    async def on_get(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, name: str, part: str = ""
    ) -> None:
        """What each thread of the process is at. Never locals."""
        form = req.get_param("format", default="json")
        if form not in ("json", "text"):
            raise falcon.HTTPBadRequest(description=f"format: {form!r} is neither json nor text")
        question = AskDiagnosis(want="stacks", process=_named(name, part))
        found = await _asked(self._asker, self._endpoints, question, STACKS_DEADLINE_S)
        if form == "text":
            resp.content_type = falcon.MEDIA_TEXT
            resp.text = stacks_text(json.loads(found.content))
        else:
            resp.content_type = found.content_type
            resp.data = found.content


class ProcessProfile:
    """`POST /v1/diagnostics/node/processes/{name}/profile`."""

    def __init__(self, bus: Bus, asker: Ask) -> None:
        self._endpoints = bus.endpoints
        self._asker = asker

    async def on_post(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, name: str, part: str = ""
    ) -> None:
        """Sample the process for some seconds; a speedscope JSON or a flame graph (SVG)."""
        body = await req.stream.read(MAX_BODY_BYTES + 1)
        if len(body) > MAX_BODY_BYTES:
            raise falcon.HTTPContentTooLarge(description="a profile's order is a few bytes")
        try:
            order = ProfileOrder.model_validate_json(body or b"{}")
        except ValidationError as error:
            raise falcon.HTTPBadRequest(description=first_problem(error)) from error
        question = AskDiagnosis(
            want="profile",
            process=_named(name, part),
            seconds=order.seconds,
            rate_hz=order.rate_hz,
            format="flamegraph" if order.format == "flamegraph" else "speedscope",
        )
        deadline_s = order.seconds + PROFILE_SLACK_S
        found = await _asked(self._asker, self._endpoints, question, deadline_s)
        resp.content_type = found.content_type
        resp.data = found.content


def add_diagnostics(
    app: falcon.asgi.App[Any, Any], bus: Bus, readings: Readings, asker: Ask
) -> None:
    """The routes of this module. One of several processes under a name is `gateway/1`."""
    root = "/v1/diagnostics/node"
    app.add_route(root, NodeDiagnostics(bus, readings, asker))
    stacks, profile = ProcessStacks(bus, asker), ProcessProfile(bus, asker)
    for name in ("{name}", "{name}/{part}"):
        app.add_route(f"{root}/processes/{name}/stacks", stacks)
        app.add_route(f"{root}/processes/{name}/profile", profile)


def runtime() -> dict[str, Any]:
    """Versions of what this node runs on; a package that is not installed is left out."""
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
        "packages": versions,
    }


def stacks_text(found: dict[str, Any]) -> str:
    """Stacks as people read them: outermost call first."""
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


def _is_fresh(reading: NodeReading, age_s: float, node: NodeId) -> bool:
    return reading.node == node and age_s < READING_FRESH_S


def _named(name: str, part: str) -> str:
    return f"{name}/{part}" if part else name


def _process_of(report: RunnerReport) -> str:
    return report.slot if ":" in report.slot else f"runner:{report.slot}"


async def _asked(
    asker: Ask, endpoints: Endpoints, question: AskDiagnosis, deadline_s: float
) -> Diagnosis:
    """Telemetry's diagnosis, or the HTTP error that its refusal or silence stands for."""
    try:
        answer = await asker.ask(endpoints.telemetry, question, deadline_s)
    except Unavailable as error:
        text = f"telemetry does not answer: {error}; see `shoal status`"
        raise falcon.HTTPServiceUnavailable(description=text, retry_after=2) from error
    except BadMessage as error:
        raise falcon.HTTPBadGateway(description=str(error)) from error
    if isinstance(answer, Diagnosis):
        return answer
    if isinstance(answer, DiagnosisRefused):
        raise falcon.HTTPError(
            falcon.code_to_http_status(answer.status), description=answer.message
        )
    raise falcon.HTTPBadGateway(description=f"telemetry answered {type(answer).__name__}")


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
