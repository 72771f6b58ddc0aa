"""Talks to the gateways of all nodes: answers with the recent steps of all runners, merged by time.

Any node can answer. The answer names the nodes that could not be reached, with their ranks.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

from falcon.asgi import Request, Response

from bus.calls import CallFailed, table
from bus.process.clock import wall
from bus.wire.calls.nodes import Document, ReadRunners
from bus.wire.errors import ShoalError
from bus.wire.ids import NodeId
from bus.wire.messages.control import RunnerReport
from gateway.cluster import Cluster
from gateway.dialects.encode import json_bytes
from gateway.http.callers import key_behind
from gateway.http.diagnostics.behind import InstanceRank, NodeRunners, Row
from gateway.http.diagnostics.clocks import clocks_of
from gateway.http.diagnostics.merged import timeline
from gateway.http.diagnostics.peers import chosen, names_of
from gateway.http.diagnostics.runners import is_halted, known_runners, process_of, stacks_of
from gateway.http.middleware import Resource, answer_json, tell_missing
from gateway.http.query import number_of

WORKER_S = 2.0
MOST_ENTRIES = 128
FIELDS = (
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
        """Answer with all running and recently ended runners, their latest entries merged by time,
        the ranks that block their groups, and the unreached nodes."""
        cluster = self.cluster
        model, instance = req.get_param("model"), req.get_param("instance")
        most = round(number_of(req, "entries", MOST_ENTRIES, least=1, most=MOST_ENTRIES))
        wanted = [word for word in req.get_param_as_list("node", default=[]) if word]
        nodes = chosen(names_of(cluster), wanted, "node")
        key = key_behind(req)
        answers = await asyncio.gather(*(_runners_of(cluster, key, node) for node in nodes))
        tell_missing(resp, [f"{answer.name} ({answer.why})" for answer in answers if answer.why])

        def is_wanted(of_instance: str, of_model: str) -> bool:
            return model in (None, of_model) and instance in (None, of_instance)

        ranks = [rank for rank in _placed(cluster) if rank.node in nodes]
        now_s, readings = wall(), cluster.readings.peers(cluster.reactor.now())
        clocks = clocks_of(cluster.options.node, readings, now_s)
        merged = timeline(answers, ranks, wanted=is_wanted, most=most, clocks=clocks, now_s=now_s)
        answer_json(resp, {"asked": cluster.options.node, **merged})
        resp.set_header("cache-control", "no-store")


def answer_runners(cluster: Cluster) -> None:
    """Let the gateways of all nodes read the reports of this node's runners."""

    async def read(_call: ReadRunners) -> Document:
        return Document(content=json_bytes(await _own(cluster)))

    cluster.calls.answer(table.READ_RUNNERS, read)


async def _own(cluster: Cluster) -> list[dict[str, Any]]:
    """Return this node's runners. Raises ShoalError if its worker does not answer."""
    answer = await known_runners(cluster, WORKER_S)
    reports = (*answer.run, *answer.reports)
    return await asyncio.to_thread(lambda: [_row(report) for report in reports])


def _row(report: RunnerReport) -> dict[str, Any]:
    return {
        **report.model_dump(mode="json", include=set(FIELDS)),
        "process": process_of(report),
        "model": report.facts.get("model"),
        "halted": is_halted(report),
        "stacks": stacks_of(report),
    }


async def _runners_of(cluster: Cluster, key: str, node: NodeId) -> NodeRunners:
    name = names_of(cluster).get(node, node)
    try:
        reply = await cluster.calls.ask(node, table.READ_RUNNERS, ReadRunners(), key=key)
        runners = json.loads(reply.content)
    except CallFailed as error:
        return NodeRunners(node, name, why=error.why, message=str(error))
    except (ShoalError, ValueError, TypeError) as error:
        return NodeRunners(node, name, why="refused", message=f"node {name}: {error}")
    return NodeRunners(node, name, cast(list[Row], runners))


def _placed(cluster: Cluster) -> list[InstanceRank]:
    return [
        InstanceRank(instance.instance, instance.model, instance.generation, shard.rank, shard.node)
        for instance in cluster.bus.state.instances.values()
        for shard in instance.shards
    ]
