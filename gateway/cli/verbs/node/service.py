"""Talks to systemd or launchd: `shoal service` makes a node start with its machine.

`install` writes one file and registers it with the system. `uninstall` stops the service and
deletes the file, if `install` wrote it. With `--dry-run`, both only show what they would do. If the
user lacks the necessary rights, nothing is written.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from bus.process.installation import Installation, own_installation
from conf.paths import find_paths
from gateway.cli.command import Invocation
from gateway.cli.node import units
from gateway.cli.node.processes import run_tool
from gateway.cli.node.units import Account, NotAUnit, Plan, Service
from gateway.cli.output.errors import FAILED, NO_NODE, NOT_FOUND, USAGE, CliError

SYSTEM_S = 120.0
"""Deadline in seconds for systemd or launchd to start or stop a node."""
XDG = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
PATH_VARIABLES = (*XDG, "HF_HOME", "HF_HUB_CACHE")
"""Environment variables that contain paths and are passed to the service. Other settings belong in
shoal.toml."""


class Scope(StrEnum):
    """Whether the service belongs to the machine or to the user."""

    system = "system"
    user = "user"


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """The user and the scope of the service, and whether to show the plan without carrying it
    out."""

    user: Annotated[
        str | None, typer.Option("--user", help="User that runs the node.", metavar="NAME")
    ] = None
    scope: Annotated[
        Scope | None,
        typer.Option(
            help="A system service, or (systemd only) a user service. [default: system for root, "
            "on macOS and with --user; else user]"
        ),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the files and commands.")
    ] = False


def install(
    invocation: Invocation,
    *,
    wanted: ServiceOptions,
    start: Annotated[
        bool,
        typer.Option("--start/--no-start", help="Start the service now, and with the machine."),
    ] = True,
) -> None:
    """Start the node of this home when the machine starts, and restart the node if it fails."""
    check_lasting(own_installation())
    made = _plan(invocation, wanted)
    if wanted.dry_run:
        _show(invocation, made, "would write", (*made.before, *made.start))
        return
    _check_rights(made, "install")
    path = Path(made.path)
    if path.exists() and not units.is_ours(path.read_text(errors="replace")):
        raise CliError(
            f"{path} exists, and shoal did not write it", remedy="move the file away first"
        )
    if start:
        _check_start(made.service)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(made.text)
    path.chmod(0o644)
    if start:
        for command in made.before:
            with contextlib.suppress(CliError):
                _run((command,), "there was none")
        _run(made.start, f"wrote {path}, but could not start the service")
    _done(invocation, made, "installed" if start else "written")
    if not start:
        invocation.output.note(f"start it with {_lines(made.start)}")
    if made.note:
        invocation.output.note(made.note)


def uninstall(
    invocation: Invocation,
    *,
    wanted: ServiceOptions,
    stop: Annotated[bool, typer.Option("--stop/--no-stop", help="Stop the service first.")] = True,
) -> None:
    """Stop the service and remove the file that `install` wrote. Models and settings stay."""
    made = _plan(invocation, wanted)
    if wanted.dry_run:
        _show(invocation, made, "would remove", made.stop)
        return
    path = Path(made.path)
    if not path.exists():
        raise CliError(f"no service is installed ({path} does not exist)", code=NOT_FOUND)
    if not units.is_ours(path.read_text(errors="replace")):
        raise CliError(
            f"shoal did not write {path}", remedy="remove the file yourself if you do not need it"
        )
    _check_rights(made, "uninstall")
    if stop:
        _run(made.stop, f"cannot stop the service; {path} was not removed")
    path.unlink()
    _done(invocation, made, "removed")


def check_lasting(installation: Installation) -> None:
    """Check that the service's Python will still exist at its next start. Environments of uv's
    tools, of pipx and of pip keep their path when shoal is upgraded. Raises CliError."""
    if installation.kind == "temporary":
        raise CliError(
            f"shoal was installed {installation.words}, which may be deleted",
            remedy="install shoal with `uv tool install WHEEL`, then run this again",
        )


def _plan(invocation: Invocation, wanted: ServiceOptions) -> Plan:
    system = sys.platform
    if system not in ("linux", "darwin"):
        raise CliError(f"services need Linux or macOS; this is {system}")
    whole = system == "darwin" or wanted.user is not None or os.geteuid() == 0
    scope = (wanted.scope or (Scope.system if whole else Scope.user)).value
    paths = find_paths(invocation.home)
    account = _account(wanted.user, scope)
    service = Service(
        name=f"shoal-{paths.runtime.name}" if paths.chosen else "shoal",
        python=sys.executable,
        home=str(paths.home) if paths.chosen else "",
        account=account,
        environment=_environment(account, os.environ),
    )
    try:
        return units.plan(service, system, scope)
    except NotAUnit as error:
        raise CliError(str(error), code=USAGE) from error


def _account(user: str | None, scope: units.Scope) -> Account:
    me = pwd.getpwuid(os.geteuid())
    if scope == "user":
        if user not in (None, me.pw_name):
            raise CliError(
                f"only {user} can install a user service of {user}",
                remedy="use `--scope system` for a system service that runs as that user",
                code=USAGE,
            )
        return Account(me.pw_name, me.pw_dir)
    name = user or os.environ.get("SUDO_USER") or ("" if me.pw_uid == 0 else me.pw_name)
    if not name:
        raise CliError(
            "the node needs a user to run as",
            remedy="add `--user NAME` (root only if you intend it)",
            code=USAGE,
        )
    try:
        entry = pwd.getpwnam(name)
    except KeyError as error:
        raise CliError(f"there is no user {name!r} on this machine", code=USAGE) from error
    return Account(entry.pw_name, entry.pw_dir)


def _environment(account: Account, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables in `given` that contain paths of this user's folders. If the service is
    for another user, return none."""
    return {name: given[name] for name in PATH_VARIABLES if given.get(name) and _is_mine(account)}


