"""Talks to supervisord: `shoal up` starts a node and waits until it answers.

It first checks the settings, whether a node already runs, leftover processes, and ports. Then it
writes the configuration and starts supervisord. Every 0.25 s it checks the node, until `readiness`
says that the node is up or stuck. If the node is stuck, the error shows the end of the responsible
process's log; processes that were started keep running.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Generator
from dataclasses import asdict, replace
from typing import Annotated, Any, cast

import typer
from rich.progress import SpinnerColumn, TimeElapsedColumn

from bus.process.endpoints import is_loopback
from bus.process.identity import known_node_id
from bus.process.logs import end_of, file_of
from bus.process.supervisor import Supervisor
from bus.replica.lost_range import damage_words
from bus.wire.api_keys import KEYS_LOST_WORDS
from bus.wire.errors import ShoalError
from conf.blas import prepared_blas, publish_blas
from conf.changing import readable_key, write_first
from conf.paths import damaged_files, make_folders
from conf.ports import PORTS
from conf.settings import API_KEY, API_KEYS, LAUNCHED_BY, Settings, load_settings
from conf.supervisord import SERVICES, remember_start, supervisord_command, write_conf, writes_venv
from gateway.cli.command import Invocation
from gateway.cli.node import locks, processes
from gateway.cli.node.node_api import NodeApi, own_api
from gateway.cli.node.node_state import NodeState
from gateway.cli.node.readiness import (
    NO_ROOM,
    Look,
    ModelLook,
    Starting,
    StartWatch,
    Stuck,
    Up,
    overdue,
)
from gateway.cli.node.start_flags import SETTINGS, Flags, flag_of
from gateway.cli.node.trust import pair_notes
from gateway.cli.output.amounts import size
from gateway.cli.output.errors import CliError, at_home
from gateway.cli.output.log_lines import tail
from gateway.cli.output.next_steps import next_steps, program
from gateway.cli.output.terminal import QUIET, Output
from gateway.cli.verbs.cluster.keys import check_reach
from gateway.cli.verbs.node.down import ORDERLY_S, bring_down, until

LOOK_S = 0.25
LEFTOVER_GRACE_S = 15.0
PORT_GRACE_S = 5.0
TAIL_LINES = 12
NO_HOLDER = "no leader yet"


def up(
    invocation: Invocation,
    *,
    flags: Flags,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay in the foreground; Ctrl-C stops the node.")
    ] = False,
    stay: Annotated[
        bool,
        typer.Option(
            "--stay", help="With --foreground: stay, even if not everything is up in time."
        ),
    ] = False,
    write_venv_conf: Annotated[
        bool,
        typer.Option(
            "--write-venv-conf",
            help="Write the configuration for this environment's `supervisorctl`.",
        ),
    ] = False,
    wait_s: Annotated[
        float, typer.Option("--wait", help="Seconds to wait until everything is up.", min=1.0)
    ] = 180.0,
) -> None:
    """Start a node and wait until it answers."""
    given = {SETTINGS.get(name, name): value for name, value in asdict(flags).items()}
    settings = load_settings(home=invocation.home, flags=given, remembered=False)
    output = invocation.output
    supervisor = Supervisor(settings.endpoints.supervisor)
    if supervisor.is_up():
        _already(invocation, supervisor, settings)
        return
    check_reach(settings)
    trouble = readable_key(settings.paths.config_file)
    if trouble is not None:
        output.note(f"{trouble}; run `chmod 600 {settings.paths.config_file}`")
    for note in pair_notes(settings):
        output.note(note)
    began = time.monotonic()
    with processes.alone(settings.paths):
        _clear_the_way(settings, output)
        _configure(settings, output, _beside_python(settings, required=write_venv_conf))
        remember_start(settings)
        child = _start(settings, wait_s, foreground=foreground)
    with _ended_with_us(child, settings, supervisor):
        try:
            wait_until_up(settings, supervisor, output, wait_s, began, child)
            _welcome(invocation, settings, supervisor, time.monotonic() - began)
        except CliError as problem:
            if not stay or child is None:
                raise
            output.error(problem)
        if child is not None:
            _hold(child)


def _welcome(
    invocation: Invocation, settings: Settings, supervisor: Supervisor, took_s: float
) -> None:
    output = invocation.output
    output.document(_summary(settings, supervisor, "started", took_s))
    output.say(f"{settings.node_name} is up at {settings.url} ({took_s:.1f} s); next:")
    for line in next_steps(program(), settings, home=invocation.home):
        output.note(f"  {line}")
    for trouble in _troubles(settings):
        output.warn(trouble)
    if settings.api and not is_loopback(settings.http_host) and not settings.api_keys:
        advice = "so every client needs an API key; create one with `shoal apikey add NAME`"
        output.warn(f"other machines can reach http_host {settings.http_host}, {advice}")


def _troubles(settings: Settings) -> list[str]:
    """Return the damaged or lost parts of the node's state, from the disk and from its health."""
    words = map(damage_words, damaged_files(settings.paths))
    troubles = [f"{what}: {remedy}" for what, remedy in words]
    with contextlib.suppress(CliError):
        health = own_api(settings).get("/health", timeout_s=5.0)
        problems = cast(list[str], health.get("problems") or [])
        troubles += [problem for problem in problems if problem.startswith(KEYS_LOST_WORDS[0])]
    return troubles


