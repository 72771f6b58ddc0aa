"""Talks to the machine: the checks of `shoal doctor` about this node, one function per check.

Each check returns ok, warn or error, its finding and the remedy. An expected error in a check
becomes a warning. Checks change nothing.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import psutil

from bus.links.certificates import date_of
from bus.links.tls_files import read_pair
from bus.process.installation import PACKAGES, installed_code, own_installation
from bus.process.supervisor import Supervisor
from bus.replica.lost_range import damage_words
from bus.wire.errors import ConfigError
from conf.changing import readable_key
from conf.paths import damaged_files
from conf.settings import Settings
from conf.supervisord import SERVICES
from gateway.cli.doctor.check import Finding, Fix, guarded
from gateway.cli.doctor.fixes import fix_by_adding
from gateway.cli.doctor.mlx_checks import blas, mlx
from gateway.cli.doctor.network_checks import traces
from gateway.cli.doctor.operator_files import clients, engines, tasks
from gateway.cli.node import locks, processes
from gateway.cli.node.node_api import check_is_of, own_api
from gateway.cli.node.trust import pair_notes
from gateway.cli.output.amounts import size
from gateway.cli.output.errors import CliError

DISK_FULL_BYTES = 2 << 30
DISK_LOW_BYTES = 10 << 30
MEMORY_LOW_BYTES = 2 << 30
MIN_FILES = 1024


def run_checks(settings: Settings) -> Iterable[Finding]:
    """Yield the finding of every check. A check of a cause comes before checks of its effects."""
    running = Supervisor(settings.endpoints.supervisor).is_up()
    for check in CHECKS:
        name = check.__name__.strip("_").replace("_", " ")
        # a generator, so that the check runs within the guard
        yield from guarded(name, (run(settings, running) for run in (check,)))


def _python(_settings: Settings, _running: bool) -> Finding:
    interpreter = f"{platform.python_version()} at {sys.executable}"
    if sys.prefix == sys.base_prefix:
        remedy = "install shoal into its own virtual environment"
        return Finding("python", "warn", f"{interpreter}, the system Python", remedy)
    return Finding("python", "ok", interpreter)


def _packages(_settings: Settings, _running: bool) -> Finding:
    """Check that all our packages come from one folder. Their names are common, so another
    installed program may have packages of the same names."""
    places: dict[str, list[str]] = {}
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        where = list(spec.submodule_search_locations or []) if spec else []
        place = str(Path(where[0]).parent) if where else "nowhere"
        places.setdefault(place, []).append(name)
    if len(places) == 1 and "nowhere" not in places:
        text = f"installed {own_installation().words}; all in {next(iter(places))}"
        return Finding("packages", "ok", text)
    text = "; ".join(f"{', '.join(names)} in {place}" for place, names in places.items())
    return Finding("packages", "error", text, "install shoal into its own virtual environment")


def _code(settings: Settings, running: bool) -> Finding:
    """Check that every process of the node runs the installed code. After an update, processes run
    the old code until they restart."""
    mixed = locks.mix(settings.paths) if running else ""
    if mixed:
        return Finding("code", "warn", mixed, locks.REMEDY)
    state = "every process of the node runs it" if running else "installed"
    return Finding("code", "ok", f"{installed_code()}, {state}")


def _disk(settings: Settings, _running: bool) -> Finding:
    folder = _existing(settings.paths.data)
    usage = shutil.disk_usage(folder)
    free = f"{size(usage.free)} of {size(usage.total)} free at {folder}"
    if usage.free < DISK_FULL_BYTES:
        return Finding("disk", "error", free, "free disk space, or delete a model with `shoal rm`")
    if usage.free < DISK_LOW_BYTES:
        return Finding("disk", "warn", free, "free disk space before you pull more models")
    return Finding("disk", "ok", free)


def _existing(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _memory(_settings: Settings, _running: bool) -> Finding:
    memory = psutil.virtual_memory()
    available = f"{size(memory.available)} of {size(memory.total)} available"
    if memory.available < MEMORY_LOW_BYTES:
        return Finding(
            "memory", "warn", available, "unload a model with `shoal stop`; `shoal ps` lists them"
        )
    return Finding("memory", "ok", available)


def _limits(_settings: Settings, _running: bool) -> Finding:
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < MIN_FILES:
        limit = f"the limit on open files is {soft}"
        return Finding("limits", "error", limit, f"run `ulimit -n {MIN_FILES}` before `shoal up`")
    files = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
    return Finding("limits", "ok", f"limit on open files: {files}")


def folders(settings: Settings, _running: bool) -> Finding:
    """Check that this node can write to its folders, and that the `model_folders` exist."""
    paths = settings.paths
    for folder in (paths.state, paths.data, paths.runtime):
        there = _existing(folder)
        if not os.access(there, os.W_OK | os.X_OK):
            remedy = (
                f"allow this user to write to {there}, or choose another home with `--home DIR`"
            )
            return Finding("folders", "error", f"cannot write to {folder}", remedy)
    gone = [
        model_folder
        for model_folder in settings.model_folders
        if not Path(model_folder).expanduser().is_dir()
    ]
    if gone:
        text = f"model_folders lists folders that do not exist: {', '.join(gone)}"
        return Finding("folders", "warn", text, "create the folder, or remove it from the settings")
    return Finding("folders", "ok", f"state in {paths.state}")


def damage(settings: Settings, _running: bool) -> Finding:
    """Check that no file of this node's state is damaged."""
    damages = [damage_words(file) for file in damaged_files(settings.paths)]
    if damages:
        remedy = "; ".join(remedy for _, remedy in damages)
        return Finding("state", "error", "; ".join(text for text, _ in damages), remedy)
    return Finding("state", "ok", "no damaged files")


