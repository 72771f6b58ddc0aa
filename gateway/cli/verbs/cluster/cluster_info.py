"""Talks to the node's API about the cluster: `shoal cluster-info`, who is there and whether alike.

Exit code 1 when nodes are misaligned or one is not reached, so that a script can wait for a cluster
that is whole; with `--strict` any difference counts.
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
    found, output = report(invocation.state()), invocation.output
    well = is_well(found, strict=strict)
    output.document({"well": well, **as_document(found)})
    show(found, output)
    if not well:
        raise typer.Exit(FAILED)


def is_well(found: ClusterReport, *, strict: bool) -> bool:
    """Return whether every node is reached and alike enough, and the term is held."""
    alike = found.verdict == "aligned" or (found.verdict == "mixed" and not strict)
    return alike and found.holder is not None and not found.unreachable and not found.strangers


def as_document(found: ClusterReport) -> dict[str, Any]:
    """Return the report as JSON. Names and types of what is here stay."""
    return {
        "asked": found.asked,
        "holder": found.holder,
        "verdict": found.verdict,
        "nodes": [
            {
                **dataclasses.asdict(node),
                "facts": {field.name: node.facts.get(field.name) for field in FACTS},
            }
            for node in found.nodes
        ],
        "differences": [
            {
                **dataclasses.asdict(difference),
                "values": {k: list(v) for k, v in difference.values.items()},
            }
            for difference in found.differences
        ],
        "unreachable": [
            {"node": one.node, "name": one.name, "why": one.why} for one in found.unreachable
        ],
        "strangers": list(found.strangers),
    }


def show(found: ClusterReport, output: Output) -> None:
    """Write the report for people; not with `--json`."""
    columns = ("node", "id", "link", "term", "health", ">clock", "started by", "serves")
    output.table(columns, [_standing(node) for node in found.nodes])
    output.say("")
    told = [field.name for field in FACTS if field.name != "launch"]
    rows = [("node", *(HEADINGS.get(name, name) for name in told), "fingerprint")]
    rows += [
        (node.name, *(node.facts.get(name, "?") for name in told), node.fingerprint or "?")
        for node in found.nodes
    ]
    if len(found.nodes) <= SIDE_BY_SIDE:
        rows = list(zip(*rows, strict=True))
    output.table(rows[0], rows[1:])
    output.say("")
    for difference in found.differences:
        values = "; ".join(
            f"{value}: {', '.join(names)}" for value, names in difference.values.items()
        )
        output.say(
            f"{HEADINGS.get(difference.field, difference.field)} differs "
            f"({difference.weight}): {values}"
        )
        output.say(f"  {difference.remedy}")
    for node in found.nodes:
        if node.reachable and node.message:
            output.say(f"{node.name}: {node.health}: {node.message}")
    for node in found.unreachable:
        if node.link == "refused":
            output.say(f"{node.name} is not in this cluster: {node.why}")
            continue
        output.say(f"cannot reach {node.name}: {node.why}")
        output.say(
            "  check that its machine is awake and run `shoal status` there; if it is gone "
            "for good: "
            f"`shoal nodes forget {node.node}`"
        )
    if found.holder is None:
        output.say("the cluster has no leader")
        output.say(
            "  the cluster cannot change its state; run `shoal status` on each node, voters first"
        )
    for stranger in found.strangers:
        output.say(f"no node of this cluster answers at {stranger}")
        output.say("  run `shoal doctor`")
    count = "one node" if len(found.nodes) == 1 else f"{len(found.nodes)} nodes"
    output.say(f"{count}: {found.verdict}")


def _standing(node: NodeReport) -> tuple[str, ...]:
    serves = ", ".join(
        f"{one.model} {one.rank + 1}/{one.ranks}{'' if one.status == 'ready' else ' ' + one.status}"
        for one in node.serves
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
    """Return how far a clock is ahead, for people: `+12 ms`, `-3.2 s`, `?`."""
    if offset_s is None:
        return "?"
    return f"{offset_s * 1000:+.0f} ms" if abs(offset_s) < 1 else f"{offset_s:+.1f} s"
