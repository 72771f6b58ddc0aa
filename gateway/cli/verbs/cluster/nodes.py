"""Talks to the node's API about the cluster's nodes: `shoal nodes` and `shoal fleet`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer

from bus.process.clock import wall
from bus.wire.cards import NodeCard
from gateway.cli.command import Invocation
from gateway.cli.node.measured_links import (
    best_way,
    figures,
    kind_of,
    measurements,
    why_unmeasured,
)
from gateway.cli.node.node_state import NodeState
from gateway.cli.output import sensors
from gateway.cli.output.amounts import size, span
from gateway.cli.output.errors import USAGE, CliError


def nodes(
    invocation: Invocation,
    act: Annotated[
        str, typer.Argument(help="list, rename, drain, undrain, forget or remember.")
    ] = "list",
    node: Annotated[str, typer.Argument(help="A node's name or id.")] = "",
    name: Annotated[str, typer.Argument(help="The new name, for `rename`.")] = "",
    drain_s: Annotated[
        float, typer.Option("--drain", min=0.0, help="Seconds for open requests to finish.")
    ] = 60.0,
) -> None:
    """Show the nodes of the cluster, as seen by one node, or change one."""
    if act != "list":
        _change(invocation, act, node, name, drain_s)
        return
    state, output = invocation.state(), invocation.output
    rows = [_fields(state, node) for node in everybody(state)]
    output.document({"holder": state.holder, "nodes": rows, "strangers": strangers(state)})
    columns = (
        "node",
        "id",
        "link",
        "host",
        "measured",
        "discovered by",
        "term",
        "health",
        ">memory",
        "accelerators",
        ">ranks",
        "models",
    )
    output.table(columns, [_row(state, row) for row in rows])
    for card in state.cards:
        for device in card.devices:
            output.note(f"{card.name}: {sensors.device_text(device)}")
    refused = {row["why"]: row["name"] or row["node"] for row in rows if row["link"] == "refused"}
    for why, name in refused.items():
        output.say(f"{name} is not in this cluster: {why}")
    for stranger in strangers(state):
        if stranger.partition(": ")[2] not in refused:
            output.say(f"no node of this cluster answers at {stranger}")
    if len(rows) == 1 and not strangers(state):
        output.note("only this node; join another with `shoal up --peers HOST:PORT`")


def fleet(
    invocation: Invocation,
    model: Annotated[
        str, typer.Argument(help="The model that verifies drafts; default: any.")
    ] = "",
    proposer: Annotated[
        str,
        typer.Option("--proposer", help="The model that drafts; `ngram`: drafts without a model."),
    ] = "",
) -> None:
    """Show the nodes with the roles and measured speeds of their models, and which nodes would
    verify and propose in speculative decoding. Fails if no node can take a role."""
    pins = {name: value for name, value in (("model", model), ("proposer", proposer)) if value}
    answer, output = invocation.api().get(f"/fleet?{urlencode(pins)}"), invocation.output
    output.document(answer)
    columns = ("node", "link", ">age", ">round trip", "model", "roles", ">tokens/s")
    output.table(
        columns,
        [
            (
                node["name"],
                "this node"
                if node["node"] == answer["node"]
                else "linked"
                if node["linked"]
                else "through other nodes",
                f"{node['age_s']:.0f} s",
                "-" if node["round_trip_ms"] is None else f"{node['round_trip_ms']:.1f} ms",
                row["model"],
                ", ".join(row["roles"]) or "-",
                "-" if row["tokens_per_s"] is None else f"{row['tokens_per_s']:.3g}",
            )
            for node in answer["nodes"]
            for row in node["models"]
        ],
    )
    names = {node["node"]: node["name"] for node in answer["nodes"]}
    for use in answer["in_use"]:
        output.note(_proposer_text(use, names))
    for drafter in answer["drafters"]:
        output.note(_drafter_text(drafter, names))
    if answer["refused"] is not None:
        raise CliError(f"no {answer['refused']['role']}: {answer['refused']['why']}")
    plan = answer["plan"]
    seats = [f"{plan[role]['model']} on {plan[role]['name']}" for role in ("verifier", "proposer")]
    output.say(f"verifier {seats[0]}, proposer {seats[1]}: {plan['why']}")


def _proposer_text(use: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Return a line about a runner's use of a draft model in another runner."""
    node = names.get(use["verifier_node"], use["verifier_node"])
    text = f"{use['verifier']} on {node}: the draft model {use['model']}"
    if use["state"] == "ready":
        trip_ms, count = use["round_trip_ms"] or 0.0, use["questions"]
        where = names.get(use["node"], use["node"])
        return (
            f"{text} is used on {where} ({trip_ms:.1f} ms; {use['drafts']} of {count} drafts came "
            "in time)"
        )
    return f"{text} is not used in another runner: {use['why'] or use['state']}"