def records(settings: Settings, _running: bool) -> Finding:
    """Check that the gateway's records file is writable, and that no damaged one was moved
    aside."""
    file = settings.paths.records
    aside = sorted(
        path.name
        for path in file.parent.glob(f"{file.name}.*-*")
        if not path.name.endswith(("-wal", "-shm"))
    )
    if file.exists() and not os.access(file, os.R_OK | os.W_OK):
        remedy = (
            f"allow this user to write to it (chmod 600 {file}); "
            "otherwise shoal moves it aside and starts a new one"
        )
        return Finding("records", "error", f"cannot write to {file}", remedy)
    if aside:
        text = f"damaged records were moved aside in {file.parent}: {', '.join(aside)}"
        return Finding(
            "records",
            "warn",
            text,
            "see `shoal logs gateway` for the reason; delete them when you do not need them",
        )
    if not file.exists():
        return Finding("records", "ok", f"no records yet; they will be written to {file}")
    return Finding("records", "ok", f"{size(file.stat().st_size)} in {file}")


def _settings(settings: Settings, _running: bool) -> Finding:
    file = settings.paths.config_file
    if settings.trouble:
        remedy = f"correct {file} before the next `shoal up`"
        return Finding("settings", "error", settings.trouble, remedy)
    return Finding(
        "settings", "ok", str(file) if file.exists() else f"defaults; {file} does not exist"
    )


def api_keys(settings: Settings, running: bool) -> Finding:
    """Check that other users of this machine cannot read API keys, and that a key exists if clients
    need one."""
    path = settings.paths.config_file
    trouble = readable_key(path)
    if trouble is not None:
        fix = Fix((("chmod", "600", str(path)),))
        return Finding("api keys", "warn", trouble, f"`shoal doctor --fix`, or {fix.words}", fix)
    counts = f"API keys: {len(settings.api_keys) or 'none'} in the settings"
    if not running:
        return Finding("api keys", "ok", counts)
    try:
        answer = own_api(settings).get("/apikeys", timeout_s=5.0)
    except CliError as problem:
        return Finding("api keys", "warn", f"{counts}; {problem.message}", "see `shoal status`")
    keys = cast(list[dict[str, Any]], answer["keys"])
    counts += f", {len(keys) or 'none'} in the cluster"
    living = [key for key in keys if not key["expired"]]
    if (
        answer["asked_for"]
        and not living
        and not settings.api_keys
        and not settings.http_owner_only
    ):
        counts += ": only this user can send requests"
        return Finding("api keys", "warn", counts, "create one with `shoal apikey add NAME`")
    return Finding("api keys", "ok", counts)


def https(settings: Settings, running: bool) -> Finding:
    """Check the certificate and key of HTTPS on the disk."""
    files = settings.tls
    if files is None:
        return Finding("https", "ok", "off: HTTP is not encrypted (http_tls_cert is not set)")
    try:
        notes = pair_notes(settings)
        valid = read_pair(files).valid
    except ConfigError as error:
        goes_on = "the node serves the previous certificate" if running else "no node can start"
        return Finding("https", "error", str(error), f"correct the files; until then {goes_on}")
    if notes:
        remedy = "replace the certificate and key; the running node loads the new pair"
        return Finding("https", "warn", "; ".join(notes), remedy)
    return Finding("https", "ok", f"{files.certificate} until {date_of(valid.ends_s)}")


