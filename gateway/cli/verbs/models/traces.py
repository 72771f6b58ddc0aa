"""Talks to the node's API about traces of requests: `shoal trace`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer

from gateway.cli.command import Invocation
from gateway.cli.output.errors import CliError
from gateway.cli.output.own_file import write_own
from gateway.cli.output.terminal import Output

NONE = "-"
BAR = 40
"""Width of the bar that stands for a whole request, in characters."""
Row = Mapping[str, Any]
TraceName = Annotated[
    str, typer.Argument(metavar="ID", help="The id of the request or of its answer, or `latest`.")
]


def on(
    invocation: Invocation,
    ratio: Annotated[
        float, typer.Option("--ratio", min=0.0, max=1.0, help="Share of the requests to trace.")
    ] = 1.0,
) -> None:
    """Trace every request, or a given share of the requests, on every node of the cluster."""
    _set(invocation, ratio)


def off(invocation: Invocation) -> None:
    """Trace only requests with `x_trace`, on every node of the cluster."""
    _set(invocation, 0.0)


def ls(
    invocation: Invocation,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=1000, help="Number of rows, latest last.")
    ] = 20,
    model: Annotated[str | None, typer.Option("--model", help="Only of this model.")] = None,
) -> None:
    """List the stored traces of requests that this node's gateway answered."""
    output = invocation.output
    wanted = {"limit": limit} if model is None else {"limit": limit, "model": model}
    answer = invocation.api().get(f"/v1/traces?{urlencode(wanted)}")
    output.document(answer)
    columns = ("ended", "request", "model", "why", ">spans", ">seconds", "outcome")
    output.table(columns, [_cells(row) for row in reversed(answer["traces"])])
    if not answer["traces"]:
        output.note(
            "no traces; send `x_trace: true` in a request, or trace all with `shoal trace on`"
        )


def show(invocation: Invocation, trace: TraceName) -> None:
    """Show a trace of a request as bars."""
    output = invocation.output
    record = invocation.api().get(f"{_path(invocation, trace)}/raw")
    output.document(record)
    _show(output, record)


def save(
    invocation: Invocation,
    trace: TraceName,
    to: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write; default: a file here, named after the request.",
        ),
    ] = None,
) -> None:
    """Save a trace to a file of Chrome trace events, for https://ui.perfetto.dev."""
    output = invocation.output
    path = _path(invocation, trace)
    events = invocation.api().get(path)
    file = to or Path(f"{events['otherData']['request']}.trace.json")
    content = json.dumps(events).encode()
    write_own(file, content, replace=to is not None)
    output.document({"file": str(file), "bytes": len(content)})
    output.say(f"{file} ({len(content) / 1000:.0f} kB); open it in https://ui.perfetto.dev")


def _set(invocation: Invocation, ratio: float) -> None:
    output = invocation.output
    answer = invocation.api().put("/v1/tracing", {"ratio": ratio})
    output.document(answer)
    if not answer["keeps"]:
        output.warn("this node stores no traces: its setting `records.trace_rows` is 0")
    share = "every request" if ratio == 1.0 else f"{ratio:.2%} of the requests" if ratio else "none"
    output.say(f"traced on every node: {share}, and all requests with `x_trace`")


def _path(invocation: Invocation, trace: str) -> str:
    if trace == "latest":
        traces = invocation.api().get("/v1/traces?limit=1")["traces"]
        if not traces:
            raise CliError("the node has no traces; trace all requests with `shoal trace on`")
        trace = traces[0]["request"]
    return f"/v1/traces/{quote(trace, safe='')}"


def _cells(row: Row) -> list[str]:
    return [
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["ended_at_s"])),
        row["request"],
        row["model"] or NONE,
        row["why"],
        str(row["spans"]),
        f"{row['seconds']:.3f}",
        row["error"] or str(row["status"]),
    ]


def _show(output: Output, record: Row) -> None:
    whole_s, lead = record["seconds"], record["lead"]
    output.say(f"{record['request']}, {record['model']}: {whole_s:.3f} s")
    columns = ("where", "what", ">from", ">seconds", ">share", ">tokens", "when")
    spans: list[tuple[str, Row]] = [("gateway", span) for span in record["gateway"]]
    if lead is not None:
        several = lead["choices"] > 1
        spans += [
            (f"runner, choice {span['choice']}" if several else "runner", span)
            for span in lead["spans"]
        ]
    output.table(columns, [_span_cells(where, span, whole_s) for where, span in spans])
    if record.get("ranks"):
        columns = ("rank", "node", ">from", ">seconds", ">clock error", "time spent in")
        output.table(columns, [_rank_cells(rank) for rank in record["ranks"]])
    for line in _notes(record):
        output.note(line)


def _span_cells(where: str, span: Row, whole_s: float) -> list[str]:
    took_s = span["ended_s"] - span["began_s"]
    return [
        where,
        span["name"],
        f"{span['began_s']:.4f}",
        f"{took_s:.4f}",
        f"{took_s / whole_s:.1%}" if whole_s > 0 else NONE,
        str(span["tokens"]) if span.get("tokens") else NONE,
        _bar(span["began_s"], span["ended_s"], whole_s),
    ]


def _rank_cells(rank: Row) -> list[str]:
    named = [str(rank["rank"]), rank["node"]]
    if not rank["told"]:
        return [*named, NONE, NONE, NONE, rank["why"]]
    sums: dict[str, float] = {}
    for turn in rank["turns"]:
        for part, seconds in turn["seconds"].items():
            sums[part] = sums.get(part, 0.0) + seconds
    took_s = rank["ended_s"] - rank["began_s"]
    parts = sorted(sums.items(), key=lambda pair: -pair[1])
    shares = [f"{part} {seconds / took_s:.1%}" for part, seconds in parts if took_s > 0]
    error = f"{rank['clock']['error_s'] * 1000:.2f} ms"
    return [*named, f"{rank['began_s']:.4f}", f"{took_s:.4f}", error, ", ".join(shares)]


def _bar(began_s: float, ended_s: float, whole_s: float) -> str:
    """Return a bar of the whole request: `#` during the span, `.` elsewhere."""
    if whole_s <= 0:
        return ""
    first = min(max(int(began_s / whole_s * BAR), 0), BAR - 1)
    marks = max(1, min(round(ended_s / whole_s * BAR), BAR) - first)
    return "." * first + "#" * marks + "." * (BAR - first - marks)


def _notes(record: Row) -> Iterable[str]:
    lead = record["lead"]
    if lead is None:
        yield (
            "no data from the runner: the request ended before it reached a runner, or its model "
            "generates no text"
        )
        return
    clock = lead["clock"]
    yield (
        f"the runner, {lead['instance']} on {lead['node']}, uses the same clock as the gateway"
        if clock["how"] == "one clock"
        else f"the runner's times may be wrong by {clock['error_s'] * 1000:.2f} ms"
    )
