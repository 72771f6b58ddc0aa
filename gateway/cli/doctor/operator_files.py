"""Talks to the disk and the node: checks of the files that an operator writes next to `shoal.toml`.

Each check returns ok, warn or error, its finding and the remedy. Checks change nothing.
"""

from __future__ import annotations

import shutil
from typing import Any, cast

from bus.models.tasks import ENGINES_FILE, read_clients, read_engines, read_tasks
from bus.wire.errors import ConfigError
from conf.settings import Settings
from gateway.cli.doctor.check import Finding
from gateway.cli.node.node_api import own_api
from gateway.cli.output.errors import CliError


def tasks(settings: Settings, running: bool) -> Finding:
    """Check `tasks.toml` on the disk, and that the node has the keys that the file names."""
    file = settings.paths.tasks_file
    if not file.exists():
        return Finding("tasks", "ok", f"no tasks; {file} does not exist")
    try:
        table = read_tasks(file.read_text())
    except (ConfigError, UnicodeDecodeError) as error:
        goes_on = "the node keeps the last valid version" if running else "the node has no tasks"
        return Finding(
            "tasks", "error", f"{error} ({file})", f"correct the file; until then {goes_on}"
        )
    counts = f"{len(table.tasks)} tasks, {len(table.providers)} providers in {file}"
    if not running:
        return Finding("tasks", "ok", counts)
    try:
        answer = own_api(settings).get("/tasks", timeout_s=5.0)
    except CliError as problem:
        return Finding("tasks", "warn", f"{counts}; {problem.message}", "see `shoal status`")
    rows = cast(list[dict[str, Any]], answer["providers"])
    keyless = [f"{row['key_env']} ({row['name']})" for row in rows if not row["has_key"]]
    if keyless:
        remedy = "set these variables in the environment that starts the node, then `shoal restart`"
        return Finding("tasks", "warn", f"{counts}; without a key: {', '.join(keyless)}", remedy)
    return Finding("tasks", "ok", counts)


def clients(settings: Settings, running: bool) -> Finding:
    """Check `clients.toml` on the disk."""
    file = settings.paths.clients_file
    if not file.exists():
        return Finding("clients", "ok", f"no profiles; {file} does not exist")
    try:
        table = read_clients(file.read_text())
    except (ConfigError, UnicodeDecodeError) as error:
        goes_on = "the node keeps the last valid version" if running else "the node has no profiles"
        return Finding(
            "clients", "error", f"{error} ({file})", f"correct the file; until then {goes_on}"
        )
    return Finding("clients", "ok", f"{len(table.clients)} profiles in {file}")


def engines(settings: Settings, running: bool) -> Finding:
    """Check `engines.toml` on the disk, and that its programs are installed."""
    file = settings.paths.config / ENGINES_FILE
    if not file.exists():
        return Finding("engines", "ok", f"no engines; {file} does not exist")
    try:
        table = read_engines(file.read_text())
    except (ConfigError, UnicodeDecodeError) as error:
        goes_on = "the node keeps the last valid version" if running else "the node has no engines"
        return Finding(
            "engines", "error", f"{error} ({file})", f"correct the file; until then {goes_on}"
        )
    missing = [
        f"{engine.program} ({name})"
        for name, engine in table.engines.items()
        if shutil.which(engine.program) is None
    ]
    counts = f"engines: {len(table.engines)} in {file}"
    if missing:
        remedy = "install these programs, or write their full paths into the file"
        return Finding("engines", "warn", f"{counts}; not found: {', '.join(missing)}", remedy)
    return Finding("engines", "ok", counts)