def _hold(child: subprocess.Popen[bytes]) -> None:
    """Wait until supervisord ends. Raises CliError if it ends with an error."""
    code = child.wait()
    if code != 0:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise CliError(
            f"supervisord exited unexpectedly ({how})", remedy="start the node with `shoal up`"
        )


def wait_until_up(
    settings: Settings,
    supervisor: Supervisor,
    output: Output,
    deadline_s: float,
    began: float,
    child: subprocess.Popen[bytes] | None,
) -> None:
    """Wait until the node is up, at most `deadline_s` after `began`. `child` is a supervisord in
    the foreground. Raises CliError if the node is stuck, the child ended, or the deadline
    passed."""
    watch = StartWatch(SERVICES)
    api = own_api(settings)
    shown: set[str] = set()
    with output.progress("starts", TimeElapsedColumn(), before=[SpinnerColumn()]) as show:
        while True:
            look = look_at(settings, supervisor, api)
            verdict = watch.judge(look)
            if isinstance(verdict, Starting):
                if child is not None and child.poll() is not None:
                    raise CliError(f"supervisord ended with {child.returncode}")
                if time.monotonic() - began > deadline_s:
                    by_name = {service.name: service for service in look.services or ()}
                    culprit = {name: by_name[name] for name in SERVICES if name in by_name}
                    verdict = overdue(verdict, culprit, deadline_s)
            if isinstance(verdict, Up):
                return
            if isinstance(verdict, Stuck):
                raise _stuck(settings, verdict)
            if output.live or verdict.text not in shown:
                show(f"{verdict.done}/{verdict.total} {verdict.text}", **_bar_fields(verdict))
            shown.add(verdict.text)
            time.sleep(LOOK_S)


def _bar_fields(waiting: Starting) -> dict[str, Any]:
    """Return the fields of the progress bar: the finished steps, and the progress of loading."""
    text, done, model = waiting.text, float(waiting.done), waiting.model
    if model is not None and model.total_bytes:
        text = f"{model.model} {size(model.done_bytes)} of {size(model.total_bytes)}"
        done += min(1.0, model.done_bytes / model.total_bytes)
    return {"description": text, "completed": done, "total": float(waiting.total)}


def look_at(settings: Settings, supervisor: Supervisor, api: NodeApi) -> Look:
    """Check supervisord and the HTTP API, and return their state. The field of a part that does not
    answer is None."""
    try:
        services = tuple(supervisor.list_processes())
    except ShoalError:
        return Look(services=None)
    state = api.state_if_it_answers(2.0)
    if state is None:
        return Look(services=services)
    if state.node != known_node_id(settings.paths.state):
        return Look(services=services, stranger=state.node)
    models = tuple(_with_room(model_look(state, model), state, api) for model in settings.preload)
    return Look(services=services, http="" if state.live else NO_HOLDER, models=models)


def model_look(state: NodeState, model: str) -> ModelLook:
    """Return the status of the model's newest instance that has not failed, else of a failed
    instance."""
    instances = [i for i in reversed(state.instances) if i.model == model]
    instance = min(instances, key=lambda i: i.status == "failed", default=None)
    if instance is None:
        here = not state.cards or model in state.models
        return ModelLook(model, "waiting" if here else "on no node's disk")
    status = {"ready": "ready", "failed": "failed"}.get(instance.status, "loading")
    far = state.progress_of(instance)
    return ModelLook(model, status, far.done_bytes, far.total_bytes, instance.reason)


def _with_room(look: ModelLook, state: NodeState, api: NodeApi) -> ModelLook:
    """Return `look`, with status `NO_ROOM` if no node has memory for the waiting model."""
    why = api.no_room(look.model) if state.live and look.status == "waiting" else ""
    return replace(look, status=NO_ROOM, why=why) if why else look


