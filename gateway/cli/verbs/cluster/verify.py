"""Talks to the node's API about the whole cluster: `shoal verify`, are its nodes alike and is what
joins them sound."""

from __future__ import annotations

from typing import Any

import typer

from gateway.cli.command import Invocation
from gateway.cli.node.likeness import report
from gateway.cli.output.errors import FAILED
from gateway.cli.verbs.cluster import cluster_info, rdma_test


def verify(
    invocation: Invocation,
    quick: rdma_test.Quick = False,
    stress: rdma_test.Stress = False,
    memory_mb: rdma_test.Memory = None,
) -> None:
    """Check a cluster whole: what `cluster-info` tells, then what `rdma-test` finds between all
    nodes that are reached. Ends with 1 if anything is amiss."""
    mode = rdma_test.mode_of(quick=quick, stress=stress)
    api, output = invocation.api(), invocation.output
    state = api.state()
    found = report(state)
    reached = [node.node for node in found.nodes if node.reachable]
    alike = cluster_info.is_well(found, strict=False)
    cluster_info.show(found, output)
    test: dict[str, Any] | None = None
    if len(reached) > 1 and found.verdict != "misaligned":
        asked = rdma_test.body(reached, mode, None, memory_mb)
        test = rdma_test.tested(api, asked, output)
        rdma_test.show(output, test, state.names)
    elif len(reached) > 1:
        output.say("what joins the nodes is not tested before they are alike")
    well = alike and (test is None or bool(test["passed"]))
    cluster = {"well": alike, **cluster_info.as_document(found)}
    output.document({"well": well, "cluster": cluster, "collectives": test})
    output.say("all is well" if well else "something is amiss")
    if not well:
        raise typer.Exit(FAILED)
