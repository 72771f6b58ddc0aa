"""Talks to the node's API about the cluster's API keys: `shoal apikey`.

A secret is shown only when it is created; the cluster stores only its hash.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import quote

import typer

from gateway.cli.command import Invocation
from gateway.cli.output.amounts import span
from gateway.cli.output.errors import NOT_FOUND, USAGE, CliError
from gateway.cli.output.terminal import Output

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
NONE = "-"
FIRST_KEY = (
    "from now on EVERY node of this cluster requires an API key, on loopback too; "
    "the user who runs the node can still use `shoal` without a key"
)
NO_KEY_LEFT = "no API key is left: everyone who can reach this node's port can use it"
Key = Annotated[str, typer.Argument(metavar="KEY", help="A key's name or id.")]
Row = Mapping[str, Any]


def add(
    invocation: Invocation,
    name: Annotated[str, typer.Argument(help="A name for the key.")],
    scope: Annotated[
        Literal["inference", "admin"],
        typer.Option("--scope", help="inference: use and list models; admin: everything."),
    ] = "inference",
    rpm: Annotated[
        int | None, typer.Option("--rpm", min=1, help="Requests per minute, over all nodes.")
    ] = None,
    concurrent: Annotated[
        int | None, typer.Option("--concurrent", min=1, help="Concurrent requests.")
    ] = None,
    tokens_per_day: Annotated[
        int | None,
        typer.Option("--tokens-per-day", min=1, help="Prompt and answer tokens per UTC day."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="SPAN", help="Lifetime: 30d, 12h.")
    ] = None,
) -> None:
    """Create an API key. Its secret is shown only now."""
    body: dict[str, Any] = {
        "name": name,
        "scope": scope,
        "requests_per_minute": rpm,
        "concurrent": concurrent,
        "tokens_per_day": tokens_per_day,
        "expires_in_s": None if expires is None else seconds_of(expires, "--expires"),
    }
    made = invocation.api().post("/apikeys", body)
    _show_secret(invocation.output, made)
    if not made["was_asked_for"]:
        invocation.output.warn(FIRST_KEY)


def ls(invocation: Invocation) -> None:
    """List the cluster's API keys and their use."""
    output, answer = invocation.output, invocation.api().get("/apikeys")
    output.document(answer)
    now_s = time.time()
    columns = ("name", "id", "scope", ">running", ">per minute", ">tokens today", "expires",
               "last used")  # fmt: skip
    output.table(columns, [_cells(row, now_s) for row in answer["keys"]])
    if answer["in_settings"]:
        output.note(f"this node's settings (api_keys) contain {answer['in_settings']} more keys")
    if not answer["keys"]:
        asks = "requires one" if answer["asked_for"] else "requires none"
        output.note(
            f"the cluster has no API key, and this node {asks}; create one with `shoal "
            "apikey add NAME`"
        )


def rm(invocation: Invocation, key: Key) -> None:
    """Revoke an API key on all nodes."""
    api = invocation.api()
    gone = api.delete(f"/apikeys/{quote(_key_id(api.get('/apikeys'), key), safe='')}")
    invocation.output.document(gone)
    invocation.output.say(f"revoked {gone['name']} ({gone['id']})")
    if not gone["asked_for"]:
        invocation.output.warn(NO_KEY_LEFT)


def rotate(
    invocation: Invocation,
    key: Key,
    grace: Annotated[
        str | None,
        typer.Option(
            "--grace", metavar="SPAN", help="How long the old secret stays valid: 1h, 2d."
        ),
    ] = None,
) -> None:
    """Replace the secret of an API key. The old secret becomes invalid immediately, or stays valid
    for a while."""
    api = invocation.api()
    grace_s = 0.0 if grace is None else seconds_of(grace, "--grace")
    path = f"/apikeys/{quote(_key_id(api.get('/apikeys'), key), safe='')}/rotate"
    made = api.post(path, {"grace_s": grace_s})
    _show_secret(invocation.output, made)
    if made["old_until_s"] is not None:
        invocation.output.note(f"the old secret stays valid for {span(grace_s)}")


def seconds_of(text: str, option: str) -> float:
    """Parse a duration into seconds: `30d`, `12h`, `45m`, `90s`. Raises CliError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if match is None or not float(match[1]):
        raise CliError(
            f"{option}: {text!r} is not a duration; use a number and s, m, h or d, such as 30d",
            code=USAGE,
        )
    return float(match[1]) * UNITS_S[match[2]]


def _key_id(answer: Row, word: str) -> str:
    """Return the id of the key with this name or id. Raises CliError."""
    for row in answer["keys"]:
        if row["id"] == word or row["name"].casefold() == word.casefold():
            return row["id"]
    names = ", ".join(row["name"] for row in answer["keys"]) or "none"
    raise CliError(f"no API key {word!r}; the keys are: {names}", code=NOT_FOUND)


def _show_secret(output: Output, made: Row) -> None:
    output.document(made)
    for name in ("name", "id", "scope"):
        output.say(f"{name:6} {made[name]}")
    if made["expires_at_s"] is not None:
        output.say(f"until  {_date(made['expires_at_s'])}")
    output.say(f"key    {made['key']}")
    output.note("the key is shown only now: the cluster stores only its hash")


def _cells(row: Row, now_s: float) -> tuple[str, ...]:
    use = row["use"]
    expires_at_s, used_at_s = row["expires_at_s"], row["used_at_s"]
    expires = NONE if expires_at_s is None else _date(expires_at_s)
    return (
        row["name"],
        row["id"],
        row["scope"],
        _of(use["running"], row["concurrent"]),
        _of(use["requests"], row["requests_per_minute"]),
        _of(use["tokens"], row["tokens_per_day"]),
        "expired" if row["expired"] else expires,
        NONE if used_at_s is None else f"{span(max(0.0, now_s - used_at_s))} ago",
    )


def _of(used: int, most: int | None) -> str:
    return str(used) if most is None else f"{used} of {most}"


def _date(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at_s))
