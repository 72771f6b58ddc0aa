"""Talks to the disk: renders supervisord's configuration from the settings.

The bus starts first and stops last. The gateway stops before the runners, so that open requests end
with an error message. A killed service is restarted with practically unlimited retries; one second
counts as a successful start. Only the worker starts runner slots. Each program has a log file of at
most 10 MB, with its standard error, and three older ones. Each `%` in a path is doubled, because
supervisord expands single ones.
"""

from __future__ import annotations

import json
import os
import pwd
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bus.process.installation import own_installation
from bus.wire.errors import ConfigError
from conf.keys import environment_of
from conf.paths import HOME_VARIABLE
from conf.settings import Settings

LOG_BYTES = "10MB"
LOG_BACKUPS = 3
NEVER_FATAL = 1_000_000
RUNNER_STOP_S = 5
"""Seconds from SIGTERM to SIGKILL when a runner is stopped."""


@dataclass(frozen=True, slots=True)
class Program:
    """One service. Services start in the order of rising `priority` and stop in the opposite order.
    The master stops first and hands over its term; then the gateway has time for the answers in
    progress."""

    name: str
    priority: int
    stop_wait_s: int


PROGRAMS: tuple[Program, ...] = (
    Program("bus", 10, 5),
    Program("master", 70, 5),
    Program("worker", 30, 5),
    Program("telemetry", 40, 5),
    Program("gateway", 60, 10),
)
RUNNER_PRIORITY = 50
SERVICES: tuple[str, ...] = tuple(program.name for program in PROGRAMS)


def render(
    settings: Settings, *, python: str, blas: Mapping[str, str], user: str | None = None
) -> str:
    """Return the whole configuration. `blas` are the environment variables that make a runner
    preload a BLAS library. `user` is set only if supervisord runs as root, to avoid its warning.
    Raises ConfigError for a path that supervisord's format cannot contain."""
    paths = settings.paths
    socket = _plain(settings.endpoints.supervisor)
    environment = _environment(settings)
    sections = [
        _section("unix_http_server", {"file": socket, "chmod": "0700"}),
        _section(
            "supervisord",
            {
                "identifier": "shoal",
                "logfile": _plain(str(paths.logs / "supervisord.log")),
                "logfile_maxbytes": LOG_BYTES,
                "logfile_backups": str(LOG_BACKUPS),
                "loglevel": "info",
                "pidfile": _plain(str(paths.supervisord_pid)),
                "childlogdir": _plain(str(paths.logs)),
                "directory": _plain(str(paths.run)),
                "nodaemon": "false",
                "umask": "077",
                "minfds": "1024",
                **({} if user is None else {"user": user}),
            },
        ),
        _section(
            "rpcinterface:supervisor",
            {"supervisor.rpcinterface_factory": "supervisor.rpcinterface:make_main_rpcinterface"},
        ),
        _section("supervisorctl", {"serverurl": f"unix://{socket}", "prompt": "shoal"}),
    ]
    sections += [_service(settings, program, python, environment) for program in PROGRAMS]
    runners = {**environment, **blas, "TMPDIR": str(paths.kernels)}
    sections.append(_runners(settings, python, runners))
    return "\n".join(sections)


def write_conf(settings: Settings, *, blas: Mapping[str, str], beside_python: bool = False) -> Path:
    """Write `<state>/supervisord.conf`, and return its path.

    `beside_python` writes a second file into `<environment>/etc/`, where `supervisorctl` of this
    environment looks first.
    """
    text = render(
        settings,
        python=sys.executable,
        blas=blas,
        user=pwd.getpwuid(0).pw_name if os.getuid() == 0 else None,
    )
    path = settings.paths.supervisord_conf
    _write(path, text)
    if beside_python:
        folder = Path(sys.prefix) / "etc"
        folder.mkdir(exist_ok=True)
        _write(folder / "supervisord.conf", text)
    return path


