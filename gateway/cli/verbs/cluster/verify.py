"""Talks to the node's API: `shoal verify` checks the whole cluster, or the files of named
models."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gateway.cli.command import Invocation
from gateway.cli.node.likeness import report
from gateway.cli.output.errors import FAILED, USAGE, CliError
from gateway.cli.verbs.cluster import cluster_info, rdma_test
from gateway.cli.verbs.store.verified import verify_models


def verify(
    invocation: Invocation,
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL...]", help="Models, as listed by `shoal ls`."),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option("--node", metavar="NODE", help="The node whose model files are verified."),
    ] = None,
    quick: rdma_test.Quick = False,
    stress: rdma_test.Stress = False,
    memory_mb: rdma_test.Memory = None,
) -> None:
    """Check model files against their hashes. If no model is named, check the cluster: run
    `cluster-info`, then `rdma-test` on all reachable nodes. Exits with 1 if a check finds a
    problem."""
    if models:
        if quick or stress or memory_mb is not None:
            text = "--quick, --stress and --memory apply to the cluster test, not to models"
            raise CliError(text, code=USAGE)
        verify_models(invocation, models, node)
        return
    if node is not None:
        raise CliError("--node applies to models; name at least one model", code=USAGE)
    mode = rdma_test.mode_of(quick=quick, stress=stress)
    api, output = invocation.api(), invocation.output
    state = api.state()
    cluster_report = report(state)
    reached = [node.node for node in cluster_report.nodes if node.reachable]
    alike = cluster_info.is_healthy(cluster_report, strict=False)
    cluster_info.show(cluster_report, output)
    test: dict[str, Any] | None = None
    if len(reached) > 1 and cluster_report.verdict != "misaligned":
        request = rdma_test.body(reached, mode, None, memory_mb)
        test = rdma_test.run_test(api, request, output)
        rdma_test.show(output, test, state.names)
    elif len(reached) > 1:
        output.say("the link test needs identical nodes; correct the differences first")
    well = alike and (test is None or bool(test["passed"]))
    cluster = {"well": alike, **cluster_info.as_document(cluster_report)}
    output.document({"well": well, "cluster": cluster, "collectives": test})
    output.say("no problems found" if well else "problems found")
    if not well:
        raise typer.Exit(FAILED)
