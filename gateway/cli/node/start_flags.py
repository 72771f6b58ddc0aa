"""The flags of `shoal up` that stand for settings, and the flag of a given setting."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

import typer


@dataclass(frozen=True, slots=True)
class Flags:
    """Settings that `up` accepts and remembers until `down`. None leaves a setting unchanged."""

    node: Annotated[str | None, typer.Option(help="Name of this node.", metavar="NAME")] = None
    base_port: Annotated[
        int | None,
        typer.Option(
            help="Base port: every port of this node, HTTP included, is this plus an offset."
        ),
    ] = None
    http_port: Annotated[int | None, typer.Option(help="Port of the HTTP API.")] = None
    http_host: Annotated[
        str | None, typer.Option(help="Address on which the HTTP API listens.")
    ] = None
    peers: Annotated[
        str | None,
        typer.Option(help="Nodes to join, separated by commas.", metavar="HOST:PORT"),
    ] = None
    listen: Annotated[
        str | None, typer.Option(help="Address on which this node listens for other nodes.")
    ] = None
    namespace: Annotated[str | None, typer.Option(help="Name of the cluster.")] = None
    api: Annotated[
        bool | None,
        typer.Option("--api/--no-api", help="Serve HTTP clients, or open no HTTP port."),
    ] = None
    dashboard: Annotated[
        bool | None,
        typer.Option("--dashboard/--no-dashboard", help="Serve the browser page, or not."),
    ] = None
    offline: Annotated[
        bool | None,
        typer.Option(
            "--offline/--online", help="Never contact a model hub, or allow downloads from it."
        ),
    ] = None
    max_rows: Annotated[
        int | None, typer.Option(help="Largest batch of a runner, in requests; 1: no batching.")
    ] = None
    master_priority: Annotated[
        int | None,
        typer.Option(help="Election priority: the node with the highest one leads."),
    ] = None
    log_level: Annotated[
        str | None, typer.Option(help="Lowest level that processes log: debug, info, ...")
    ] = None


SETTINGS = {
    "node": "node_name",
    "peers": "cluster.peers",
    "listen": "cluster.listen",
    "namespace": "cluster.namespace",
    "max_rows": "runner.max_rows",
}
"""The settings of the flags whose names differ from the names of their settings."""


def flag_of(key: str, value: Any) -> str:
    """Return the flag that sets a setting to this value."""
    name = next((flag for flag, its in SETTINGS.items() if its == key), key)
    if (key, value) == ("offline", False):
        return "--online"
    if isinstance(value, bool):
        return f"--{'' if value else 'no-'}{name}"
    return f"--{name.replace('_', '-')} {_word(value)}"


def _word(value: Any) -> str:
    """Return a value in the form that a flag takes."""
    words = cast(Sequence[str], value) if isinstance(value, tuple | list) else [str(value)]
    return shlex.quote(",".join(words))
