"""Talks to the terminal: `shoal config`, every setting, its value, and the layer it is from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from conf.sections import masked
from gateway.cli.command import Invocation


def show(invocation: Invocation) -> None:
    """Show every setting with its value and source, and the folders."""
    settings, output = invocation.settings(), invocation.output
    paths = settings.paths
    folders = {
        "config": paths.config_file,
        "data": paths.data,
        "state": paths.state,
        "runtime": paths.runtime,
        "logs": paths.logs,
    }
    rows = [(key, masked(key, value), source) for key, value, source in settings.rows()]
    output.document(
        {
            "settings": {key: {"value": value, "source": source} for key, value, source in rows},
            "folders": {name: str(path) for name, path in folders.items()},
            "url": settings.url,
        }
    )
    output.table(("setting", "value", "source"), [(k, _plain(v), s) for k, v, s in rows])
    output.say("")
    output.table(("folder", "path"), folders.items())


def _plain(value: object) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(str, cast(Sequence[object], value))) or "-"
    return str(value) if value != "" else "-"
