"""Talks to the node's API: the links that affect a bench's figures.

Each time to first token includes a round trip from this machine to the node. Each step of a group
waits for the links between its nodes. The nodes measure these links themselves while they are idle.
"""

from __future__ import annotations

import time
from typing import Any

from gateway.cli.node.node_api import NodeApi
from gateway.cli.output.amounts import size
from gateway.cli.verbs.models.bench_math import percentiles

PROBES = 20


def probe_links(api: NodeApi, model: str) -> dict[str, Any]:
    """Return the round trips to the node, in ms, and the measured links between the model's nodes.
    Call it while the node is idle."""
    trips_ms: list[float] = []
    for _ in range(PROBES):
        sent_at = time.perf_counter()
        api.get("/health")
        trips_ms.append((time.perf_counter() - sent_at) * 1000)
    return {"round_trip_ms": percentiles(trips_ms), "between_nodes": _between_nodes(api, model)}


def link_lines(links: dict[str, Any]) -> list[str]:
    """Return the result of `probe_links` as lines for people: the round trip to the node, then one
    line for each link. Empty if nothing was measured."""
    if not links:
        return []
    trips = links["round_trip_ms"]
    lines = [f"round trip to the node {trips['p50']:.1f} ms (p95 {trips['p95']:.1f})"]
    for link in links["between_nodes"]:
        more = "+" if link["at_least"] else ""
        rate = f"{size(int(link['bytes_per_s']))}/s{more}"
        lines.append(f"{link['from']} to {link['to']}: {link['latency_s'] * 1e6:.0f} us, {rate}")
    return lines


def _between_nodes(api: NodeApi, model: str) -> list[dict[str, Any]]:
    state = api.state()
    copies = [
        instance
        for instance in state.instances
        if instance.model == model and len(instance.shards) > 1
    ]
    nodes = {shard.node for copy in copies for shard in copy.shards}
    return [
        {
            "from": state.names.get(node, node),
            "to": state.names.get(link.peer, link.peer),
            **link.model_dump(mode="json", exclude={"peer"}),
        }
        for node, reading in sorted(state.links.items())
        for link in reading.links
        if node in nodes and link.peer in nodes
    ]
