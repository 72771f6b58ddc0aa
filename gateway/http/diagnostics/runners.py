"""Talks to the worker through the bus: what it knows of this node's runners, and to have one of
them end a request; to the system and the disk: whether they are halted, and what their flight
recorders have.

For what is known the runners themselves are not asked, so that one that is frozen is told of like
any other.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from falcon.asgi import Request, Response
from pydantic import Field

from bus.process.flight import read_flight
from bus.wire.errors import BadMessage, Unavailable
from bus.wire.ids import RequestId
from bus.wire.messages.control import AskEnded, DiagnosisRefused, RunnerReport, RunnersEnded
from bus.wire.messages.gateways import CancelRow, RowCancelled
from gateway.cluster.captures import state_of
from gateway.dialects.body import Closed
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.dialects.registry import request_id_of
from gateway.http.ask import ask
from gateway.http.diagnostics.peers import asked_there, fault_told, node_named
from gateway.http.middleware import Resource, answer_json
from gateway.service import HttpService

PROCESS = "runner:"
VERB = "runner.cancel"
HALTED = "stopped"
ANSWER_S = 5.0
CODES = {404: "process_not_found", 409: "not_rank_0", 504: "process_silent"}
"""What a worker's refusals to cancel are called."""


class RowCancelBody(Closed):
    """`POST /v1/diagnostics/node/runners/{name}/cancel`; `request_id` as answers and lists have
    it."""

    request_id: str = Field(min_length=1, max_length=200)


class RunnerCancel(Resource):
    """`POST /v1/diagnostics/node/runners/{name}/cancel`, and of another node
    `POST /v1/diagnostics/cluster/{node}/runners/{name}/cancel`."""

    async def on_post(self, req: Request, resp: Response, name: str, node: str = "") -> None:
        """Have the runner end a request, whichever gateway asked for it and though that be gone;
        answer whether it owed it an end."""
        asked = await self.read(req, RowCancelBody)
        service, request = self.service, request_id_of(asked.request_id)
        where = node_named(service, node)
        if where == service.options.node:
            found = await _cancelled(service, name, request)
        else:
            told = await asked_there(service, where, VERB, [name, request], ANSWER_S)
            found = bool(told.get("found"))
        answer_json(
            resp, {"id": asked.request_id, "node": where, "process": name, "cancelled": found}
        )


def answer_cancels(service: HttpService) -> None:
    """Have requests ended at this node's runners for the gateways of others."""

    async def cancelled(arguments: Any) -> dict[str, Any]:
        """Return whether the runner owed the request an end, or why it was not asked."""
        try:
            found = await _cancelled(service, str(arguments[0]), RequestId(str(arguments[1])))
        except HttpFaultRaised as error:
            return fault_told(error.fault)
        return {"found": found}

    service.record_lists.questions.answer(VERB, cancelled)


async def known_runners(service: HttpService, within_s: float) -> RunnersEnded:
    """Return what is known of the runners that run and of those that ended last. Raises
    Unavailable, BadMessage where the worker does not answer."""
    bus = service.bus
    answer = await ask(bus.speaker, service.reactor, bus.endpoints.worker, AskEnded(), within_s)
    if not isinstance(answer, RunnersEnded):
        raise Unavailable(f"the worker answered {type(answer).__name__}")
    run = await asyncio.to_thread(_with_flights, bus.endpoints.folder, answer.run)
    return answer.model_copy(update={"run": run})


def process_of(report: RunnerReport) -> str:
    """Return the name of a runner's process."""
    return report.slot if ":" in report.slot else f"{PROCESS}{report.slot}"


def stacks_of(report: RunnerReport) -> dict[str, Any] | None:
    """Return the stacks of a runner that fell silent, as `/stacks` tells them; None of others."""
    if not report.stacks:
        return None
    try:
        return cast(dict[str, Any], json.loads(report.stacks))
    except ValueError:
        return None


def is_halted(report: RunnerReport) -> bool:
    """Return whether the system has halted a runner (SIGSTOP). Waits for the system."""
    return report.ended_at_s is None and state_of(report.pid) == HALTED


def _with_flights(folder: str, reports: Sequence[RunnerReport]) -> tuple[RunnerReport, ...]:
    return tuple(
        report.model_copy(
            update={"recorder": read_flight(Path(folder), process_of(report), report.pid)}
        )
        for report in reports
    )


async def _cancelled(service: HttpService, name: str, request: RequestId) -> bool:
    """Return whether this node's runner owed the request an end. Raises HttpFaultRaised where it
    was not asked, or does not answer."""
    if not name.startswith(PROCESS):
        text = f"{name[:100]!r} is not a runner; use a name like runner:00"
        raise HttpFaultRaised(HttpFault(404, "process_not_found", text))
    bus = service.bus
    question = CancelRow(slot=name.removeprefix(PROCESS)[:64], request=request)
    try:
        answer = await ask(bus.speaker, service.reactor, bus.endpoints.worker, question, ANSWER_S)
    except (Unavailable, BadMessage) as error:
        text = f"the worker does not answer: {error}; see `shoal status`"
        raise HttpFaultRaised(HttpFault(503, "worker_silent", text, retry_after_s=2.0)) from error
    if isinstance(answer, RowCancelled):
        return answer.found
    if isinstance(answer, DiagnosisRefused):
        code = CODES.get(answer.status, "not_cancelled")
        raise HttpFaultRaised(HttpFault(answer.status, code, f"{name}: {answer.message}"))
    raise HttpFaultRaised(HttpFault(502, "bad_answer", f"the worker: {type(answer).__name__}"))
