"""Lists the verbs of the command line with their arguments and options.

Names, types, defaults, variables and whether they are required are told; help texts are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, get_args, get_origin

import typer.main
from typer.testing import CliRunner

from gateway.cli.app import LATER, MEANT, app

NOT_OURS = ("help", "install_completion", "show_completion")


def commands() -> dict[str, Any]:
    """List each verb, the words that are meant as one, and those that are yet to come."""
    root = typer.main.get_command(app)
    everywhere = _parameters(root)
    return {
        "every verb": everywhere,
        "verbs": {
            " ".join(path): _told(command, everywhere) for path, command in _walked(root, ())
        },
        "meant": MEANT,
        "later": sorted(LATER),
    }


def help_exit_codes() -> dict[str, int]:
    """Ask every verb for its help, and tell what it exits with."""
    root = typer.main.get_command(app)
    runner = CliRunner()
    return {
        " ".join(path): runner.invoke(app, [*path, "--help"]).exit_code
        for path, _ in _walked(root, ())
    }


def _walked(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from _walked(inner, (*path, name))


def _told(command: Any, everywhere: list[dict[str, Any]]) -> dict[str, Any]:
    made = _parameters(command)
    parameters = [one["names"] if one in everywhere else one for one in made]
    return {"hidden": command.hidden, "parameters": parameters}


def _parameters(command: Any) -> list[dict[str, Any]]:
    return [_parameter(one) for one in command.params if one.name not in NOT_OURS]


def _parameter(one: Any) -> dict[str, Any]:
    default = one.default
    plain = default is None or isinstance(default, str | int | float | bool | list | tuple)
    told = {
        "sort": one.param_type_name,
        "names": " ".join([*one.opts, *one.secondary_opts]),
        "type": _type(one.type_descriptor.annotation),
        "metavar": one.metavar,
        "default": default if plain else "computed",
        "required": one.required or None,
        "many": None if (one.nargs, one.multiple) == (1, False) else [one.nargs, one.multiple],
        "range": None if one.min is one.max is None else [one.min, one.max],
        "variable": one.envvar,
        "hidden": one.hidden or None,
    }
    return {name: value for name, value in told.items() if value is not None}


def _type(annotation: Any) -> Any:
    if get_origin(annotation) is not None:
        return [one if isinstance(one, str) else _type(one) for one in get_args(annotation)]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [one.value for one in annotation]
    return annotation.__name__
