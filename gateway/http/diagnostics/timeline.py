"""Talks to the gateways of all nodes: what their runners did last, merged by time, asked of any
node.

A node that is not reached is named, with the ranks that are there.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

from falcon.asgi import Request, Response

from bus.process.clock import wall
from bus.wire.errors import ShoalError
from bus.wire.ids import NodeId
from bus.wire.messages.control import RunnerReport
from gateway.cluster.record_questions import RecordsElsewhere
from gateway.dialects.encode import json_bytes
from gateway.http.diagnostics.behind import CopyRank, NodeRunners, Told
from gateway.http.diagnostics.clocks import clocks_of
from gateway.http.diagnostics.merged import timeline
from gateway.http.diagnostics.peers import chosen, names_of
from gateway.http.diagnostics.runners import is_halted, known_runners, process_of, stacks_of
from gateway.http.middleware import Resource, answer_json, tell_missing
from gateway.http.query import number_of
from gateway.service import HttpService

VERB = "diagnostics.runners"
WORKER_S = 2.0
MOST_ENTRIES = 128
TOLD = (
    "pid",
    "instance",
    "generation",
    "rank",
    "phase",
    "step",
    "silent_s",
    "ended_at_s",
    "exit_code",
    "message",
    "recorder",
)


class ClusterTimeline(Resource):
    """`GET /v1/diagnostics/cluster/timeline[?model=][&instance=][&node=NODE][&entries=]`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with every runner that runs or ended lately, what each did last, merged by time,
        which rank of a group the others wait for, and nodes that were not reached."""
        service = self.service
        model, instance = req.get_param("model"), req.get_param("instance")
        most = round(number_of(req, "entries", MOST_ENTRIES, least=1, most=MOST_ENTRIES))
        wanted = [one for one in req.get_param_as_list("node", default=[]) if one]
        nodes = chosen(names_of(service), wanted, "node")
        found = await asyncio.gather(*(_asked(service, node) for node in nodes))
        tell_missing(resp, [f"{one.name} ({one.why})" for one in found if one.why])

        def is_wanted(of_instance: str, of_model: str) -> bool:
            """Return whether a copy of a model was asked for."""
            return model in (None, of_model) and instance in (None, of_instance)

        ranks = [one for one in _placed(service) if one.node in nodes]
        now_s, known = wall(), service.readings.peers(service.reactor.now())
        clocks = clocks_of(service.options.node, known, now_s)
        told = timeline(found, ranks, wanted=is_wanted, most=most, clocks=clocks, now_s=now_s)
        answer_json(resp, {"asked": service.options.node, **told})
        resp.set_header("cache-control", "no-store")


def answer_runners(service: HttpService) -> None:
    """Have what this node's runners did last told to the gateways of others."""

    async def told(_arguments: Any) -> bytes:
        """Return the runners as JSON."""
        return json_bytes(await _own(service))

    service.record_lists.questions.answer(VERB, told)


async def _own(service: HttpService) -> list[dict[str, Any]]:
    """Return this node's runners. Raises ShoalError where its worker does not answer."""
    known = await known_runners(service, WORKER_S)
    reports = (*known.run, *known.reports)
    return await asyncio.to_thread(lambda: [_told(report) for report in reports])


def _told(report: RunnerReport) -> dict[str, Any]:
    return {
        **report.model_dump(mode="json", include=set(TOLD)),
        "process": process_of(report),
        "model": report.facts.get("model"),
        "halted": is_halted(report),
        "stacks": stacks_of(report),
    }


async def _asked(service: HttpService, node: NodeId) -> NodeRunners:
    name = names_of(service).get(node, node)
    try:
        found = json.loads(await service.record_lists.questions.ask(node, VERB, []))
    except RecordsElsewhere as error:
        return NodeRunners(node, name, why=error.why, message=str(error))
    except (ShoalError, ValueError, TypeError) as error:
        return NodeRunners(node, name, why="refused", message=f"node {name}: {error}")
    return NodeRunners(node, name, cast(list[Told], found))


def _placed(service: HttpService) -> list[CopyRank]:
    return [
        CopyRank(instance.instance, instance.model, instance.generation, shard.rank, shard.node)
        for instance in service.bus.state.instances.values()
        for shard in instance.shards
    ]
