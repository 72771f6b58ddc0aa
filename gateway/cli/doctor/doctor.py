"""`shoal doctor`: every check with its remedy, and an exit code that says whether all is well."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import typer

from bus.process.supervisor import Supervisor
from bus.wire.errors import ShoalError
from conf.settings import Settings
from gateway.cli.doctor.check import Check
from gateway.cli.doctor.checks import run_checks
from gateway.cli.doctor.machine_checks import machine_checks
from gateway.cli.doctor.network_checks import network_checks
from gateway.cli.node.node_api import NodeApi, api_key
from gateway.cli.node.node_state import NodeState, parse_state
from gateway.cli.output.command import Invocation, verb
from gateway.cli.output.errors import FAILED, Problem

MARKS = {"ok": "ok", "warn": "!", "error": "x"}


def register(app: typer.Typer) -> None:
    """Add `doctor`."""
    verb(app)(doctor)


def doctor(invocation: Invocation) -> None:
    """Look for what keeps a node from running well; warnings alone leave the exit code at 0."""
    settings, screen = invocation.settings(), invocation.screen
    found: list[Check] = []
    status = screen.err.status("looking") if screen.live else None
    if status is not None:
        status.start()
    try:
        state = _state(settings)
        found = [
            *run_checks(settings),
            *_guarded("network", network_checks(settings, state)),
            *_guarded("machine", machine_checks(state)),
        ]
    finally:
        if status is not None:
            status.stop()
    bad = [check for check in found if check.level != "ok"]
    errors = sum(check.level == "error" for check in bad)
    screen.document(
        {
            "well": errors == 0,
            "errors": errors,
            "warnings": len(bad) - errors,
            "checks": [dataclasses.asdict(check) for check in found],
        }
    )
    shown = found if screen.verbosity >= 0 else bad
    screen.table(("", "check", "found"), [(MARKS[c.level], c.name, c.found) for c in shown])
    if bad:
        screen.say("")
    for check in bad:
        screen.say(f"{check.name}: {check.remedy}")
    if not bad:
        screen.say("all is well")
    if errors:
        raise typer.Exit(FAILED)


def _guarded(name: str, checks: Iterable[Check]) -> Iterator[Check]:
    """The checks, and a warning instead of whatever one of them could not bear."""
    try:
        yield from checks
    except (OSError, ShoalError, ValueError) as error:
        yield Check(name, "warn", f"could not be found out: {error}", "see `shoal logs`")


def _state(settings: Settings) -> NodeState | None:
    """What the node of this home knows; None where it does not run or answer."""
    if not Supervisor(settings.endpoints.supervisor).is_up():
        return None
    try:
        return parse_state(NodeApi(settings.url, api_key()).get("/state", timeout_s=5.0))
    except Problem:
        return None
