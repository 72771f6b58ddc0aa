"""Talks to the node's API about the clients that send requests: `shoal clients`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from gateway.cli.command import Invocation
from gateway.cli.output.amounts import number, span

Row = Mapping[str, Any]
NONE = "-"
SECONDS = ("keep_alive_s", "keep_alive_most_s", "cooldown_s")


def clients(invocation: Invocation) -> None:
    """Show the clients of the node: their requests, their cooldown and their settings in
    clients.toml."""
    output = invocation.output
    answer = invocation.api().get("/clients")
    output.document(answer)
    now_s = time.time()
    output.table(
        ("client", "by", ">requests", ">refused", ">failed", ">prompt", ">answer", ">seen",
         ">waiting", ">cooldown", "profile"),
        [client_row(client, now_s) for client in answer["clients"]],
    )  # fmt: skip
    if answer["trouble"]:
        output.note(f"{answer['trouble']}; the last valid version stays in force")
    if not answer["clients"]:
        output.note(
            f"no client has sent a request yet; profiles: {answer['file']} "
            "(docs/operations/clients.md)"
        )


def client_row(client: Row, now_s: float) -> tuple[str, ...]:
    """Return the row of a client. The columns prompt and answer are mean tokens per request."""
    seen_s, rests_s = client["last_seen_at_s"], client["rests_s"]
    return (
        client["client"],
        (client["known_by"] or "never seen").replace("_", " "),
        number(client["requests"]),
        number(client["refused"]),
        number(client["failed"]),
        number(round(client["mean_prompt_tokens"])),
        number(round(client["mean_completion_tokens"])),
        f"{span(max(0.0, now_s - seen_s))} ago" if seen_s else NONE,
        number(client["waiting"]),
        span(rests_s) if rests_s else NONE,
        profile_words(client["profile"]),
    )


def profile_words(profile: Row | None) -> str:
    """Return the settings of a client's profile, under their keys in clients.toml."""
    if profile is None:
        return NONE
    return ", ".join(f"{name} {value:g}" if name in SECONDS else f"{name} {value}"
                     for name, value in profile.items()) or "no settings"  # fmt: skip
