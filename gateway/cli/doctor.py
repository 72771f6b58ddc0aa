"""`shoal doctor`: every check with its remedy, and an exit code that says whether all is well."""

from __future__ import annotations

import dataclasses

import typer

from gateway.cli.checks import Check, run_checks
from gateway.cli.problems import FAILED
from gateway.cli.verb import Invocation, verb

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
        found = list(run_checks(settings))
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
