"""Compare the nodes of a cluster: versions and hardware, and a remedy for each difference.

Pure. Ranks of one group must agree on a `required` fact: shoal, MLX, mlx-lm, and Python to its
minor version. Other facts are `noted`: such nodes work together, but a model is only placed over
nodes with the same backend. If a node does not report a fact, the difference is noted. Unreachable
nodes are not compared. Nodes without differences have the same fingerprint.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bus.wire.cards import NodeCard
from bus.wire.messages.peers import PeerReading
from gateway.cli.node.node_state import NodeState
from gateway.cli.output.amounts import size

Verdict = Literal["aligned", "mixed", "misaligned"]
Weight = Literal["required", "noted"]


@dataclass(frozen=True, slots=True)
class Served:
    """A rank that a node runs or will run. `model` is its model; `ranks` is the number of ranks of
    its instance."""

    model: str
    instance: str
    rank: int
    ranks: int
    status: str


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node of the cluster. `facts` is keyed by the names in FACTS, without facts that the node
    does not report.

    `link` is `this node`, or the status of the link from the answering node. `why` says why the
    node is unreachable. `clock_offset_s` is how far the node's clock is ahead of the answering
    node's clock. Two nodes have the same `fingerprint` if their compared facts are equal.
    """

    node: str
    name: str
    link: str
    reachable: bool
    why: str
    holder: bool
    facts: Mapping[str, str]
    memory_bytes: int
    fingerprint: str
    health: str
    message: str
    clock_offset_s: float | None
    round_trip_s: float | None
    serves: tuple[Served, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact in which reachable nodes differ. `values` maps each value to the names of its nodes;
    the value of most nodes comes first."""

    field: str
    weight: Weight
    values: Mapping[str, tuple[str, ...]]
    remedy: str


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """A cluster as the node `node` sees it.

    `strangers` are addresses that were dialled and did not answer. `holder` is the leader; None if
    the cluster has no leader.
    """

    node: str
    holder: str | None
    verdict: Verdict
    nodes: tuple[NodeReport, ...]
    differences: tuple[Difference, ...]
    strangers: tuple[str, ...]

    @property
    def unreachable(self) -> tuple[NodeReport, ...]:
        """Return the known nodes that `node` does not reach."""
        return tuple(node for node in self.nodes if not node.reachable)


@dataclass(frozen=True, slots=True)
class ComparedFact:
    """A fact that is compared between nodes. `read` returns the fact from a node card (empty: the
    node does not report it). `compared` returns the part of the fact that must be equal."""

    name: str
    weight: Weight
    read: Callable[[NodeCard], str]
    compared: Callable[[str], str] = str


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _unless_unknown(version: str) -> str:
    return "" if version == "unknown" else version


FACTS: tuple[ComparedFact, ...] = (
    ComparedFact("shoal", "required", lambda card: _unless_unknown(card.shoal_version)),
    ComparedFact("code", "required", lambda card: card.tree),
    ComparedFact("mlx", "required", lambda card: _unless_unknown(card.mlx_version)),
    ComparedFact("mlx_lm", "required", lambda card: _unless_unknown(card.mlx_lm_version)),
    ComparedFact("python", "required", lambda card: card.python_version, _minor),
    ComparedFact("os", "noted", lambda card: card.os_version),
    ComparedFact("arch", "noted", lambda card: card.platform.partition("-")[2]),
    ComparedFact("chip", "noted", lambda card: card.chip),
    ComparedFact("memory", "noted", lambda card: size(card.memory_bytes)),
    ComparedFact("launch", "noted", lambda card: card.launched_by),
)
"""The compared facts, in the order in which they are shown."""
UNTOLD = "not reported"
_PACKAGES = {"mlx": "mlx", "mlx_lm": "mlx-lm"}
_NOTES = {
    "os": "RDMA needs macOS 26.2 or newer on every Mac of a group",
    "arch": "a model is only placed over nodes with the same backend",
    "chip": "a group is as fast as its slowest rank; placement takes it into account",
    "memory": "a pipeline is split by each node's memory; the smallest node limits tensor sharding",
    "launch": "a manually started node does not start with its machine; use "
    "`shoal service install`",
}


def report(state: NodeState) -> ClusterReport:
    """Compare the nodes of `state`."""
    nodes = tuple(_node(state, node) for node in _everybody(state))
    reached = [node for node in nodes if node.reachable]
    differences = [difference for field in FACTS if (difference := _difference(field, reached))]
    reading = state.peers.get(state.node)
    return ClusterReport(
        node=state.node,
        holder=state.holder if state.live else None,
        verdict=verdict_of(differences),
        nodes=nodes,
        differences=tuple(differences),
        strangers=reading.strangers if reading else (),
    )


def verdict_of(differences: Sequence[Difference]) -> Verdict:
    """Return misaligned if a required fact differs, mixed if only other facts differ, else
    aligned."""
    if any(difference.weight == "required" for difference in differences):
        return "misaligned"
    return "mixed" if differences else "aligned"


def facts_of(card: NodeCard) -> dict[str, str]:
    """Return the facts of a node card by name, in the order of FACTS. Facts that the card lacks are
    left out."""
    return {field.name: value for field in FACTS if (value := field.read(card))}


def fingerprint(facts: Mapping[str, str]) -> str:
    """Return the first 12 hexadecimal digits of the SHA-256 of the compared facts, without
    `launch`."""
    compared = {field.name: field.compared for field in FACTS}
    text = "\n".join(
        f"{name}={compared[name](value)}"
        for name, value in sorted(facts.items())
        if name != "launch"
    )
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def newest(versions: Sequence[str]) -> str:
    """Return the highest version number; `1.10` is above `1.9`."""
    return max(versions, key=lambda version: [int(part) for part in re.findall(r"\d+", version)])


def _everybody(state: NodeState) -> list[str]:
    reading = state.peers.get(state.node)
    peers = {str(peer.node) for peer in reading.peers} if reading else set[str]()
    gone = {str(node) for node in state.state.forgotten}
    everybody = {state.node, *state.state.nodes, *peers, *(str(c.node) for c in state.cards)}
    return sorted(everybody - gone)


def _node(state: NodeState, node: str) -> NodeReport:
    card = next((card for card in state.cards if card.node == node), None)
    reading = state.peers.get(state.node)
    peers = reading.peers if reading else ()
    peer = next((peer for peer in peers if peer.node == node), None)
    seat = state.state.nodes.get(node)
    here = node == state.node
    link = "this node" if here else peer.status if peer else "unknown"
    why = _why(card, link, peer)
    facts = facts_of(card) if card else {}
    health = state.health.get(node)
    names = (seat.name if seat else "", card.name if card else "", peer.name if peer else "", node)
    return NodeReport(
        node=node,
        name=next(name for name in names if name),
        link=link,
        reachable=not why,
        why=why,
        holder=node == state.holder,
        facts=facts,
        memory_bytes=card.memory_bytes if card else 0,
        fingerprint=fingerprint(facts) if facts else "",
        health=health.status if health else "unknown",
        message=health.message if health else "",
        clock_offset_s=0.0 if here else peer.clock_offset_s if peer else None,
        round_trip_s=peer.round_trip_s if peer else None,
        serves=_serves(state, node),
    )


def _why(card: NodeCard | None, link: str, peer: PeerReading | None) -> str:
    """Return why the node is unreachable; empty if it is reachable."""
    if link not in ("this node", "linked"):
        return (peer.why if peer else "") or f"link {link}"
    return "" if card else "the node has not reported its description yet"


def _serves(state: NodeState, node: str) -> tuple[Served, ...]:
    return tuple(
        Served(
            str(instance.model),
            str(instance.instance),
            shard.rank,
            len(instance.shards),
            instance.status,
        )
        for instance in state.instances
        for shard in instance.shards
        if shard.node == node and instance.serves and instance.status != "failed"
    )


def _difference(field: ComparedFact, nodes: Sequence[NodeReport]) -> Difference | None:
    values: dict[str, list[str]] = {}
    for node in nodes:
        if field.name in node.facts:
            values.setdefault(field.compared(node.facts[field.name]), []).append(node.name)
    differ = len(values) > 1
    silent = [node.name for node in nodes if field.name not in node.facts]
    answers = values if not silent else {**values, UNTOLD: silent}
    if not values or len(answers) < 2:
        return None
    most_first = sorted(answers, key=lambda value: (-len(answers[value]), value))
    return Difference(
        field=field.name,
        weight=field.weight if differ else "noted",
        values={value: tuple(sorted(answers[value])) for value in most_first},
        remedy=_remedy(field, values) if differ else _untold(silent),
    )


def _untold(silent: Sequence[str]) -> str:
    return f"on {', '.join(silent)}: check shoal's environment with `shoal doctor` there"


def _remedy(field: ComparedFact, values: Mapping[str, Sequence[str]]) -> str:
    if field.weight == "noted":
        return _NOTES[field.name]
    if field.name == "code":
        trees = "; ".join(f"{tree} on {', '.join(sorted(values[tree]))}" for tree in sorted(values))
        return f"install the same shoal everywhere ({trees}), then `shoal down` and `shoal up`"
    wanted = newest(list(values))
    behind = ", ".join(
        sorted(name for value in values if value != wanted for name in values[value])
    )
    if field.name in _PACKAGES:
        package = _PACKAGES[field.name]
        act = f"`pip install {package}=={wanted}` in shoal's environment"
    elif field.name == "python":
        act = f"recreate shoal's environment with Python {wanted}"
    else:
        act = f"install shoal {wanted}"
    return f"on {behind}: {act}, then `shoal down` and `shoal up`"
