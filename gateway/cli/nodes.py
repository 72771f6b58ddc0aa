"""Talks to the node's API about the cluster: `shoal nodes`, who is there and how they are."""

from __future__ import annotations

from typing import Any

import typer

from bus.cards import NodeCard
from gateway.cli.node_state import NodeState, parse_state
from gateway.cli.screen import size, span
from gateway.cli.verb import Invocation, verb


def register(app: typer.Typer) -> None:
    """Add `nodes`."""
    verb(app)(nodes)


def nodes(invocation: Invocation) -> None:
    """Show the nodes of the cluster as the one asked sees them."""
    state, screen = parse_state(invocation.api().get("/state")), invocation.screen
    rows = [_fields(state, node) for node in everybody(state)]
    screen.document({"holder": state.holder, "nodes": rows, "strangers": strangers(state)})
    columns = ("node", "id", "link", "host", "term", "health", ">memory", ">ranks", "models")
    screen.table(columns, [_row(one) for one in rows])
    for stranger in strangers(state):
        screen.say(f"nobody of this cluster at {stranger}")
    if len(rows) == 1 and not strangers(state):
        screen.note("one node alone; join another with `shoal up --peers HOST:PORT`")


def everybody(state: NodeState) -> list[str]:
    """Ids of all nodes that the state, a reading or a peer names."""
    peers = {peer.node for reading in state.peers.values() for peer in reading.peers}
    return sorted({*state.state.nodes, *state.peers, *peers, *(c.node for c in state.cards)})


def strangers(state: NodeState) -> list[str]:
    """Addresses that some node dials and where nobody of this cluster answers."""
    return sorted({one for reading in state.peers.values() for one in reading.strangers})


def _fields(state: NodeState, node: str) -> dict[str, Any]:
    card = next((one for one in state.cards if one.node == node), None)
    seat = state.state.nodes.get(node)
    asked = state.peers.get(state.asked)
    link = next((one for one in asked.peers if one.node == node), None) if asked else None
    health = state.health.get(node)
    ranks = [s for one in state.instances for s in one.shards if s.node == node]
    name = (seat.name if seat else "") or (card.name if card else "") or (link.name if link else "")
    here = node == state.asked
    return {
        "node": node,
        "name": name,
        "asked": here,
        "link": "this one" if here else (link.status if link else "unknown"),
        "silent_s": 0.0 if here or link is None else link.silent_s,
        "why": link.why if link else "",
        "host": link.host if link else "",
        "round_trip_s": link.round_trip_s if link else None,
        "holder": node == state.holder,
        "health": health.status if health else "unknown",
        "message": health.message if health else "",
        "memory_bytes": card.memory_bytes if card else 0,
        "ranks": len(ranks),
        "models": _models(card),
    }


def _models(card: NodeCard | None) -> list[str]:
    return [] if card is None else sorted(str(one.model) for one in card.models)


def _row(one: dict[str, Any]) -> tuple[Any, ...]:
    link = one["link"]
    if link == "silent":
        link = f"silent for {span(one['silent_s'])}" if one["silent_s"] else one["why"] or "silent"
    return (
        one["name"],
        one["node"],
        link,
        one["host"],
        "holds it" if one["holder"] else "",
        one["health"],
        size(one["memory_bytes"]) if one["memory_bytes"] else "",
        one["ranks"],
        ", ".join(one["models"]),
    )
