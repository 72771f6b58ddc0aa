"""Talks to the terminal and the disk: `shoal config`. Shows every setting with its value and
source, and edits `shoal.toml`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from bus.wire.errors import ConfigError
from conf.changing import HOT, change, check, differing, replace, text_of, write_first
from conf.keys import nearest_name
from conf.paths import find_paths
from conf.sections import masked
from gateway.cli.command import Invocation
from gateway.cli.output.errors import USAGE, CliError
from gateway.cli.output.own_editor import asker, open_editor

NOTHING = "nothing was written"
EVERYWHERE_S = 90.0
"""Deadline in seconds of a change on all nodes."""
OF_ALL = typer.Option(
    "--all", help="Change every node of the cluster; this home's node must be running."
)


def show(
    invocation: Invocation,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME", help="Settings (`http_port`) or sections (`runner`); default: all."
        ),
    ] = None,
) -> None:
    """Show every setting, or the given settings: the value, its source, and the running value if
    that differs. Also show the node's folders."""
    settings, output = invocation.settings(), invocation.output
    paths = settings.paths
    folders = {
        "config": paths.config_file,
        "data": paths.data,
        "state": paths.state,
        "runtime": paths.runtime,
        "logs": paths.logs,
    }
    rows = _chosen_rows(
        [(key, masked(key, value), source) for key, value, source in settings.rows()], names or ()
    )
    shown = {key for key, _, _ in rows}
    ran = {
        key: value
        for key, value in differing(paths, settings).items()
        if key in shown and key not in HOT
    }
    output.document(
        {
            "settings": {
                key: {"value": value, "source": source}
                | ({"running": masked(key, ran[key])} if key in ran else {})
                for key, value, source in rows
            },
            "folders": {name: str(path) for name, path in folders.items()},
            "url": settings.url,
        }
    )
    output.table(("setting", "value", "source"), [(k, _plain(v), s) for k, v, s in rows])
    if not names:
        output.say("")
        output.table(("folder", "path"), folders.items())
    for key, value in ran.items():
        output.warn(f"{key}: the node runs with {_plain(masked(key, value))}; {_when(key)}")


def set_(
    invocation: Invocation,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME VALUE",
            help="Pairs of a setting (`runner.max_rows`) and its value; lists use commas. "
            "Put `--` before a negative value: `-- keep_alive_s -1`.",
        ),
    ],
    of_all: Annotated[bool, OF_ALL] = False,
) -> None:
    """Write settings to shoal.toml. The rest of the file stays as it is."""
    if len(words) % 2:
        text = f"{words[-1]} has no value; settings are pairs of NAME VALUE"
        raise CliError(text, remedy=f"`shoal config set {words[-1]} VALUE`", code=USAGE)
    wanted = dict(zip(words[::2], words[1::2], strict=True))
    if of_all:
        _change_everywhere(invocation, {"set": wanted})
    else:
        _change(invocation, wanted, ())


def unset(
    invocation: Invocation,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="Settings, such as `runner.max_rows`.")
    ],
    of_all: Annotated[bool, OF_ALL] = False,
) -> None:
    """Remove settings from shoal.toml, so that their defaults apply."""
    if of_all:
        _change_everywhere(invocation, {"unset": names})
    else:
        _change(invocation, {}, names)


def path(invocation: Invocation) -> None:
    """Print the path of shoal.toml, even if the file does not exist."""
    file = find_paths(invocation.home).config_file
    invocation.output.document({"path": str(file), "exists": file.exists()})
    invocation.output.say(str(file))


def edit(invocation: Invocation) -> None:
    """Edit shoal.toml in your editor. Only a valid file is written."""
    paths, output = find_paths(invocation.home), invocation.output
    write_first(paths)
    before = text_of(paths) or ""
    folder = Path(tempfile.mkdtemp(prefix="shoal-config-"))
    file = folder / "shoal.toml"
    file.write_text(before)
    file.chmod(0o600)
    asks = asker(output)
    try:
        while True:
            open_editor(file, "shoal config edit")
            try:
                text = _read(file)
                check(paths, text)
            except ConfigError as error:
                if not asks(str(error)):
                    raise
            else:
                break
        if text != before:
            replace(paths, text, before)
    except (KeyboardInterrupt, typer.Abort, ConfigError, CliError) as error:
        if file.exists() and file.read_text(errors="replace") == before:
            shutil.rmtree(folder)
            raise
        where = f"{NOTHING}; your text is in {file}"
        if not isinstance(error, ConfigError):
            output.warn(where)
            raise
        raise CliError(str(error), remedy=where, code=USAGE) from error
    shutil.rmtree(folder)
    output.say(
        f"{paths.config_file} is unchanged" if text == before else _written_message(invocation)
    )


