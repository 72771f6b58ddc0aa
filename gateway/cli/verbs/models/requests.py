"""Talks to the node's API about finished requests: `shoal requests`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from gateway.cli.command import Invocation
from gateway.cli.output.errors import USAGE, CliError
from gateway.cli.output.terminal import Output

NONE = "-"
DAY_S = 86_400
Row = Mapping[str, Any]


def requests(
    invocation: Invocation,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=1000, help="Number of rows, latest last.")
    ] = 20,
    errors: Annotated[
        bool, typer.Option("--errors", help="Only requests that failed or were cut.")
    ] = False,
    model: Annotated[str | None, typer.Option("--model", help="Only of this model.")] = None,
    client: Annotated[
        str | None, typer.Option("--client", help="Only of this client, by the name it sends.")
    ] = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="Counts and percentiles per model and client.")
    ] = False,
    minutes: Annotated[
        float, typer.Option("--minutes", min=0.1, help="With --stats: the last minutes to count.")
    ] = 60.0,
) -> None:
    """Show the latest finished requests of this node and their timings. Prompts and answers are not
    shown."""
    output = invocation.output
    if stats:
        if errors or model or client:
            text = "--stats counts all requests; use it without --errors, --model and --client"
            raise CliError(text, code=USAGE)
        answer = invocation.api().get(f"/requests/stats?window_s={minutes * 60:g}")
        output.document(answer)
        _show_stats(output, answer, minutes)
        return
    wanted = {"limit": limit, "model": model, "client": client, "errors_only": errors or None}
    query = urlencode({name: _word(value) for name, value in wanted.items() if value is not None})
    answer = invocation.api().get(f"/requests/recent?{query}")
    output.document(answer)
    now_s = time.time()
    output.table(
        ("ended", "model", "client", "dialect", "outcome", ">queue", ">load", ">ttft", ">seconds",
         ">prompt", ">cached", ">tokens", ">tokens/s", "node"),
        [_cells(row, now_s) for row in reversed(answer["requests"])],
    )  # fmt: skip
    if not answer["requests"]:
        which = "the log has no such request" if errors or model or client else "the log is empty"
        output.note(f"{which}; `records.request_rows` sets how many rows are kept")


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _cells(row: Row, now_s: float) -> list[str]:
    return [
        _when(row["ended_at_s"], now_s),
        row["model"] or NONE,
        row["client"] or NONE,
        row["dialect"] + (", streamed" if row["streamed"] else ""),
        outcome_of(row),
        _seconds(row["queue_s"]),
        _seconds(row["load_s"]),
        _seconds(row["ttft_s"]),
        _seconds(row["seconds"]),
        str(row["prompt_tokens"]),
        str(row["cached_tokens"]),
        str(row["completion_tokens"]),
        speed_of(row),
        row["node"] or NONE,
    ]


def outcome_of(row: Row) -> str:
    """Return the outcome of a request: its finish reason, or status and error code."""
    if row["error"]:
        return f"{row['status']} {row['error']}"
    return row["finish"] or "finished"


def speed_of(row: Row) -> str:
    """Return the tokens per second after the first token; "-" if there are none."""
    after_first = row["completion_tokens"] - 1
    decode_s = row["decode_s"] or 0.0
    return f"{after_first / decode_s:.1f}" if after_first > 0 and decode_s > 0 else NONE


def _when(ended_at_s: float, now_s: float) -> str:
    """Return the time of day. If it is more than a day ago, the date is added."""
    form = "%H:%M:%S" if 0 <= now_s - ended_at_s < DAY_S else "%Y-%m-%d %H:%M:%S"
    return time.strftime(form, time.localtime(ended_at_s))


def _seconds(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _show_stats(output: Output, answer: Row, minutes: float) -> None:
    count = answer["requests"]
    text = f"{count} request{'s' * (count != 1)} in {minutes:g} min, {answer['finished']} finished"
    output.say(f"{text}{_errors(answer, ': ')}; waits and speeds are p50 / p95")
    for group, column in (("models", "model"), ("clients", "client")):
        columns = (column, ">requests", ">finished", ">prompt", ">cached", ">tokens", ">queue",
                   ">ttft", ">seconds", ">tokens/s", "errors")  # fmt: skip
        output.table(columns, [_stats_cells(row) for row in answer[group]])


def _stats_cells(row: Row) -> list[str]:
    return [
        row["name"] or NONE,
        *(str(row[name]) for name in ("requests", "finished", "prompt_tokens", "cached_tokens")),
        str(row["completion_tokens"]),
        *(_both(row[name], 2) for name in ("queue_s", "ttft_s", "seconds")),
        _both(row["decode_tokens_per_s"], 1),
        _errors(row) or NONE,
    ]


def _both(percentiles: Mapping[str, float] | None, digits: int) -> str:
    """Return the median and the 95th percentile as one text: `0.21 / 1.30`."""
    if percentiles is None:
        return NONE
    return " / ".join(f"{percentiles[name]:.{digits}f}" for name in ("p50", "p95"))


def _errors(row: Row, before: str = "") -> str:
    errors: Iterable[tuple[str, int]] = row["errors"].items()
    text = ", ".join(f"{count} {code}" for code, count in errors)
    return before + text if text else ""