def _port(settings: Settings, running: bool) -> Finding:
    where = f"{settings.http_host}:{settings.http_port}"
    if not settings.api:
        return Finding("port", "ok", "the HTTP API has no port (api = false)")
    if running:
        trouble = processes.closed_ports(settings).get("http")
        if trouble is None:
            return Finding("port", "ok", f"{where} belongs to this node")
        return Finding(
            "port", "error", trouble, "see `shoal logs gateway`, or stop the program that uses it"
        )
    trouble = processes.port_problem(settings.http_host, settings.http_port)
    if trouble is not None:
        return Finding(
            "port",
            "error",
            trouble,
            f"{processes.move_command(settings)}, or stop the program that uses it",
        )
    return Finding("port", "ok", f"{where} is free")


def _supervisord(settings: Settings, running: bool) -> Finding:
    if not running:
        left = processes.leftovers(settings.paths)
        if left:
            text = f"not running, but these processes are left: {processes.names_of(left)}"
            return Finding("supervisord", "error", text, "end them with `shoal down`")
        return Finding("supervisord", "ok", "not running; start the node with `shoal up`")
    listed = Supervisor(settings.endpoints.supervisor).list_processes()
    bad = [p for p in listed if p.name in SERVICES and p.status != "running"]
    bad += [p for p in listed if p.status == "fatal" and p not in bad]
    if bad:
        text = ", ".join(f"{p.name} is {p.status} ({p.description})" for p in bad)
        return Finding("supervisord", "error", text, f"see `shoal logs {bad[0].name}`")
    slots = [p for p in listed if p.name.startswith("runner:")]
    used = sum(p.alive for p in slots)
    return Finding("supervisord", "ok", f"services run, {used} of {len(slots)} runner slots in use")


def _locks(settings: Settings, running: bool) -> Finding:
    stale = processes.litter(settings.paths)
    if not stale:
        return Finding("locks", "ok", "no stale files")
    remedy = (
        "nothing to do; the next start removes them" if running else "remove them with `shoal down`"
    )
    return Finding("locks", "warn", f"stale, used by no process: {', '.join(stale)}", remedy)


def _gateway(settings: Settings, running: bool) -> Finding:
    if not running:
        return Finding("HTTP API", "ok", "the node is not running")
    try:
        api = own_api(settings)
        check_is_of(api, settings.paths)
        health = api.get("/health", timeout_s=5.0)
    except CliError as problem:
        return Finding("HTTP API", "error", problem.message, "see `shoal logs gateway`")
    problems = cast(list[str], health.get("problems") or [])
    if problems:
        return Finding("HTTP API", "warn", "; ".join(problems), "see `shoal status`")
    ready = ", ".join(cast(list[str], health.get("models_ready") or [])) or "none"
    return Finding("HTTP API", "ok", f"answers at {settings.url}; models ready: {ready}")


def _diagnosis(settings: Settings, running: bool) -> Finding:
    """Check that py-spy works. A running node reports that itself. If no node runs, only check that
    py-spy is installed."""
    if running:
        try:
            diagnostics = own_api(settings).get("/v1/diagnostics/node", timeout_s=10.0)
        except CliError as problem:
            return Finding("py-spy", "warn", problem.message, "see `shoal logs telemetry`")
        can = diagnostics["diagnosis"]
        if can["py_spy"]:
            return Finding("py-spy", "ok", can["reason"])
        remedy = "allow ptrace for profiles; until then each process prints its own stacks"
        return Finding("py-spy", "warn", can["reason"], remedy)
    beside = Path(sys.executable).with_name("py-spy")
    if not beside.exists() and shutil.which("py-spy") is None:
        fix = fix_by_adding("py-spy")
        remedy = f"run `shoal doctor --fix`, or {fix.words}"
        return Finding("py-spy", "warn", "not installed", remedy, fix)
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if scope.exists() and scope.read_text().strip() not in ("0", "1"):
        diagnostics = f"ptrace_scope is {scope.read_text().strip()}"
        remedy = "allow profiles with `sysctl kernel.yama.ptrace_scope=1`"
        return Finding("py-spy", "warn", diagnostics, remedy)
    return Finding("py-spy", "ok", "installed; start the node to check its permissions")


CHECKS: tuple[Callable[[Settings, bool], Finding], ...] = (
    _python,
    _packages,
    _code,
    mlx,
    blas,
    _disk,
    _memory,
    _limits,
    _settings,
    folders,
    damage,
    records,
    tasks,
    clients,
    engines,
    api_keys,
    https,
    traces,
    _port,
    _supervisord,
    _locks,
    _gateway,
    _diagnosis,
)
