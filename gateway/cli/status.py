"""Talks to supervisord and the node's API: `shoal status`, what runs and where it answers."""

from __future__ import annotations

from typing import Any

import typer

from bus.clock import wall
from bus.errors import ShoalError
from bus.processes import SupervisedProcess, Supervisor
from gateway.cli.problems import NO_NODE, Problem
from gateway.cli.screen import span
from gateway.cli.verb import Invocation, verb


def register(app: typer.Typer) -> None:
    """Add `status`."""
    verb(app)(status)


def status(invocation: Invocation) -> None:
    """Show the processes of the node, the models it holds, and its address."""
    settings, screen = invocation.settings(), invocation.screen
    try:
        processes = Supervisor(settings.endpoints.supervisor).list_processes()
    except ShoalError as error:
        screen.detail(str(error))
        raise Problem(
            f"no node runs in {settings.paths.home}", remedy="`shoal up` starts one", code=NO_NODE
        ) from error
    try:
        state: dict[str, Any] | None = invocation.api().get("/state", timeout_s=5.0)
        trouble = ""
    except Problem as problem:
        state, trouble = None, problem.message
    instances = list((state or {}).get("instances", {}).values())
    screen.document(
        {
            "node": settings.node_name,
            "home": str(settings.paths.home),
            "url": invocation.address(),
            "answers": state is not None,
            "health": (state or {}).get("nodeHealth"),
            "processes": [_as_fields(one) for one in processes],
            "instances": instances,
        }
    )
    shown = [one for one in processes if one.alive or not one.name.startswith("runner:")]
    screen.table(
        ("process", "status", ">pid", "up", "about"),
        [(p.name, p.status, p.pid or "", _uptime(p), _about(p)) for p in shown],
    )
    slots = sum(one.name.startswith("runner:") for one in processes)
    used = sum(one.name.startswith("runner:") and one.alive for one in processes)
    screen.say(f"\n{used} of {slots} runner slots in use")
    if instances:
        screen.say("")
        rows = [(i["model"], i["status"], i["instance"], i["generation"]) for i in instances]
        screen.table(("model", "status", "instance", ">generation"), rows)
    screen.say("")
    screen.say(
        f"{settings.node_name} at {invocation.address()}" + (f": {trouble}" if trouble else "")
    )
    for finding in health_lines(state):
        screen.say(finding)


def health_lines(state: dict[str, Any] | None) -> list[str]:
    """What `/state` says is wrong, a line for each."""
    health = (state or {}).get("nodeHealth")
    found: list[dict[str, Any]] = []
    if isinstance(health, dict):
        for one in health.values():
            if isinstance(one, dict) and one.get("message"):
                found.append(one)
    return [f"{one.get('level', 'warn')}: {one['message']} ({one['remediation']})" for one in found]


def _as_fields(process: SupervisedProcess) -> dict[str, Any]:
    return {
        "name": process.name,
        "status": process.status,
        "pid": process.pid,
        "started_at_s": process.started_at_s,
        "description": process.description,
        "log": process.log_path,
    }


def _uptime(process: SupervisedProcess) -> str:
    return span(max(0.0, wall() - process.started_at_s)) if process.status == "running" else ""


def _about(process: SupervisedProcess) -> str:
    return "" if process.status == "running" else process.description
