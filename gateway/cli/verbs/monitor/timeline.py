"""Talks to the API about what runners did last, on all nodes: `shoal timeline`."""

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
"""Fields of an entry with their own column, or about clocks."""
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
    """Show the runners' last steps on all nodes, merged by time, and which rank the other ranks
    wait for. This includes runners that ended, were killed or hang."""
    output = invocation.output
    asked = [("model", model)] if model is not None else []
    asked += [("node", node) for node in nodes or []]
    found = invocation.api().get(f"{PATH}?{urlencode(asked)}" if asked else PATH)
    output.document(found)
    runners = cast(list[Row], found["runners"])
    columns = ("runner", "model", "rank", "phase", ">step", ">silent", "last", "note")
    output.table(columns, [_runner(runner) for runner in runners])
    if not runners:
        output.note(f"no runner {f'of {model} ' if model else ''}there")
    for one in cast(list[Row], found["behind"]):
        verb = "stands" if one["ended_at_s"] is None else "stood"
        output.warn(f"{_rank(one)} {verb} behind: {one['why']}")
    for one in cast(list[Row], found["unreached"]):
        ranks = ", ".join(f"{rank['model']} rank {rank['rank']}" for rank in one["ranks"])
        output.warn(f"{one['message']}{f'; there: {ranks}' if ranks else ''}")
    _entries(output, cast(list[Row], found["timeline"]), limit)
    if found["timeline"]:
        for one in cast(list[Row], found["clocks"]):
            if one["node"] != found["asked"]:
                output.note(_clock_of(one))


def _entries(output: Output, lines: Sequence[Row], limit: int) -> None:
    if not lines:
        return
    output.say("")
    columns = ("time", "runner", "rank", "phase", ">memory", "what")
    output.table(columns, [_entry(line) for line in lines[-limit:]])
    if len(lines) > limit:
        output.note(f"{len(lines) - limit} earlier entries are hidden; show more with -n")


def _runner(one: Row) -> list[str]:
    last = cast(Row | None, one["last"])
    phase = "halted" if one["halted"] else one["phase"]
    silent = one["ended_at_s"] is None and one["silent_s"] >= 1.0
    ended = "" if one["exit_code"] is None else f"exit code {one['exit_code']}"
    note = ": ".join(part for part in (ended, one["message"]) if part)
    stacks = one["stacks"]
    if stacks is not None and stacks["threads"]:
        note = "; ".join(part for part in (note, "see --json for its stacks") if part)
    return [
        f"{one['name']} {one['process']}",
        one["model"] or NONE,
        str(one["rank"]),
        phase,
        str(one["step"]),
        span(one["silent_s"]) if silent else NONE,
        NONE if last is None else f"{_clock(last['at_s'])} {last['phase']}",
        note or NONE,
    ]


def _entry(one: Row) -> list[str]:
    told = {name: value for name, value in one.items() if name not in IN_COLUMNS}
    if "since_s" in told:
        told["since_s"] = _clock(told["since_s"])
    memory = cast(Row, one.get("memory", {}))
    return [
        _clock(one["at_s"]),
        f"{one['name']} {one['process']}",
        str(one["rank"]),
        one["phase"],
        size(memory["active_bytes"]) if memory else NONE,
        " ".join(f"{name.removesuffix('_s')}={value}" for name, value in told.items()) or NONE,
    ]


def _rank(one: Row) -> str:
    return f"rank {one['rank']} of {one['model'] or one['instance']} on {one['name']}"


def _clock_of(one: Row) -> str:
    """Return what is known of a node's clock, for those who compare its times with others'."""
    if one["offset_s"] is None:
        return f"the clock of {one['name']} was not measured: its times are not corrected"
    way = "ahead of" if one["offset_s"] >= 0 else "behind"
    return (
        f"the clock of {one['name']} is {abs(one['offset_s']) * 1000:.1f} ms {way} this "
        f"node's, +/- {one['error_s'] * 1000:.1f} ms; its times are converted to this node's clock"
    )


def _clock(at_s: float) -> str:
    """Return a time of the day, by the clock here, with milliseconds."""
    return f"{time.strftime('%H:%M:%S', time.localtime(at_s))}.{int(at_s % 1 * 1000):03}"
