"""Talks to the API: `shoal timeline`, the last steps of runners on all nodes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast
from urllib.parse import urlencode

import typer

from gateway.cli.command import Invocation
from gateway.cli.output.amounts import size, span
from gateway.cli.output.terminal import Output

PATH = "/v1/diagnostics/cluster/timeline"
NONE = "-"
IN_COLUMNS = frozenset(
    (
        "at_s",
        "error_s",
        "phase",
        "memory",
        "node",
        "name",
        "process",
        "pid",
        "instance",
        "generation",
        "rank",
    )
)
"""Fields of an entry that have a column of their own, or that describe clocks."""
Row = Mapping[str, Any]


def timeline(
    invocation: Invocation,
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="Only runners of this model.")
    ] = None,
    nodes: Annotated[
        list[str] | None,
        typer.Option("--node", metavar="NODE", help="Only this node; may be repeated."),
    ] = None,
    limit: Annotated[
        int,
        typer.Option("--limit", "-n", min=1, max=5000, help="Number of entries, the latest ones."),
    ] = 40,
) -> None:
    """Show the last steps of runners on all nodes, merged by time, and the rank that the other
    ranks wait for. Runners that ended, were killed or hang are included."""
    output = invocation.output
    query = [("model", model)] if model is not None else []
    query += [("node", node) for node in nodes or []]
    answer = invocation.api().get(f"{PATH}?{urlencode(query)}" if query else PATH)
    output.document(answer)
    runners = cast(list[Row], answer["runners"])
    columns = ("runner", "model", "rank", "phase", ">step", ">silent", "last", "note")
    output.table(columns, [_runner(runner) for runner in runners])
    if not runners:
        output.note(f"these nodes have no runner{f' of {model}' if model else ''}")
    for runner in cast(list[Row], answer["behind"]):
        verb = "is" if runner["ended_at_s"] is None else "was"
        output.warn(f"{_rank(runner)} {verb} behind: {runner['why']}")
    for node in cast(list[Row], answer["unreached"]):
        ranks = ", ".join(f"{rank['model']} rank {rank['rank']}" for rank in node["ranks"])
        output.warn(f"{node['message']}{f'; its ranks: {ranks}' if ranks else ''}")
    _entries(output, cast(list[Row], answer["timeline"]), limit)
    if answer["timeline"]:
        for clock in cast(list[Row], answer["clocks"]):
            if clock["node"] != answer["asked"]:
                output.note(_clock_of(clock))


def _entries(output: Output, lines: Sequence[Row], limit: int) -> None:
    if not lines:
        return
    output.say("")
    columns = ("time", "runner", "rank", "phase", ">memory", "what")
    output.table(columns, [_entry(line) for line in lines[-limit:]])
    if len(lines) > limit:
        output.note(f"{len(lines) - limit} earlier entries are hidden; show more with -n")


def _runner(runner: Row) -> list[str]:
    last = cast(Row | None, runner["last"])
    phase = "halted" if runner["halted"] else runner["phase"]
    silent = runner["ended_at_s"] is None and runner["silent_s"] >= 1.0
    ended = "" if runner["exit_code"] is None else f"exit code {runner['exit_code']}"
    note = ": ".join(part for part in (ended, runner["message"]) if part)
    stacks = runner["stacks"]
    if stacks is not None and stacks["threads"]:
        note = "; ".join(part for part in (note, "see --json for its stacks") if part)
    return [
        f"{runner['name']} {runner['process']}",
        runner["model"] or NONE,
        str(runner["rank"]),
        phase,
        str(runner["step"]),
        span(runner["silent_s"]) if silent else NONE,
        NONE if last is None else f"{_clock(last['at_s'])} {last['phase']}",
        note or NONE,
    ]


def _entry(entry: Row) -> list[str]:
    fields = {name: value for name, value in entry.items() if name not in IN_COLUMNS}
    if "since_s" in fields:
        fields["since_s"] = _clock(fields["since_s"])
    memory = cast(Row, entry.get("memory", {}))
    return [
        _clock(entry["at_s"]),
        f"{entry['name']} {entry['process']}",
        str(entry["rank"]),
        entry["phase"],
        size(memory["active_bytes"]) if memory else NONE,
        " ".join(f"{name.removesuffix('_s')}={value}" for name, value in fields.items()) or NONE,
    ]


def _rank(runner: Row) -> str:
    return f"rank {runner['rank']} of {runner['model'] or runner['instance']} on {runner['name']}"


def _clock_of(clock: Row) -> str:
    """Return how far a node's clock is ahead or behind, for people who compare times of several
    nodes."""
    if clock["offset_s"] is None:
        return f"the clock of {clock['name']} was not measured: its times are not corrected"
    way = "ahead of" if clock["offset_s"] >= 0 else "behind"
    return (
        f"the clock of {clock['name']} is {abs(clock['offset_s']) * 1000:.1f} ms {way} this "
        f"node's, +/- {clock['error_s'] * 1000:.1f} ms; its times are converted to this node's "
        "clock"
    )


def _clock(at_s: float) -> str:
    """Return the local time of day, with milliseconds."""
    return f"{time.strftime('%H:%M:%S', time.localtime(at_s))}.{int(at_s % 1 * 1000):03}"
