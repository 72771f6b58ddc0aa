"""Talks to supervisord, in threads, and to the gateways of other nodes: processes begun anew.

Services are told to end in good order, and supervisord starts them again, with the code and the
settings that are there by then. It happens a moment after the answer, for the gateway that gives
it may be among them. Runners are the worker's: they go on with the models that they have loaded,
and with what they are answering.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from falcon.asgi import Request, Response

from bus.process.logs import Log
from bus.process.supervisor import Supervisor
from bus.wire.errors import ShoalError
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.http.diagnostics.peers import asked_there, fault_told, node_named
from gateway.http.middleware import Resource, answer_json
from gateway.service import HttpService

VERB = "node.restart"
GATEWAY, RUNNERS = "gateway", "runner"
AFTER_S = 1.0
"""The answer is on its way by then, also one that another node asked for."""
ANSWER_S = 10.0
RETRY_S = 5.0


class Restart(Resource):
    """`POST /admin/restart[?node_id=&process=]`."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """Answer with the processes that are begun anew in a moment: those that are named, all
        services where none is. 404 for an unknown node, 400 for a process that is no service of
        it, 503 where its supervisord does not answer."""
        service = self.service
        wanted = [one for one in req.get_param_as_list("process", default=[]) if one]
        where = node_named(service, req.get_param("node_id") or "")
        if where == service.options.node:
            processes = await _begin(service, wanted)
        else:
            told = await asked_there(service, where, VERB, [wanted], ANSWER_S)
            processes = told["processes"]
        answer_json(resp, {"node": where, "processes": processes, "after_s": AFTER_S})


def answer_restarts(service: HttpService) -> None:
    """Have this node's processes restarted for the gateways of others."""

    async def restart(arguments: Any) -> dict[str, Any]:
        """Return which are begun anew in a moment, or why none is."""
        try:
            return {"processes": await _begin(service, list(map(str, arguments[0])))}
        except HttpFaultRaised as error:
            return fault_told(error.fault)

    service.record_lists.questions.answer(VERB, restart)


async def _begin(service: HttpService, wanted: Sequence[str]) -> list[str]:
    """Have services restarted in a moment, and return them in order; the gateway is the last.
    Raises HttpFaultRaised."""
    supervisor = Supervisor(service.options.endpoints.supervisor)
    try:
        found = await asyncio.to_thread(supervisor.list_processes)
    except ShoalError as error:
        text = f"{error}; start the node on that machine with `shoal up`"
        fault = HttpFault(503, "supervisor_silent", text, retry_after_s=RETRY_S)
        raise HttpFaultRaised(fault) from error
    services = sorted(
        (one.name for one in found if not one.name.startswith(f"{RUNNERS}:")),
        key=lambda name: name == GATEWAY,
    )
    for name in wanted:
        if name not in services:
            raise _no_service(name, services)
    chosen = [name for name in services if not wanted or name in wanted]

    service.log.warning("a client restarts processes", processes=", ".join(chosen))
    loop = asyncio.get_running_loop()

    def act() -> None:
        """Have it done in a thread, for supervisord is waited for."""
        loop.run_in_executor(None, _restart, service.log, supervisor, chosen)

    service.reactor.later(AFTER_S, act)
    return chosen


def _restart(log: Log, supervisor: Supervisor, services: Sequence[str]) -> None:
    """Have each end, or begin where it does not run."""
    for name in services:
        try:
            if not supervisor.signal(name, "TERM"):
                supervisor.start(name)
        except ShoalError as error:
            log.error("a process was not restarted", name=name, why=str(error))


def _no_service(name: str, services: Sequence[str]) -> HttpFaultRaised:
    text = f"unknown service {name[:80]!r}; use {', '.join(services)}"
    if name.startswith(RUNNERS):
        text = (
            "only the worker starts runners: unload the instance with DELETE "
            "/instance/{instance}, and place it again"
        )
    return HttpFaultRaised(HttpFault(400, "invalid_value", f"process: {text}", field="process"))