def _is_mine(account: Account) -> bool:
    return pwd.getpwuid(os.geteuid()).pw_name == account.name


def _check_rights(made: Plan, act: str) -> None:
    if made.needs_root and os.geteuid() != 0:
        me = pwd.getpwuid(os.geteuid()).pw_name
        again = shlex.join(made.service.shoal("service", act))
        own = "" if sys.platform == "darwin" else ", or without root: `--scope user`"
        raise CliError(
            f"writing {made.path} needs root",
            remedy=f"run `sudo {again} --user {me}`{own}; see its effect with `--dry-run`",
            code=FAILED,
        )


def _check_start(service: Service) -> None:
    """Check that the service could start: that the account can run shoal, and that no node of the
    home runs already.

    The check runs as the user of the service, because only that user may have access to the
    folders.
    """
    account = service.account
    entry = pwd.getpwnam(account.name)
    theirs: dict[str, Any] = {
        "user": entry.pw_uid,
        "group": entry.pw_gid,
        "extra_groups": [],
        "env": {"HOME": account.folder, "PATH": os.defpath},
        "cwd": "/",
    }
    try:
        as_user = {} if _is_mine(account) else theirs
        done = run_tool(SYSTEM_S, *service.shoal("status"), "--json", **as_user)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CliError(f"{account.name} cannot run shoal: {error}") from error
    # `status` also exits with 3 if the node runs but its API does not answer; it lists processes
    if done.returncode == 0 or (done.returncode == NO_NODE and _lists_processes(done.stdout)):
        raise CliError(
            "the node of this home is already running",
            remedy="run `shoal down`, then install the service",
        )
    if done.returncode != NO_NODE:
        raise CliError(
            f"{account.name} cannot run shoal",
            details=(done.stderr or done.stdout).strip(),
            remedy=f"allow {account.name} to read {sys.prefix} and the home's folders",
        )


def _lists_processes(document: str) -> bool:
    try:
        return "processes" in json.loads(document)
    except ValueError:
        return False


def _run(commands: Iterable[tuple[str, ...]], trouble: str) -> None:
    waiting = list(commands)
    while waiting:
        try:
            done = run_tool(SYSTEM_S, *waiting[0])
            text, has_failed = (done.stderr or done.stdout).strip(), done.returncode != 0
        except (OSError, subprocess.TimeoutExpired) as error:
            text, has_failed = str(error), True
        if has_failed:
            raise CliError(trouble, details=text, remedy=f"run it yourself: {_lines(waiting)}")
        del waiting[0]


def _show(
    invocation: Invocation, made: Plan, words: str, commands: tuple[tuple[str, ...], ...]
) -> None:
    output = invocation.output
    output.document({**_facts(made, words), "text": made.text, "commands": list(commands)})
    output.say(f"# {words} {made.path}")
    output.say(made.text)
    for command in commands:
        output.say(f"# would run: {shlex.join(command)}")
    if made.needs_root and os.geteuid() != 0:
        output.note("this needs root")


def _done(invocation: Invocation, made: Plan, words: str) -> None:
    invocation.output.document(_facts(made, words))
    invocation.output.say(f"{words} {made.path}")


def _facts(made: Plan, words: str) -> dict[str, Any]:
    return {"status": words, "path": made.path, "needs_root": made.needs_root}


def _lines(commands: Iterable[tuple[str, ...]]) -> str:
    return "; ".join(f"`{shlex.join(command)}`" for command in commands)
