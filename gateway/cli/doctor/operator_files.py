"""Talks to the disk and the node: checks of the files that an operator writes next to `shoal.toml`.

Each check returns ok, warn or error, its finding and the remedy. Checks change nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from bus.models.tasks import (
    ENGINES_FILE,
    CommandEngine,
    FileTable,
    read_clients,
    read_engines,
    read_tasks,
)
from bus.process.installation import ENVIRONMENTS, Environment, environment_in
from bus.wire.errors import ConfigError
from conf.settings import Settings
from gateway.cli.doctor.check import Finding
from gateway.cli.node.node_api import own_api
from gateway.cli.output.errors import CliError

Table = TypeVar("Table", bound=FileTable)


def tasks(settings: Settings, running: bool) -> Finding:
    """Check `tasks.toml` on the disk, and that the node has the keys that the file names."""
    file = settings.paths.tasks_file
    table = _read("tasks", "tasks", file, read_tasks, running=running)
    if isinstance(table, Finding):
        return table
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
    table = _read("clients", "profiles", file, read_clients, running=running)
    if isinstance(table, Finding):
        return table
    return Finding("clients", "ok", f"{len(table.clients)} profiles in {file}")


def engines(settings: Settings, running: bool) -> Finding:
    """Check `engines.toml` on the disk, and that its programs are installed."""
    file = settings.paths.config / ENGINES_FILE
    table = _read("engines", "engines", file, read_engines, running=running)
    if isinstance(table, Finding):
        return table
    counts, root = f"engines: {len(table.engines)} in {file}", settings.paths.data / ENVIRONMENTS
    venvs = {
        name: environment_in(root, engine.venv)
        for name, engine in table.engines.items()
        if engine.venv
    }
    lacking = sorted({table.engines[name].venv for name, venv in venvs.items() if venv is None})
    if lacking:
        remedy = f"create the environment: `shoal engine add {lacking[0]} PACKAGE==VERSION`"
        text = f"{counts}; without their environments: {', '.join(lacking)}"
        return Finding("engines", "error", text, remedy)
    missing = [
        f"{engine.program} ({name})"
        for name, engine in table.engines.items()
        if not _is_installed(engine, venvs.get(name))
    ]
    if missing:
        remedy = "install these programs, or write their full paths into the file"
        return Finding("engines", "warn", f"{counts}; not found: {', '.join(missing)}", remedy)
    return Finding("engines", "ok", counts)


def _is_installed(engine: CommandEngine, venv: Environment | None) -> bool:
    variables = dict(os.environ)
    if venv is not None:
        variables = venv.variables(variables, {})
    return shutil.which(engine.program, path=variables.get("PATH")) is not None


def _read(
    name: str, noun: str, file: Path, read: Callable[[str], Table], *, running: bool
) -> Table | Finding:
    """Return the content of a file; the finding if it does not exist or is wrong. `noun` is what
    the file defines."""
    if not file.exists():
        return Finding(name, "ok", f"no {noun}; {file} does not exist")
    try:
        return read(file.read_text())
    except (ConfigError, UnicodeDecodeError) as error:
        goes_on = "the node keeps the last valid version" if running else f"the node has no {noun}"
        remedy = f"correct the file; until then {goes_on}"
        return Finding(name, "error", f"{error} ({file})", remedy)