def writes_venv(settings: Settings, *, required: bool) -> bool:
    """Return whether to write a configuration into this environment, too, for its `supervisorctl`.
    Without the user's request (`required`) only the default home's node does, and only in a
    writable environment whose commands the user calls."""
    prefix = Path(sys.prefix)
    if sys.prefix == sys.base_prefix or not (prefix / "bin" / "supervisorctl").exists():
        return False
    is_users = own_installation().kind in ("clone", "environment") and os.access(prefix, os.W_OK)
    return required or (is_users and not settings.paths.chosen)


def remember_start(settings: Settings) -> None:
    """Save the flags and the settings file of this `shoal up` for later commands."""
    paths = settings.paths
    file = paths.config_file
    _write(paths.up_config, file.read_text() if file.exists() else "")
    _write(paths.up_file, json.dumps(dict(settings.flags), default=str))


def supervisord_command(settings: Settings, *extra: str, platform: str = sys.platform) -> list[str]:
    """Return the command that starts supervisord in the background (`-n`: in the foreground).

    On Linux supervisord forks the services from itself (decision 0068). On macOS it executes them,
    because a forked process cannot use Metal and other frameworks there.
    """
    module = "bus.process.zygote" if platform == "linux" else "supervisor.supervisord"
    conf = str(settings.paths.supervisord_conf)
    return [sys.executable, "-P", "-m", module, "-c", conf, *extra]


def _service(
    settings: Settings, program: Program, python: str, environment: Mapping[str, str]
) -> str:
    return _section(
        f"program:{program.name}",
        {
            **_common(settings, python, program.name, program.name),
            "priority": str(program.priority),
            "autostart": "true",
            "autorestart": "true",
            "startsecs": "1",
            "startretries": str(NEVER_FATAL),
            "stopwaitsecs": str(program.stop_wait_s),
            "environment": _pairs(environment),
        },
    )


def _runners(settings: Settings, python: str, environment: Mapping[str, str]) -> str:
    slot = "%(process_num)02d"
    return _section(
        "program:runner",
        {
            **_common(settings, python, "runner", f"runner-{slot}"),
            "process_name": slot,
            "numprocs": str(settings.slots),
            "numprocs_start": "0",
            "priority": str(RUNNER_PRIORITY),
            "autostart": "false",
            "autorestart": "false",
            "startsecs": "0",
            "startretries": "0",
            "stopwaitsecs": str(RUNNER_STOP_S),
            "environment": f"{_pairs(environment)},SHOAL_SLOT={slot}",
        },
    )


def _common(settings: Settings, python: str, package: str, log: str) -> dict[str, str]:
    # supervisord 4 expands a log file's name twice
    folder = _plain(_plain(str(settings.paths.logs)))
    return {
        "command": _plain(f"{shlex.quote(python)} -P -m {package}", quoted=True),
        "directory": _plain(str(settings.paths.run)),
        "stopsignal": "TERM",
        "stopasgroup": "true",
        "killasgroup": "true",
        "redirect_stderr": "true",
        "stdout_logfile": f"{folder}/{log}.log",
        "stdout_logfile_maxbytes": LOG_BYTES,
        "stdout_logfile_backups": str(LOG_BACKUPS),
    }


def _environment(settings: Settings) -> dict[str, str]:
    home = {HOME_VARIABLE: str(settings.paths.home)} if settings.paths.chosen else {}
    return {"PYTHONUNBUFFERED": "1", **home, **environment_of(settings.flags)}


def _pairs(variables: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_plain(value)}"' for name, value in sorted(variables.items()))


def _plain(text: str, *, quoted: bool = False) -> str:
    """Return text in the form that supervisord's configuration needs, with `%` doubled. Raises
    ConfigError for characters that cannot be escaped: a quote ends a value, ` ;` and ` #` begin a
    comment."""
    bad = ("\n", "\r", '"', " ;", " #") if quoted else ("\n", "\r", '"', "'", " ;", " #")
    for token in bad:
        if token in text:
            raise ConfigError(
                f"{text!r} contains {token!r}, which supervisord's configuration does not allow; "
                "choose another folder (`--home DIR`)"
            )
    return text.replace("%", "%%")


def _section(name: str, values: Mapping[str, str]) -> str:
    return "\n".join([f"[{name}]", *(f"{key}={value}" for key, value in values.items()), ""])


def _write(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.chmod(0o600)
    fresh.replace(path)
