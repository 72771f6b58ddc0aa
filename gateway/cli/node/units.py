"""What starts a node with its machine: systemd's unit and launchd's property list, as text.

Pure. Either runs `shoal up --foreground --stay`, which holds supervisord as its child: told to end,
it takes every process down in good order, and only when that lasts too long does the system kill
the rest (`KillMode=mixed`). An end that was asked for (`shoal down`) is not undone; any other is.
Nothing goes through a shell, and every value is quoted by the rules of the file it stands in
(systemd.syntax(7), systemd.service(5); Apple's launchd.plist(5)).
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
"""From SIGTERM to SIGKILL. supervisord's processes get 60 s of it."""
AGAIN_S = 5
OPEN_FILES = 65_536
"""launchd's own limit is 256."""


class NotAUnit(ValueError):
    """A value that the file cannot hold, or a node that cannot be started so."""


@dataclass(frozen=True, slots=True)
class Account:
    """The user that the node runs as, and where that user's own folder lies."""

    name: str
    folder: str


@dataclass(frozen=True, slots=True)
class Service:
    """A node to be started with its machine. `name` is the unit's, `home` empty for the user's
    own folders; `environment` is what it needs beside HOME."""

    name: str
    python: str
    home: str
    account: Account
    environment: Mapping[str, str]

    def shoal(self, *verb: str) -> tuple[str, ...]:
        """Return the command line of a verb, for this node."""
        home = ("--home", self.home) if self.home else ()
        return (self.python, "-P", "-m", "gateway.cli.app", *verb, *home)


@dataclass(frozen=True, slots=True)
class Plan:
    """A file for a service, and what the system is told: `start` after the file was written, `stop`
    before it goes; `before` comes before `start` and may fail, where there is nothing to end."""

    service: Service
    path: str
    text: str
    start: tuple[tuple[str, ...], ...]
    stop: tuple[tuple[str, ...], ...]
    needs_root: bool
    note: str = ""
    before: tuple[tuple[str, ...], ...] = ()


def plan(service: Service, system: System, scope: Scope) -> Plan:
    """Return what installing the service means. Raises NotAUnit."""
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
    """Return whether a file is one that `shoal service install` wrote."""
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
        f"SuccessExitStatus={INTERRUPTED}",  # how `up --foreground` ends when it is told to
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
        else "it starts when you log in; run `loginctl enable-linger` to start it with the machine",
    )


def _user_folder(service: Service) -> str:
    config = service.environment.get("XDG_CONFIG_HOME") or f"{service.account.folder}/.config"
    return f"{config}/systemd/user"


def _quoted(text: str) -> str:
    """Return a double-quoted word, `%` doubled: it begins a specifier in every setting."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'


def _argument(text: str) -> str:
    """Return the text as a quoted word of a command line, where `$` begins a variable too."""
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
        # launchd keeps what it was told: a job of that name has to go before another one comes
        before=(("launchctl", "bootout", f"system/{label}"),),
    )
