"""Talks to the terminal and the disk: `shoal version`, and `shoal upgrade`, which runs nothing."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from bus.process.installation import (
    NewWheel,
    in_order,
    own_installation,
    shoal_version,
    upgrade_of,
    version_of,
)
from gateway.cli.command import Invocation
from gateway.cli.output.errors import NOT_FOUND, USAGE, CliError

CONSTRAINTS = "constraints.txt"
"""The file of tested versions, which `make wheel` writes beside the wheel."""


def version(invocation: Invocation) -> None:
    """Print the version of shoal, like `shoal --version`."""
    number = shoal_version()
    invocation.output.document({"version": number})
    invocation.output.say(f"shoal {number}")


def upgrade(
    invocation: Invocation,
    wheel: Annotated[
        Path | None,
        typer.Argument(
            help="The new wheel. [default: the newest one beside the installed one]",
            metavar="WHEEL",
        ),
    ] = None,
) -> None:
    """Show how shoal was installed, and the commands that upgrade it. Runs nothing."""
    output, installation, installed = invocation.output, own_installation(), shoal_version()
    new = _wheel_at(wheel) if wheel is not None else newest_beside(installation.source, installed)
    upgrade = upgrade_of(installation, installed, new)
    output.document(
        {
            "version": installed,
            "kind": installation.kind,
            "source": installation.source,
            "commands": [list(command) for command in upgrade.commands],
            "note": upgrade.note,
        }
    )
    output.say(f"shoal {installed} was installed {installation.words}")
    if upgrade.commands:
        output.say("to upgrade it, run:")
        for command in upgrade.commands:
            output.say(f"  {shlex.join(command)}")
        output.say("  shoal restart")
    if upgrade.note:
        output.note(upgrade.note)


def newest_beside(source: str, installed: str) -> NewWheel | None:
    """Return the newest wheel of shoal in the folder of the installed wheel. Return None if the
    source is no wheel, or if the folder has only wheels older than the version `installed`."""
    folder = Path(source).parent
    if not source.endswith(".whl") or not folder.is_dir():
        return None
    wheels = [path for path in folder.iterdir() if version_of(path.name)]
    newest = max(wheels, key=lambda path: in_order(version_of(path.name)), default=None)
    is_older = newest is None or in_order(version_of(newest.name)) < in_order(installed)
    return None if newest is None or is_older else _new_wheel(newest)


def _wheel_at(path: Path) -> NewWheel:
    if not version_of(path.name):
        raise CliError(
            f"{path} is not a wheel of shoal",
            remedy="give a file like shoal_llm-0.1.0-py3-none-any.whl; `make wheel` builds one",
            code=USAGE,
        )
    if not path.is_file():
        raise CliError(f"{path} does not exist", remedy="check the path", code=NOT_FOUND)
    return _new_wheel(path.resolve())


def _new_wheel(path: Path) -> NewWheel:
    pins = path.with_name(CONSTRAINTS)
    return NewWheel(str(path), version_of(path.name), str(pins) if pins.is_file() else "")
