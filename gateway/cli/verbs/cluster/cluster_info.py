"""Talks to the node's API: `shoal cluster-info` lists the nodes and their differences.

Exits with 1 if nodes are misaligned or unreachable, so that a script can wait for a complete
cluster. With `--strict` any difference counts.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer

from gateway.cli.command import Invocation
from gateway.cli.node.likeness import FACTS, ClusterReport, NodeReport, report
from gateway.cli.output.errors import FAILED
from gateway.cli.output.terminal import Output

HEADINGS = {"mlx_lm": "mlx-lm"}
SIDE_BY_SIDE = 4
"""Up to this many nodes are columns of the table; more nodes are rows."""


def cluster_info(
    invocation: Invocation,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail on any difference between nodes.")
    ] = False,
) -> None:
    """Compare the nodes of the cluster. Fails if they differ, or if a node cannot be reached."""
    cluster, output = report(invocation.state()), invocation.output
    well = is_healthy(cluster, strict=strict)
    output.document({"well": well, **as_document(cluster)})
    show(cluster, output)
    if not well:
        raise typer.Exit(FAILED)


def is_healthy(cluster: ClusterReport, *, strict: bool) -> bool:
    """Return whether every node is reachable and sufficiently alike, and the cluster has a
    leader."""
    alike = cluster.verdict == "aligned" or (cluster.verdict == "mixed" and not strict)
    return (
        alike and cluster.holder is not None and not cluster.unreachable and not cluster.strangers
    )


def as_document(cluster: ClusterReport) -> dict[str, Any]:
    """Return the report as JSON. Its names and types are stable."""
    return {
        "asked": cluster.node,
        "holder": cluster.holder,
        "verdict": cluster.verdict,
        "nodes": [
            {
                **dataclasses.asdict(node),
                "facts": {field.name: node.facts.get(field.name) for field in FACTS},
            }
            for node in cluster.nodes
        ],
        "differences": [
            {
                **dataclasses.asdict(difference),
                "values": {k: list(v) for k, v in difference.values.items()},
            }
            for difference in cluster.differences
        ],
        "unreachable": [
            {"node": node.node, "name": node.name, "why": node.why} for node in cluster.unreachable
        ],
        "strangers": list(cluster.strangers),
    }


def show(cluster: ClusterReport, output: Output) -> None:
    """Write the report for people; not with `--json`."""
    columns = ("node", "id", "link", "term", "health", ">clock", "started by", "serves")
    output.table(columns, [_standing(node) for node in cluster.nodes])
    output.say("")
    facts = [field.name for field in FACTS if field.name != "launch"]
    rows = [("node", *(HEADINGS.get(name, name) for name in facts), "fingerprint")]
    rows += [
        (node.name, *(node.facts.get(name, "?") for name in facts), node.fingerprint or "?")
        for node in cluster.nodes
    ]
    if len(cluster.nodes) <= SIDE_BY_SIDE:
        rows = list(zip(*rows, strict=True))
    output.table(rows[0], rows[1:])
    output.say("")
    for difference in cluster.differences:
        values = "; ".join(
            f"{value}: {', '.join(names)}" for value, names in difference.values.items()
        )
        output.say(
            f"{HEADINGS.get(difference.field, difference.field)} differs "
            f"({difference.weight}): {values}"
        )
        output.say(f"  {difference.remedy}")
    for node in cluster.nodes:
        if node.reachable and node.message:
            output.say(f"{node.name}: {node.health}: {node.message}")
    for node in cluster.unreachable:
        if node.link == "refused":
            output.say(f"{node.name} is not in this cluster: {node.why}")
            continue
        output.say(f"cannot reach {node.name}: {node.why}")
        output.say(
            "  check that its machine is awake and run `shoal status` there; if it is gone "
            "for good: "
            f"`shoal nodes forget {node.node}`"
        )
    if cluster.holder is None:
        output.say("the cluster has no leader")
        output.say(
            "  the cluster cannot change its state; run `shoal status` on each node, voters first"
        )
    for stranger in cluster.strangers:
        output.say(f"no node of this cluster answers at {stranger}")
        output.say("  run `shoal doctor`")
    count = "one node" if len(cluster.nodes) == 1 else f"{len(cluster.nodes)} nodes"
    output.say(f"{count}: {cluster.verdict}")


def _standing(node: NodeReport) -> tuple[str, ...]:
    serves = ", ".join(
        f"{rank.model} {rank.rank + 1}/{rank.ranks}"
        f"{'' if rank.status == 'ready' else f' {rank.status}'}"
        for rank in node.serves
    )
    return (
        node.name,
        node.node,
        node.link,
        "leader" if node.holder else "",
        node.health,
        clock(node.clock_offset_s),
        node.facts.get("launch", "?"),
        serves or "-",
    )


def clock(offset_s: float | None) -> str:
    """Return a clock's offset for people: `+12 ms`, `-3.2 s`, `?`."""
    if offset_s is None:
        return "?"
    return f"{offset_s * 1000:+.0f} ms" if abs(offset_s) < 1 else f"{offset_s:+.1f} s"