def _drafter_text(drafter: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Return a line about the drafts that a loaded model has verified."""
    node = names.get(drafter["verifier_node"], drafter["verifier_node"])
    cost = ""
    if drafter["passes"] is not None:
        cost = f"; {drafter['passes']} passes, up to {size(drafter['peak_bytes'])}"
    return (
        f"{drafter['verifier']} on {node}: {drafter['accepted_tokens']} of "
        f"{drafter['drafted_tokens']} tokens of {drafter['drafter']} accepted{cost}"
    )


DONE = {
    "rename": "renamed {node} to {name}",
    "drain": "draining {node}: it gets no new work, and its models are unloaded when they finish",
    "undrain": "{node} accepts work again",
    "forget": "removed {node} from this cluster",
    "remember": "{node} may join again",
}


def _change(invocation: Invocation, act: str, node: str, name: str, drain_s: float) -> None:
    if act not in DONE:
        raise CliError(f"unknown action {act!r}; use list, {', '.join(DONE)}", code=USAGE)
    if not node or (act == "rename") != bool(name):
        words = "NODE NAME" if act == "rename" else "NODE"
        raise CliError(f"`shoal nodes {act}` takes {words}", code=USAGE)
    body: dict[str, Any] = {"name": name} if name else {}
    if act == "drain":
        body["drain_s"] = drain_s
    answer = invocation.api().post(f"/node/{quote(node, safe='')}/{act}", body)
    invocation.output.document(answer)
    invocation.output.say(DONE[act].format(node=node, name=name))


def everybody(state: NodeState) -> list[str]:
    """Return the ids of all nodes in the state, the readings and the peers."""
    peers = {peer.node for reading in state.peers.values() for peer in reading.peers}
    return sorted({*state.state.nodes, *state.peers, *peers, *(c.node for c in state.cards)})


def strangers(state: NodeState) -> list[str]:
    """Return the dialled addresses at which no node of this cluster answers."""
    return sorted({stranger for reading in state.peers.values() for stranger in reading.strangers})


def _fields(state: NodeState, node: str) -> dict[str, Any]:
    card = next((card for card in state.cards if card.node == node), None)
    seat = state.state.nodes.get(node)
    reading = state.peers.get(state.node)
    link = next((peer for peer in reading.peers if peer.node == node), None) if reading else None
    health = state.health.get(node)
    live = (instance for instance in state.instances if instance.status != "failed")
    ranks = [shard for instance in live for shard in instance.shards if shard.node == node]
    sensed = state.hardware.get(node)
    name = (seat.name if seat else "") or (card.name if card else "") or (link.name if link else "")
    here = node == state.node
    return {
        "node": node,
        "name": name,
        "asked": here,
        "link": "this node" if here else (link.status if link else "unknown"),
        "silent_s": 0.0 if here or link is None else link.silent_s,
        "why": link.why if link else "",
        "host": link.host if link else "",
        "round_trip_s": link.round_trip_s if link else None,
        "found_by": link.found_by if link else "",
        "kind": kind_of(state, node, link.host) if link and not here else "",
        "measured": measurements(state, node, wall()),
        "unmeasured": "" if here else why_unmeasured(state, node),
        "holder": node == state.holder,
        "health": health.status if health else "unknown",
        "message": health.message if health else "",
        "memory_bytes": card.memory_bytes if card else 0,
        "devices": [device.model_dump(mode="json") for device in (card.devices if card else ())],
        "hardware": sensed and sensed.model_dump(mode="json", exclude={"kind", "node"}),
        "ranks": len(ranks),
        "models": _models(card),
    }


def _speed(row: dict[str, Any]) -> str:
    """Return the speed of the address in use, else of the fastest address. If no address was
    measured, return the reason."""
    way = best_way(row["measured"], row["host"])
    return row["unmeasured"] if way is None else ", ".join(figures(way))


def _models(card: NodeCard | None) -> list[str]:
    return [] if card is None else sorted(str(model.model) for model in card.models)


def _row(state: NodeState, row: dict[str, Any]) -> tuple[Any, ...]:
    link = row["link"]
    if row["link"] == "silent":
        link = f"silent for {span(row['silent_s'])}" if row["silent_s"] else row["why"] or "silent"
    return (
        row["name"],
        row["node"],
        link,
        row["host"],
        _speed(row),
        row["found_by"],
        "leader" if row["holder"] else "",
        row["health"],
        size(row["memory_bytes"]) if row["memory_bytes"] else "",
        sensors.in_short(state.hardware.get(row["node"])),
        row["ranks"],
        ", ".join(row["models"]),
    )
