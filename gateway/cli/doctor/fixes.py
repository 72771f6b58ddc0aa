"""Talks to the terminal and starts commands: `shoal doctor --fix` removes the problems it can.

It changes only shoal's own Python environment and the permissions of this user's files.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from bus.process.installation import command_to_add
from gateway.cli.doctor.check import Finding, Fix
from gateway.cli.output.errors import CliError

if TYPE_CHECKING:
    from gateway.cli.output.terminal import Output

COMMAND_S = 1800.0
"""Deadline of one command, in seconds. MLX for CUDA and its libraries are some 1.5 GB."""


def fix_by_adding(package: str) -> Fix:
    """Return the fix that adds a package to shoal's environment."""
    return Fix((tuple(shlex.split(command_to_add(package))),))


def fix_all(findings: Iterable[Finding], output: Output) -> bool:
    """Run the commands of all findings that have a fix. Return whether there were any.

    Raises CliError if a command fails. Then the finding's `undo` has been run, and later findings
    are not fixed.
    """
    fixable = [(finding, finding.fix) for finding in findings if finding.fix is not None]
    for finding, fix in fixable:
        output.say(f"{finding.name}: {finding.found}")
        for command in (*fix.commands, *fix.proof):
            trouble = _run(command, output)
            if not trouble:
                continue
            undone = [_run(undo, output) for undo in fix.undo]
            after = ""
            if fix.undo:
                after = "; undoing the fix failed too" if any(undone) else "; the fix was undone"
            raise CliError(
                f"the fix of {finding.name} failed: `{shlex.join(command)}` {trouble}{after}",
                remedy="the command's output is above",
            )
    return bool(fixable)


def _run(command: tuple[str, ...], output: Output) -> str:
    """Run a command, with its output on standard error. Return what went wrong; empty if
    nothing."""
    output.say(f"  {shlex.join(command)}")
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            timeout=COMMAND_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"did not end within {COMMAND_S:g} s"
    except KeyboardInterrupt:
        return "was interrupted"
    except OSError as error:
        return f"cannot be started: {error.strerror or error}"
    return f"exited with {done.returncode}" if done.returncode else ""
