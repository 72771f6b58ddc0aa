"""Talks to the user's editor, and asks whether to edit a rejected text again."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import typer

from gateway.cli.output.errors import CliError
from gateway.cli.output.terminal import Output

USUAL_EDITOR = "vi"


def asker(output: Output) -> Callable[[str], bool]:
    """Return a function that shows why a text was rejected and asks whether to edit it again.
    Without a terminal its answer is no."""

    def ask(why: str) -> bool:
        if output.as_json or not output.err.is_terminal:
            return False
        output.warn(why)
        return typer.confirm("Edit it again?", default=True, err=True)

    return ask


def open_editor(file: Path, verb: str) -> None:
    """Open the file in the user's editor and wait. `verb` is the command, named in the remedy.
    Raises CliError."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or USUAL_EDITOR
    remedy = f"set $EDITOR, for example `EDITOR=nano {verb}`"
    try:
        ended = subprocess.call([*shlex.split(editor), str(file)])
    except (OSError, ValueError) as error:
        raise CliError(f"cannot start the editor {editor!r}: {error}", remedy=remedy) from error
    if ended:
        raise CliError(f"the editor {editor!r} exited with {ended}; nothing was written")
