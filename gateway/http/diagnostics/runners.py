"""Talks to the worker through the bus, to the operating system and to the disk: examines this
node's runners.

The worker reports its runners, and cancels requests at them. The operating system knows whether a
runner is halted, and the disk has the flight recorders. The runners themselves are not asked, so
that a frozen runner is reported like any other runner.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from falcon.asgi import Request, Response
from pydantic import Field

from bus.calls import ask_service, table
from bus.process.flight import read_flight
from bus.wire.calls.answers import Done
from bus.wire.calls.nodes import CancelAtRunner
from bus.wire.errors import BadMessage, Unavailable
from bus.wire.ids import RequestId
from bus.wire.messages.control import AskEnded, DiagnosisRefused, RunnerReport, RunnersEnded
from bus.wire.messages.gateways import CancelRow, RowCancelled
from gateway.cluster import Cluster
from gateway.control.captures import state_of
from gateway.dialects.body import Closed
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.dialects.registry import request_id_of
from gateway.http.diagnostics.peers import ask_node, node_named
from gateway.http.middleware import Resource, answer_json

PROCESS = "runner:"
MOST_NAME = 100
HALTED = "stopped"
ANSWER_S = 5.0
CODES = {404: "process_not_found", 409: "not_rank_0", 504: "process_silent"}
"""Error codes of a worker's refusals to cancel, by HTTP status."""


class RowCancelBody(Closed):
    """`POST /v1/diagnostics/node/runners/{name}/cancel`. `request_id` is the request's id or the id
    of its answer."""

    request_id: str = Field(min_length=1, max_length=200)


class RunnerCancel(Resource):
    """`POST /v1/diagnostics/node/runners/{name}/cancel`; for another node
    `POST /v1/diagnostics/cluster/{node}/runners/{name}/cancel`."""

    async def on_post(self, req: Request, resp: Response, name: str, node: str = "") -> None:
        """Cancel a request at its runner, even if the gateway that sent it is gone. Answer whether
        the runner had the request open."""
        body = await self.read(req, RowCancelBody)
        cluster, request = self.cluster, request_id_of(body.request_id)
        where = node_named(cluster, node)
        cancel = CancelAtRunner(runner=name[:MOST_NAME], request=request)
        reply = await ask_node(cluster, req, where, table.CANCEL_AT_RUNNER, cancel, ANSWER_S)
        answer_json(
            resp, {"id": body.request_id, "node": where, "process": name, "cancelled": reply.done}
        )


def answer_cancels(cluster: Cluster) -> None:
    """Let the gateways of all nodes cancel requests at this node's runners."""

    async def cancel(call: CancelAtRunner) -> Done:
        return Done(done=await _cancel(cluster, call.runner, call.request))

    cluster.calls.answer(table.CANCEL_AT_RUNNER, cancel)


async def known_runners(cluster: Cluster, within_s: float) -> RunnersEnded:
    """Return the worker's reports of running and recently ended runners. Raises Unavailable or
    BadMessage if the worker does not answer."""
    bus = cluster.bus
    answer = await ask_service(bus, bus.endpoints.worker, AskEnded(), within_s)
    if not isinstance(answer, RunnersEnded):
        raise Unavailable(f"the worker sent an unexpected reply: {type(answer).__name__}")
    run = await asyncio.to_thread(_with_flights, bus.endpoints.folder, answer.run)
    return answer.model_copy(update={"run": run})


def process_of(report: RunnerReport) -> str:
    """Return the name of a runner's process."""
    return report.slot if ":" in report.slot else f"{PROCESS}{report.slot}"


def stacks_of(report: RunnerReport) -> dict[str, Any] | None:
    """Return the stacks of a silent runner, in the format of `/stacks`; None for other runners."""
    if not report.stacks:
        return None
    try:
        return cast(dict[str, Any], json.loads(report.stacks))
    except ValueError:
        return None


def is_halted(report: RunnerReport) -> bool:
    """Return whether a runner is halted (SIGSTOP). Blocks on the system."""
    return report.ended_at_s is None and state_of(report.pid) == HALTED


def _with_flights(folder: str, reports: Sequence[RunnerReport]) -> tuple[RunnerReport, ...]:
    return tuple(
        report.model_copy(
            update={"recorder": read_flight(Path(folder), process_of(report), report.pid)}
        )
        for report in reports
    )


async def _cancel(cluster: Cluster, name: str, request: RequestId) -> bool:
    """Cancel a request at a runner of this node; return whether the runner had it open. Raises
    HttpFaultRaised if the runner was not reached or does not answer."""
    if not name.startswith(PROCESS):
        text = f"{name[:MOST_NAME]!r} is not a runner; use a name like runner:00"
        raise HttpFaultRaised(HttpFault(404, "process_not_found", text))
    bus = cluster.bus
    question = CancelRow(slot=name.removeprefix(PROCESS)[:64], request=request)
    try:
        answer = await ask_service(bus, bus.endpoints.worker, question, ANSWER_S)
    except (Unavailable, BadMessage) as error:
        text = f"the worker does not answer: {error}; see `shoal status`"
        raise HttpFaultRaised(HttpFault(503, "worker_silent", text, retry_after_s=2.0)) from error
    if isinstance(answer, RowCancelled):
        return answer.found
    if isinstance(answer, DiagnosisRefused):
        code = CODES.get(answer.status, "not_cancelled")
        raise HttpFaultRaised(HttpFault(answer.status, code, f"{name}: {answer.message}"))
    raise HttpFaultRaised(
        HttpFault(
            502, "bad_answer", f"the worker sent an unexpected reply: {type(answer).__name__}"
        )
    )
