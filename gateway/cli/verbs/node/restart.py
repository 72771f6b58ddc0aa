"""Talks to supervisord: `shoal restart` makes the node run the installed code.

It runs `down`, then `up` with the flags and SHOAL_ variables of the last `up`. The variables are
read from the running node, because the shell of this command may not have them.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Annotated, Any

import psutil
import typer

from bus.process.supervisor import Supervisor
from conf.paths import HOME_VARIABLE, Paths
from conf.settings import LAUNCHED_BY
from gateway.cli.command import Invocation
from gateway.cli.node import processes
from gateway.cli.node.start_flags import SETTINGS, Flags
from gateway.cli.output.errors import CliError, no_node_in
from gateway.cli.verbs.node.down import bring_down
from gateway.cli.verbs.node.up import up


def restart(
    invocation: Invocation,
    *,
    wait_s: Annotated[
        float, typer.Option("--wait", help="Seconds to wait until everything is up.", min=1.0)
    ] = 180.0,
) -> None:
    """Stop the node and start it again with the same options, for example after an update."""
    settings, output = invocation.settings(), invocation.output
    paths, supervisor = settings.paths, Supervisor(settings.endpoints.supervisor)
    pid = supervisor.pid() if supervisor.is_up() else processes.our_supervisord(paths)
    if pid is None:
        raise no_node_in(paths.home, chosen=paths.chosen)
    environment = _environment_of(pid)
    by = environment.get(LAUNCHED_BY, "")
    if (remedy := _by_system(by, paths)) is not None:
        raise CliError(f"{by} started and manages this node", remedy=remedy)
    flags = _remembered_flags(paths)
    with processes.alone(paths):
        ended = bring_down(paths, supervisor, output)
    output.note(f"{settings.node_name} is down ({ended.took_s:.1f} s)")
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    up(invocation, flags=flags, foreground=False, stay=False, write_venv_conf=False, wait_s=wait_s)


def _by_system(by: str, paths: Paths) -> str | None:
    """Return how to restart a node that systemd or launchd manages; None if neither does."""
    name = f"shoal-{paths.runtime.name}" if paths.chosen else "shoal"
    if by == "systemd":
        return f"run `systemctl restart {name}`, with `--user` for a user service"
    if by == "launchd":
        return f"run `sudo launchctl kickstart -k system/local.{name.replace('-', '.')}`"
    return None


def _environment_of(pid: int | None) -> dict[str, str]:
    """Return the SHOAL_ variables of the running node. Processes whose variables cannot be read are
    left out."""
    with contextlib.suppress(psutil.Error):
        variables = psutil.Process(pid).environ()
        ours = {name: value for name, value in variables.items() if name.startswith("SHOAL_")}
        return {name: value for name, value in ours.items() if name != HOME_VARIABLE}
    return {}


def _remembered_flags(paths: Paths) -> Flags:
    """Return the flags of the last `up`."""
    names = {setting: flag for flag, setting in SETTINGS.items()}
    settings: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        settings = json.loads(paths.up_file.read_text())
    return Flags(**{names.get(setting, setting): value for setting, value in settings.items()})
