"""What `shoal up` may be told of settings, and how that is said again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

import typer


@dataclass(frozen=True, slots=True)
class Flags:
    """Settings that `up` may be given and remembers until `down`; None leaves one as it is."""

    node: Annotated[str | None, typer.Option(help="This node's name.", metavar="NAME")] = None
    base_port: Annotated[
        int | None, typer.Option(help="Move every port of this node, HTTP included.")
    ] = None
    http_port: Annotated[int | None, typer.Option(help="Where the HTTP API listens.")] = None
    http_host: Annotated[str | None, typer.Option(help="On which address it listens.")] = None
    peers: Annotated[
        str | None,
        typer.Option(help="Nodes to join, with commas between.", metavar="HOST:PORT"),
    ] = None
    listen: Annotated[
        str | None, typer.Option(help="On which address other nodes reach this one.")
    ] = None
    namespace: Annotated[str | None, typer.Option(help="The cluster's name.")] = None
    api: Annotated[
        bool | None,
        typer.Option("--api/--no-api", help="Serve clients over HTTP, or open no port for it."),
    ] = None
    dashboard: Annotated[
        bool | None,
        typer.Option("--dashboard/--no-dashboard", help="Give browsers the page, or not."),
    ] = None
    offline: Annotated[
        bool | None,
        typer.Option(
            "--offline/--online", help="Ask nothing of any hub, or pull what is asked for."
        ),
    ] = None
    max_rows: Annotated[
        int | None, typer.Option(help="Requests that a runner works on at once; 1: no batching.")
    ] = None
    master_priority: Annotated[
        int | None, typer.Option(help="Of equal candidates the greatest leads the cluster.")
    ] = None
    log_level: Annotated[
        str | None, typer.Option(help="From which level on processes log: debug, info, ...")
    ] = None


SETTINGS = {
    "node": "node_name",
    "peers": "cluster.peers",
    "listen": "cluster.listen",
    "namespace": "cluster.namespace",
    "max_rows": "runner.max_rows",
}
"""What flags set whose names are not the setting's own."""


def flag_of(key: str, value: Any) -> str:
    """Return the flag that gives a setting this value."""
    name = next((flag for flag, its in SETTINGS.items() if its == key), key)
    if (key, value) == ("offline", False):
        return "--online"
    if isinstance(value, bool):
        return f"--{'' if value else 'no-'}{name}"
    return f"--{name.replace('_', '-')} {_word(value)}"


def _word(value: Any) -> str:
    """Return a value as a flag takes it."""
    words = cast(Sequence[str], value) if isinstance(value, tuple | list) else [str(value)]
    return shlex.quote(",".join(words))
