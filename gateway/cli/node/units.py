"""Services that start a node with its machine: systemd's unit and launchd's property list, as text.

Pure. Both run `shoal up --foreground --stay`, which has supervisord as its child. On SIGTERM that
command stops every process in order. Only if that takes too long, the system kills the remaining
processes (`KillMode=mixed`). A stop by the user (`shoal down`) is final; after a failure the system
starts the node again. No shell interprets the command line. Values are quoted by the rules of their
file (systemd.syntax(7), systemd.service(5); Apple's launchd.plist(5)).
"""

from __future__ import annotations

import plistlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gateway.cli.exit_codes import INTERRUPTED

System = Literal["linux", "darwin"]
Scope = Literal["system", "user"]
MARK = "written by `shoal service install`; `shoal service uninstall` removes it"
STOP_S = 90
"""Seconds from SIGTERM to SIGKILL. supervisord's processes get 60 of these seconds to end."""
AGAIN_S = 5
OPEN_FILES = 65_536
"""The limit of open files in launchd's property list. launchd's own default is 256."""


class NotAUnit(ValueError):
    """The system cannot start a node this way, or a value cannot be written into the unit's
    file."""


@dataclass(frozen=True, slots=True)
class Account:
    """The user that the node runs as, and that user's home folder."""

    name: str
    folder: str


@dataclass(frozen=True, slots=True)
class Service:
    """A node to start with its machine. `name` is the unit's name; `home` is empty for the user's
    default folders; `environment` holds variables other than HOME."""

    name: str
    python: str
    home: str
    account: Account
    environment: Mapping[str, str]

    def shoal(self, *verb: str) -> tuple[str, ...]:
        """Return the command line of a verb for this node."""
        home = ("--home", self.home) if self.home else ()
        return (self.python, "-P", "-m", "gateway.cli.app", *verb, *home)


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan to install or remove a service: its file, and commands for the system. `start` runs
    after the file is written, and `stop` before the file is deleted. `before` runs before `start`;
    it may fail if no service runs that it could stop."""

    service: Service
    path: str
    text: str
    start: tuple[tuple[str, ...], ...]
    stop: tuple[tuple[str, ...], ...]
    needs_root: bool
    note: str = ""
    before: tuple[tuple[str, ...], ...] = ()


def plan(service: Service, system: System, scope: Scope) -> Plan:
    """Return the plan to install the service. Raises NotAUnit."""
    if system == "darwin":
        if scope == "user":
            raise NotAUnit(
                "on macOS a node needs a LaunchDaemon (`--scope system`): agents run only "
                "while a user is "
                "logged in, and need permission to use the local network"
            )
        return _launchd(service)
    return _systemd(service, scope)


def command(service: Service) -> tuple[str, ...]:
    """Return the command line that starts the node. Raises NotAUnit for a control character."""
    words = service.shoal("up", "--foreground", "--stay")
    for word in (*words, *service.environment.values(), service.account.folder):
        if any(ord(character) < 32 or ord(character) == 127 for character in word):
            raise NotAUnit(f"{word!r} contains a control character")
    return words


def is_ours(text: str) -> bool:
    """Return whether `shoal service install` wrote the file."""
    return MARK in text


def _systemd(service: Service, scope: Scope) -> Plan:
    whole = scope == "system"
    environment = {"SHOAL_LAUNCHED_BY": "systemd", **service.environment}
    lines = [
        f"# {MARK}",
        "[Unit]",
        f"Description={_value(f'shoal node of {service.account.name}')}",
        *(["Wants=network-online.target", "After=network-online.target"] if whole else []),
        "",
        "[Service]",
        "Type=exec",
        *([f"User={_value(service.account.name)}"] if whole else []),
        *(f"Environment={_quoted(f'{k}={v}')}" for k, v in sorted(environment.items())),
        f"ExecStart={' '.join(_argument(word) for word in command(service))}",
        "Restart=on-failure",
        f"RestartSec={AGAIN_S}",
        f"SuccessExitStatus={INTERRUPTED}",  # exit code of `up --foreground` after SIGTERM
        "KillMode=mixed",
        f"TimeoutStopSec={STOP_S}",
        f"LimitNOFILE={OPEN_FILES}",
        "",
        "[Install]",
        f"WantedBy={'multi-user.target' if whole else 'default.target'}",
        "",
    ]
    unit = f"{service.name}.service"
    control = ("systemctl",) if whole else ("systemctl", "--user")
    folder = "/etc/systemd/system" if whole else _user_folder(service)
    return Plan(
        service=service,
        path=f"{folder}/{unit}",
        text="\n".join(lines),
        start=((*control, "daemon-reload"), (*control, "enable", "--now", unit)),
        stop=((*control, "disable", "--now", unit),),
        needs_root=whole,
        note=""
        if whole
        else "shoal starts when you log in; run `loginctl enable-linger` to start it at boot",
    )


def _user_folder(service: Service) -> str:
    config = service.environment.get("XDG_CONFIG_HOME") or f"{service.account.folder}/.config"
    return f"{config}/systemd/user"


def _quoted(text: str) -> str:
    """Return a text in double quotes. `%` is doubled, because it begins a specifier in every
    setting."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'


def _argument(text: str) -> str:
    """Return a quoted argument of a command line. `$` is doubled, because it begins a variable in a
    command line."""
    return _quoted(text.replace("$", "$$"))


def _value(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "%%")


def _launchd(service: Service) -> Plan:
    label = f"local.{service.name.replace('-', '.')}"
    log = f"{service.account.folder}/Library/Logs/{service.name}.log"
    job = {
        "Label": label,
        "ProgramArguments": list(command(service)),
        "UserName": service.account.name,
        "EnvironmentVariables": {
            "HOME": service.account.folder,
            "SHOAL_LAUNCHED_BY": "launchd",
            **service.environment,
        },
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 2 * AGAIN_S,
        "ExitTimeOut": STOP_S,
        "ProcessType": "Interactive",
        "SoftResourceLimits": {"NumberOfFiles": OPEN_FILES},
        "HardResourceLimits": {"NumberOfFiles": OPEN_FILES},
        "StandardOutPath": log,
        "StandardErrorPath": log,
    }
    header, body = plistlib.dumps(job).decode().split("<plist", 1)
    path = f"/Library/LaunchDaemons/{label}.plist"
    return Plan(
        service=service,
        path=path,
        text=f"{header}<!-- {MARK} -->\n<plist{body}",
        start=(("launchctl", "bootstrap", "system", path),),
        stop=(("launchctl", "bootout", f"system/{label}"),),
        needs_root=True,
        # launchd keeps a loaded job: unload it before loading another of the same name
        before=(("launchctl", "bootout", f"system/{label}"),),
    )
