"""Talks to the node and the terminal: `shoal doctor` shows each finding with its remedy.

Exits with 1 if a check found an error.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from bus.process.identity import known_node_id
from bus.process.supervisor import Supervisor
from conf.settings import Settings
from gateway.cli.command import Invocation
from gateway.cli.doctor.check import Finding, guarded
from gateway.cli.doctor.checks import run_checks
from gateway.cli.doctor.fixes import fix_all
from gateway.cli.doctor.machine_checks import gpu_checks, machine_checks
from gateway.cli.doctor.mlx_checks import mlx_here
from gateway.cli.doctor.model_findings import model_checks
from gateway.cli.doctor.network_checks import network_checks
from gateway.cli.node.node_api import own_api
from gateway.cli.node.node_state import NodeState
from gateway.cli.output.errors import FAILED
from gateway.cli.output.terminal import Output

MARKS = {"ok": "ok", "warn": "!", "error": "x"}


def doctor(
    invocation: Invocation,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix",
            help="Run the commands that fix packages of shoal's environment (such as MLX for an "
            "NVIDIA GPU) and the permissions of its files. Then check again.",
        ),
    ] = False,
) -> None:
    """Check the node and its machine for problems. Exits with 1 if a check found an error, and with
    0 if there are only warnings."""
    settings, output = invocation.settings(), invocation.output
    findings = _findings(settings, output)
    if fix and fix_all(findings, output):
        findings = _findings(settings, output)
    bad = [check for check in findings if check.level != "ok"]
    errors = sum(check.level == "error" for check in bad)
    output.document(
        {
            "well": errors == 0,
            "errors": errors,
            "warnings": len(bad) - errors,
            "checks": [dataclasses.asdict(check) for check in findings],
        }
    )
    shown = findings if output.verbosity >= 0 else bad
    output.table(("", "check", "found"), [(MARKS[c.level], c.name, c.found) for c in shown])
    if bad:
        output.say("")
    for check in bad:
        output.say(f"{check.name}: {check.remedy}")
    if not bad:
        output.say("no problems found")
    if errors:
        raise typer.Exit(FAILED)


def _findings(settings: Settings, output: Output) -> list[Finding]:
    mlx_here.cache_clear()
    with output.err.status("looking") if output.live else contextlib.nullcontext():
        state = _state(settings)
        return [
            *run_checks(settings),
            *guarded("network", network_checks(settings, state)),
            *guarded("machine", machine_checks(state)),
            *guarded("GPUs", gpu_checks(settings, state)),
            *guarded("models", model_checks(state, _model_folders(settings))),
        ]


def _model_folders(settings: Settings) -> list[Path]:
    return [
        settings.paths.models,
        *(Path(folder).expanduser() for folder in settings.model_folders),
    ]


def _state(settings: Settings) -> NodeState | None:
    """Return the state of this home's node; None if no node runs or answers."""
    if not Supervisor(settings.endpoints.supervisor).is_up():
        return None
    state = own_api(settings).state_if_it_answers(5.0)
    own = known_node_id(settings.paths.state)
    return state if state is not None and state.node == own else None