def log_tail(settings: Settings, process: str, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a process's log, readable; empty without a log."""
    path = settings.paths.logs / file_of(process)
    try:
        return tail(end_of(path, 16_384).decode(errors="replace"), process, lines)
    except OSError:
        return ""


def _stuck(settings: Settings, verdict: Stuck) -> CliError:
    if verdict.remedy:
        return CliError(verdict.why, remedy=verdict.remedy)
    process = verdict.process or "supervisord"
    lines = log_tail(settings, process)
    return CliError(
        verdict.why,
        details=f"the end of {process}'s log:\n{lines}" if lines else "",
        remedy=f"see `shoal logs {process}` and `shoal doctor`; stop the rest with `shoal down`",
    )


def _already(invocation: Invocation, supervisor: Supervisor, wanted: Settings) -> None:
    """Tell the user that the node already runs, and which flags have no effect."""
    settings, output = invocation.settings(), invocation.output
    values = {key: value for key, value, _ in settings.rows()}
    given = {key: value for key, value, _ in wanted.rows() if key in wanted.flags}
    missed = {key: value for key, value in given.items() if value != values[key]}
    output.document({**_summary(settings, supervisor, "already running", 0.0), "not_taken": missed})
    output.say(f"{settings.node_name} is already running at {settings.url}")
    mixed = locks.mix(settings.paths)
    if mixed:
        output.say(f"{mixed}; {locks.REMEDY}")
    if missed:
        there = {key: value for key, value, source in settings.rows() if source == "shoal up"}
        again = " ".join(flag_of(key, value) for key, value in {**there, **given}.items())
        for key in missed:
            now = flag_of(key, values[key])
            output.warn(f"{flag_of(key, given[key])} has no effect: the node runs with {now}")
        where = at_home(invocation.home)
        output.say(f"to change it: `shoal down{where}`, then `shoal up {again}{where}`")


def _summary(
    settings: Settings, supervisor: Supervisor, status: str, took_s: float
) -> dict[str, Any]:
    return {
        "status": status,
        "node": settings.node_name,
        "url": settings.url,
        "home": str(settings.paths.home),
        "model": settings.default_model,
        "supervisord_pid": supervisor.pid(),
        "took_s": round(took_s, 2),
    }


def _clear_the_way(settings: Settings, output: Output) -> None:
    """Wait until leftover processes of an earlier node have ended and the ports are free. Raises
    CliError."""
    if processes.leftovers(settings.paths):
        output.note("processes of an earlier node are still stopping")
        until(LEFTOVER_GRACE_S, lambda: not processes.leftovers(settings.paths))
        left = processes.leftovers(settings.paths)
        if left:
            text = "processes of an earlier node of this home still run: "
            raise CliError(text + processes.names_of(left), remedy="end them with `shoal down`")
    processes.sweep(settings.paths)
    # a client's outgoing connection may hold an ephemeral port for a moment
    until(
        PORT_GRACE_S,
        lambda: not any(processes.IN_USE in why for why in _blocked(settings).values()),
    )
    if taken := _blocked(settings):
        remedy = f"{processes.move_command(settings)}, or stop the program that uses it"
        raise CliError("; ".join(dict.fromkeys(taken.values())), remedy=remedy)


def _blocked(settings: Settings) -> dict[str, str]:
    """Return the ports that the services need immediately and cannot use, as a map from the port's
    use to its problem. An address that other nodes dial is not needed immediately: services wait
    until it appears (a cable, Wi-Fi)."""
    taken = processes.unusable_ports(settings)
    at_once = {use: problem for use, problem in taken.items() if PORTS[use].process}
    return {use: why for use, why in at_once.items() if use == "http" or processes.IN_USE in why}


def _beside_python(settings: Settings, *, required: bool) -> bool:
    can = writes_venv(settings, required=required)
    if required and not can:
        raise CliError("--write-venv-conf needs a virtual environment that holds supervisorctl")
    return can


def _configure(settings: Settings, output: Output, beside_python: bool) -> None:
    """Create folders and supervisord's configuration. The first start also writes shoal.toml and
    measures BLAS."""
    make_folders(settings.paths)
    if write_first(settings.paths):
        output.note(f"change settings in {settings.paths.config_file}")
    blas = prepared_blas(settings)
    if blas.trouble:
        output.note(f"BLAS: {blas.trouble}")
    write_conf(settings, blas=publish_blas(settings, blas), beside_python=beside_python)


def _environment(settings: Settings) -> dict[str, str]:
    """Return this command's environment variables for the node's processes, without plain-text
    keys, because every process of the node can read them."""
    environment = {LAUNCHED_BY: "shoal up", **os.environ}
    environment.pop(API_KEY, None)
    if API_KEYS in environment:
        environment[API_KEYS] = ",".join(settings.api_keys)
    return environment


def _start(
    settings: Settings, wait_s: float, *, foreground: bool
) -> subprocess.Popen[bytes] | None:
    command = supervisord_command(settings, *(["-n"] if foreground else []))
    environment = _environment(settings)
    if foreground:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
            umask=0o077,
        )
    try:
        how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "env": environment, "umask": 0o077}
        done = processes.run_tool(wait_s, *command, **how)
    except subprocess.TimeoutExpired as error:
        raise CliError(f"supervisord did not daemonize within {wait_s:g} s") from error
    if done.returncode != 0:
        text = (done.stderr or done.stdout).strip()
        raise CliError("cannot start supervisord", details=text, remedy="run `shoal doctor`")
    return None


@contextlib.contextmanager
def _ended_with_us(
    child: subprocess.Popen[bytes] | None, settings: Settings, supervisor: Supervisor
) -> Generator[None]:
    """Stop `child`, the node in the foreground, when this process ends in any way."""
    if child is None:
        yield
        return

    def stop(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        child.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(ORDERLY_S)
        bring_down(settings.paths, supervisor, Output(verbosity=QUIET))
