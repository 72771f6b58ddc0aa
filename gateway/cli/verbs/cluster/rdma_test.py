"""Talks to the node's API: `shoal rdma-test` tests collective operations between nodes."""

from __future__ import annotations

import time
from typing import Annotated, Any, cast

import typer
from rich.progress import MofNCompleteColumn

from bus.wire.messages.collectives import Mode
from gateway.cli.command import Invocation
from gateway.cli.node.node_api import NodeApi
from gateway.cli.output.amounts import size
from gateway.cli.output.errors import FAILED, NOT_FOUND, USAGE, CliError
from gateway.cli.output.terminal import Output

LOOK_S = 0.25
LEARN_S = 5.0
"""The HTTP process that answers may not know of a new test for this many seconds."""
Quick = Annotated[bool, typer.Option("--quick", help="5 rounds of each size.")]
Stress = Annotated[bool, typer.Option("--stress", help="100 rounds of each size, up to 512 MB.")]
Memory = Annotated[
    int | None, typer.Option("--memory", min=1, help="Memory limit per node, in MB.")
]


def rdma_test(
    invocation: Invocation,
    nodes: Annotated[
        str | None,
        typer.Option("--nodes", help="Names or ids of nodes in rank order, `a,b,c`; default: all."),
    ] = None,
    quick: Quick = False,
    stress: Stress = False,
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend", help="`ring` or `jaccl`; default: JACCL if RDMA connects all nodes."
        ),
    ] = None,
    memory_mb: Memory = None,
) -> None:
    """Test the links between nodes with collective operations: whether every element is correct,
    and how fast they are. Exits with 1 on an error."""
    if backend not in (None, "ring", "jaccl"):
        raise CliError(f"--backend {backend!r}", remedy="use `ring` or `jaccl`", code=USAGE)
    mode = mode_of(quick=quick, stress=stress)
    named = [] if nodes is None else [name.strip() for name in nodes.split(",") if name.strip()]
    api, output = invocation.api(), invocation.output
    names = api.state().names
    test = run_test(api, body(named, mode, backend, memory_mb), output)
    output.document(test)
    show(output, test, names)
    if not test["passed"]:
        raise typer.Exit(FAILED)


def mode_of(*, quick: bool, stress: bool) -> Mode:
    """Return the mode that the flags select. Raises CliError if both flags are set."""
    if quick and stress:
        raise CliError(
            "--quick and --stress exclude each other", remedy="use one of them", code=USAGE
        )
    return "quick" if quick else "stress" if stress else "standard"


def body(nodes: list[str], mode: Mode, backend: str | None, memory_mb: int | None) -> Any:
    """Return the body of the request. An empty list means all nodes."""
    memory_bytes = memory_mb and memory_mb * 1_000_000
    return {"nodes": nodes, "mode": mode, "backend": backend, "memory_bytes": memory_bytes}


def run_test(api: NodeApi, request: Any, output: Output) -> dict[str, Any]:
    """Start a test and wait for its end. Return its last state."""
    return _follow(api, str(api.post("/rdma-test", request)["instance"]), output)


def _follow(api: NodeApi, test: str, output: Output) -> dict[str, Any]:
    """Wait for the end of the test and return its last state. An interrupt ends the test."""
    known_by_at = time.monotonic() + LEARN_S
    try:
        with output.progress("forming", MofNCompleteColumn()) as show:
            while True:
                try:
                    state = cast(dict[str, Any], api.get(f"/rdma-test/{test}"))
                except CliError as problem:
                    if problem.code != NOT_FOUND or time.monotonic() > known_by_at:
                        raise
                    time.sleep(LOOK_S)
                    continue
                known_by_at = 0.0
                if state["status"] != "running":
                    return state
                phase, done, rounds = state["phase"], state["done"], state["rounds"]
                words = f"{phase}: {done}/{rounds}"
                show(words, description=phase, completed=done, total=rounds or None)
                time.sleep(LOOK_S)
    except KeyboardInterrupt:
        output.note("ending the test")
        api.delete(f"/instance/{test}")
        raise


def show(output: Output, test: dict[str, Any], names: dict[str, str]) -> None:
    """Write the result of a test, or why it ended early; not with `--json`."""
    report, error = test["report"], test["error"]
    if report is not None:
        _show_report(output, report, names)
    if error is not None and not output.as_json:
        node = error["node"]
        who = "" if node is None else f"rank {error['rank']} on {names.get(node, node)}: "
        output.error(CliError(f"{who}{error['message']}", remedy="see `shoal logs worker` there"))


def _show_report(output: Output, report: dict[str, Any], names: dict[str, str]) -> None:
    ranks, wrong_at = report["ranks"], {wrong["rank"] for wrong in report["wrong"]}
    rows = [
        (
            rank["rank"],
            names.get(rank["node"], rank["node"]),
            rank["device"],
            _time(rank["latency_s"]),
            size(rank["peak_bytes"]),
            "ok" if rank["passed"] else "wrong" if rank["rank"] in wrong_at else "not done",
        )
        for rank in ranks
    ]
    output.table(("rank", "node", "device", ">latency", ">memory", ""), rows)
    sizes = [
        (
            size(row["bytes"]),
            "skipped: above the memory limit" if row["skipped"] else _time(row["mean_s"]),
            "" if row["bytes_per_s"] is None else f"{row['bytes_per_s'] / 1e9:.2f} GB/s",
        )
        for row in report["sizes"]
    ]
    if sizes:
        output.table((">all_sum of", ">time", ">each direction"), sizes)
    for wrong in report["wrong"]:
        check, name = wrong["check"], names.get(wrong["node"], wrong["node"])
        output.say(
            f"WRONG at rank {wrong['rank']} on {name}: {check['name']}: {check['wrong']} of "
            f"{check['elements']} elements, the first at {check['first_wrong']}"
        )
    backend, elements = report["backend"], report["elements"]
    right = f"{elements:,} elements in {report['checks']} checks"
    latency = f"latency {_time(report['latency_s'])}: {report['latency_verdict']}"
    if report["passed"]:
        result = f"{right}, all correct; {latency}; {_bandwidth(report)}"
        output.say(f"{backend} over {len(ranks)} nodes: {result}")
    for beside in report["beside"]:
        output.note(f"{beside} was in memory during the test and may have slowed it")


def _bandwidth(report: dict[str, Any]) -> str:
    """Return the bandwidth, the array size, the verdict, and the number of skipped sizes as one
    text."""
    if report["bytes_per_s"] is None:
        return "bandwidth not measured"
    verdict = report["bandwidth_verdict"] or "these arrays are too small to judge the link"
    skipped = report["skipped"]
    left_out = f" ({skipped} larger sizes were skipped: above the memory limit)" if skipped else ""
    measured = f"{report['bytes_per_s'] / 1e9:.2f} GB/s with arrays of {size(report['best_bytes'])}"
    return f"bandwidth {measured}: {verdict}{left_out}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{1e6 * seconds:.0f} us" if seconds < 0.01 else f"{1e3 * seconds:.1f} ms"
