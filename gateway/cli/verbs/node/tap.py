"""Talks to the tap: `shoal tap PATTERN` shows the messages that pass on the bus."""

from __future__ import annotations

import contextlib
import json
import math
import time
from pathlib import Path
from typing import Annotated

import typer

from bus.switchboard import Tapped, listen, literal_prefix
from bus.wire.topics import TABLE
from gateway.cli.command import Invocation
from gateway.cli.output.errors import NOT_FOUND, CliError, no_node_in
from gateway.cli.output.terminal import Output

LOOK_S = 0.2
TAIL_BYTES = 1 << 20
MAX_TEXT = 160


def tap(
    invocation: Invocation,
    pattern: Annotated[str, typer.Argument(help="Topics, as shell patterns: 'event.*'.")] = "*",
    raw: Annotated[bool, typer.Option("--raw", help="Print the raw bytes in hexadecimal.")] = False,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Stop after this many messages.")
    ] = None,
    for_s: Annotated[
        float | None, typer.Option("--for", min=0.0, help="Stop after this many seconds.")
    ] = None,
) -> None:
    """Show the messages on the bus of this node as they pass: events, readings, tokens.

    A tap slows nothing; if it cannot keep up, it misses messages. Tokens are published only while a
    tap listens to `token.*`.
    """
    _check_pattern(pattern)
    settings, output = invocation.settings(), invocation.output
    if not Path(settings.endpoints.tap.removeprefix("ipc://")).exists():
        raise no_node_in(settings.paths.home, chosen=settings.paths.chosen)
    ends_at = time.monotonic() + (math.inf if for_s is None else for_s)
    seen = 0
    output.detail(f"listening at {settings.endpoints.tap}; stop with Ctrl-C")
    with contextlib.closing(listen(settings.endpoints, pattern, patience_s=LOOK_S)) as tapped:
        for message in tapped:
            if message is not None:
                _show(output, message, raw=raw)
                seen += 1
            if (count is not None and seen >= count) or time.monotonic() >= ends_at:
                return


def tapped_text(message: Tapped) -> str:
    """Return a message as one line of text: topic, sender and fields."""
    if message.error is not None:
        return f"{message.topic}  not decoded: {message.error}"
    fields = json.dumps(message.fields, default=str, ensure_ascii=False)
    if len(fields) > MAX_TEXT:
        fields = fields[: MAX_TEXT - 3] + "..."
    return f"{message.topic}  {message.process}#{message.seq}  {fields}"


def _show(output: Output, message: Tapped, *, raw: bool) -> None:
    if raw:
        output.write(f"{message.topic} {message.payload.hex()}\n")
    elif output.as_json:
        output.line(
            {
                "topic": message.topic,
                "node": message.node,
                "process": message.process,
                "boot": message.boot,
                "seq": message.seq,
                "message": message.fields,
                "error": message.error,
            }
        )
    else:
        output.say(tapped_text(message))


def _check_pattern(pattern: str) -> None:
    """Raise CliError for a pattern that matches no topic on the bus."""
    fixed = literal_prefix(pattern)
    prefixes = [row.prefix for row in TABLE]
    if fixed and not any(p.startswith(fixed) or fixed.startswith(p) for p in prefixes):
        raise CliError(
            f"no topic begins with {fixed!r}",
            remedy=f"topics begin with {', '.join(prefixes)}",
            code=NOT_FOUND,
        )
