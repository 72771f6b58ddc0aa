"""Talks to supervisord (in threads) and to the gateways of other nodes: restarts the services of a
node.

Each service gets SIGTERM, and supervisord starts it again with the current code and settings. The
restart begins `AFTER_S` after the answer, because this gateway may be one of the services that
restart. Runners are not restarted: they keep their models and continue their requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from falcon.asgi import Request, Response

from bus.calls import table
from bus.process.logs import Log
from bus.process.supervisor import Supervisor
from bus.wire.calls.nodes import Restarting, RestartServices
from bus.wire.errors import ShoalError
from gateway.cluster import Cluster
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.http.diagnostics.peers import ask_node, node_named
from gateway.http.middleware import Resource, answer_json

GATEWAY, RUNNERS = "gateway", "runner"
AFTER_S = 1.0
"""Seconds between the answer and the restart. The delay is long enough to send the answer, even
through another node's gateway."""
ANSWER_S = 10.0
RETRY_S = 5.0


class Restart(Resource):
    """`POST /admin/restart[?node_id=&process=]`."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """Schedule the restart of the named services, or of all services, and answer with their
        names. 404: unknown node. 400: unknown service. 503: supervisord does not answer.
        """
        cluster = self.cluster
        wanted = [word for word in req.get_param_as_list("process", default=[]) if word]
        where = node_named(cluster, req.get_param("node_id") or "")
        restart = RestartServices(services=tuple(wanted))
        reply = await ask_node(cluster, req, where, table.RESTART, restart, ANSWER_S)
        answer_json(resp, {"node": where, "processes": reply.services, "after_s": AFTER_S})


def answer_restarts(cluster: Cluster) -> None:
    """Let the gateways of all nodes restart this node's services."""

    async def restart(call: RestartServices) -> Restarting:
        return Restarting(services=tuple(await _begin(cluster, call.services)))

    cluster.calls.answer(table.RESTART, restart)


async def _begin(cluster: Cluster, wanted: Sequence[str]) -> list[str]:
    """Schedule the restart of services; return their names in that order, the gateway last.
    Raises HttpFaultRaised."""
    supervisor = Supervisor(cluster.options.endpoints.supervisor)
    try:
        processes = await asyncio.to_thread(supervisor.list_processes)
    except ShoalError as error:
        text = f"{error}; start the node on that machine with `shoal up`"
        fault = HttpFault(503, "supervisor_silent", text, retry_after_s=RETRY_S)
        raise HttpFaultRaised(fault) from error
    services = sorted(
        (p.name for p in processes if not p.name.startswith(f"{RUNNERS}:")),
        key=lambda name: name == GATEWAY,
    )
    for name in wanted:
        if name not in services:
            raise _no_service(name, services)
    chosen = [name for name in services if not wanted or name in wanted]

    cluster.log.warning("a client restarts processes", processes=", ".join(chosen))
    loop = asyncio.get_running_loop()

    def act() -> None:
        """Restart in a thread, because calls to supervisord block."""
        loop.run_in_executor(None, _restart, cluster.log, supervisor, chosen)

    cluster.reactor.later(AFTER_S, act)
    return chosen


def _restart(log: Log, supervisor: Supervisor, services: Sequence[str]) -> None:
    """Send SIGTERM to each service; start a service that does not run."""
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