def _chosen_rows(
    rows: Sequence[tuple[str, Any, str]], names: Sequence[str]
) -> list[tuple[str, Any, str]]:
    """Return the rows of the named settings and sections. If none is named, return all rows. Raises
    CliError for an unknown name."""
    if not names:
        return list(rows)
    keys = {key for key, _, _ in rows}
    choices = keys | {key.rpartition(".")[0] for key in keys if "." in key}
    for name in names:
        if name not in choices:
            near = nearest_name(name, choices)
            raise CliError(
                f"no setting {name}" + (f"; did you mean {near}?" if near else ""),
                remedy="list the settings with `shoal config show`",
                code=USAGE,
            )
    wanted = tuple(names)
    inside = tuple(f"{name}." for name in names)
    return [row for row in rows if row[0] in wanted or row[0].startswith(inside)]


def _read(file: Path) -> str:
    """Return the text of a file. Raises ConfigError."""
    try:
        return file.read_text()
    except (OSError, ValueError) as error:
        raise ConfigError(f"shoal.toml: {error}") from error


def _change(invocation: Invocation, put: Mapping[str, str], drop: Sequence[str]) -> None:
    """Change the file, and tell the user when the changes take effect. Raises CliError."""
    paths = find_paths(invocation.home)
    try:
        change(paths, put, drop)
    except ConfigError as error:
        remedy = f"{NOTHING}; list the settings with `shoal config show`"
        raise CliError(str(error), remedy=remedy, code=USAGE) from error
    output = invocation.output
    settings = invocation.settings()
    now = {key: (value, source) for key, value, source in settings.rows()}
    ran = differing(paths, settings)
    rows: dict[str, Any] = {}
    for key in (*put, *drop):
        value, source = now[key]
        rows[key] = {"value": masked(key, value), "source": source, "restart": _waits(key, ran)}
        output.say(f"{key} is {_plain(masked(key, value))}, from {source}")
        if key in put and not source.startswith("file "):
            output.warn(f"{source} overrides shoal.toml: {key} keeps the value from there")
        elif _waits(key, ran):
            output.note(f"{key}: {_when(key)}")
    output.document({"file": str(paths.config_file), "settings": rows})


def _change_everywhere(invocation: Invocation, body: Mapping[str, Any]) -> None:
    """Change the files of all nodes, and show their new values. Raises CliError if a node
    refused."""
    answer = invocation.api().put("/settings?nodes=all", body, timeout_s=EVERYWHERE_S)
    output, keys = invocation.output, [*body.get("set", ()), *body.get("unset", ())]
    rows = {row["key"]: row for row in answer["settings"] if row["key"] in keys}
    names = [answer["name"], *(node["name"] for node in answer["nodes"] if not node["why"])]
    for key, row in rows.items():
        output.say(f"{key} is {_plain(row['value'])} on {', '.join(names)}")
        for other in row["elsewhere"]:
            if other["name"] in names:
                output.warn(f"{other['name']}: {key} is {_plain(other['value'])} there")
        if key in body.get("set", ()) and not row["source"].startswith("file "):
            output.warn(f"{row['source']} overrides shoal.toml: {key} keeps its value on this node")
        elif row["takes"] != "at once":
            output.note(f"{key}: run `shoal restart` on each node to apply it")
    missing = [node for node in answer["nodes"] if node["why"]]
    if missing:
        raise CliError(
            "; ".join(f"not on {node['name']}: {node['why']}" for node in missing),
            remedy=(
                "the other nodes keep the new value; repeat the command when these nodes accept it"
            ),
        )
    output.document({"node": answer["node"], "nodes": answer["nodes"], "settings": rows})


def _written_message(invocation: Invocation) -> str:
    """Return the message for the user after shoal.toml was edited and written."""
    settings = invocation.settings()
    paths = settings.paths
    waiting = [key for key in differing(paths, settings) if key not in HOT]
    later = f"; run `shoal restart` to apply {', '.join(waiting)}" if waiting else ""
    return f"wrote {paths.config_file}{later}"


def _waits(key: str, ran: Mapping[str, Any]) -> bool:
    return key in ran and key not in HOT


def _when(key: str) -> str:
    return "running processes apply it at once" if key in HOT else "run `shoal restart` to apply it"


def _plain(value: object) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(str, cast(Sequence[object], value))) or "-"
    return str(value) if value != "" else "-"
