"""Talks to supervisord and the node's API: `shoal status` shows the node's processes and its
address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import typer

from bus.links.tls_files import read_served
from bus.process.clock import wall
from bus.process.endpoints import is_loopback
from bus.process.installation import installed_code
from bus.process.supervisor import Status, SupervisedProcess, Supervisor
from bus.wire.errors import ShoalError
from bus.wire.instances import Instance
from bus.wire.messages.readings import ProcessReading, UndoneChange
from gateway.cli.command import Invocation
from gateway.cli.node import locks, measured_links
from gateway.cli.node.node_state import HealthSummary, NodeState
from gateway.cli.node.processes import no_node
from gateway.cli.output import sensors
from gateway.cli.output.amounts import span
from gateway.cli.output.errors import NO_NODE, CliError
from gateway.cli.output.terminal import Output

NO_KEYS = (
    "this node has no API key and answers 401 to everyone but its owner; create one with "
    "`shoal apikey add NAME`"
)


def status(invocation: Invocation) -> None:
    """Show the node's processes, models and address. With `--url`, show what the node at that
    address reports. Exits with 3 if the processes run but the API does not answer."""
    output = invocation.output
    running: dict[str, str] = {}
    installed = installed_code()
    if invocation.url:
        state, trouble = invocation.state(), ""
        name, home = state.names.get(state.node, state.node), None
        processes = [_supervised_process(process) for process in state.processes]
    else:
        settings = invocation.settings()
        name, home = settings.node_name, str(settings.paths.home)
        try:
            processes = Supervisor(settings.endpoints.supervisor).list_processes()
        except ShoalError as error:
            output.detail(str(error))
            raise no_node(settings.paths) from error
        state, trouble = _state(invocation)
        running = locks.running_codes(settings.paths)
    instances: list[Instance] = [] if state is None else state.instances
    health: Mapping[str, HealthSummary] = {} if state is None else state.health
    undone = [] if state is None else _undone_changes(state)
    links = [] if state is None else measured_links.links_of(state, wall())
    output.document(
        {
            "node": name,
            "home": home,
            "url": invocation.address(),
            "answers": state is not None,
            "processes": [_as_fields(process) for process in processes],
            "instances": [instance.model_dump(mode="json") for instance in instances],
            "installed": installed,
            "running": running,
            "health": {node: summary.model_dump() for node, summary in health.items()},
            "hardware": _hardware_fields(state),
            "links": links,
            "undone": [{"node": node, **change.model_dump(mode="json")} for node, change in undone],
        }
    )
    shown = [
        process for process in processes if process.alive or not process.name.startswith("runner:")
    ]
    output.table(
        ("process", "status", ">pid", "up", "about"),
        [(p.name, p.status, p.pid or "", _uptime(p), _about(p, state)) for p in shown],
    )
    slots = [process for process in processes if process.name.startswith("runner:")]
    output.say(f"\n{sum(slot.alive for slot in slots)} of {len(slots)} runner slots in use")
    if instances:
        output.say("")
        rows = [(i.model, i.status, i.instance, i.generation) for i in instances]
        output.table(("model", "status", "instance", ">generation"), rows)
    output.say("")
    where = f"{name} at {invocation.address()}"
    output.say(f"{where}: {trouble}" if trouble else where)
    _say_node(output, state, links)
    if not invocation.url and state is not None and _lacks_keys(invocation):
        output.say(f"warn: {NO_KEYS}")
    _say_problems(output, locks.describe_mix(running, installed), state, undone)
    if state is None:
        raise typer.Exit(NO_NODE)


def _lacks_keys(invocation: Invocation) -> bool:
    """Return whether the node of this home requires an API key from other machines but has no valid
    key."""
    settings = invocation.settings()
    if not settings.api or is_loopback(settings.http_host) or settings.api_keys:
        return False
    try:
        answer = invocation.api().get("/apikeys", timeout_s=5.0)
    except CliError:
        return False
    return all(key["expired"] for key in answer["keys"])


def _hardware_fields(state: NodeState | None) -> dict[str, Any] | None:
    sensed = None if state is None else state.hardware.get(state.node)
    return sensed and sensed.model_dump(mode="json", exclude={"kind", "node"})


def _say_node(output: Output, state: NodeState | None, links: Sequence[dict[str, Any]]) -> None:
    """Write the node's sensor readings and each link to another node. With -v, also name the
    readings that are missing."""
    if state is None:
        return
    sensed = state.hardware.get(state.node)
    output.say(f"hardware: {sensors.in_a_line(sensed)}")
    for missing in () if sensed is None else sensed.untold:
        output.detail(f"not reported by {missing.source}: {missing.why}")
    for link in links:
        output.say(measured_links.in_a_line(link))


def _say_problems(
    output: Output,
    mixed: str,
    state: NodeState | None,
    undone: Sequence[tuple[str, UndoneChange]],
) -> None:
    if mixed:
        output.say(f"warn: {mixed}; {locks.REMEDY}")
    names: Mapping[str, str] = {} if state is None else state.names
    health: Mapping[str, HealthSummary] = {} if state is None else state.health
    for node, summary in health.items():
        if summary.status != "ok":
            name = names.get(node, node)
            output.say(f"{summary.status}: {name}: {summary.message} ({summary.remediation})")
    for node, change in undone:
        ago = span(max(0.0, wall() - change.at_s))
        output.say(
            f"lost {ago} ago on {node}, because another node's log replaced its log: "
            f"{change.what}: "
            f"{change.about}; repeat it if you still need it"
        )


def _supervised_process(process: ProcessReading) -> SupervisedProcess:
    """Return a process in the form that supervisord uses, made from the reading of its node. Fields
    that only supervisord knows are empty."""
    return SupervisedProcess(
        name=process.name,
        status=cast(Status, process.status),
        pid=process.pid,
        started_at_s=round(wall() - process.uptime_s) if process.pid else 0,
        stopped_at_s=0,
        exit_code=None,
        description=process.description,
        log_path="",
    )


def _undone_changes(state: NodeState) -> list[tuple[str, UndoneChange]]:
    """Return (node name, change) of each change to the cluster's state that was lost when a node
    replaced its log with another node's."""
    return [
        (state.names.get(reading.node, reading.node), change)
        for reading in state.undone
        for change in reading.changes
    ]


def _state(invocation: Invocation) -> tuple[NodeState | None, str]:
    """Return the node's state and an empty text. If the state cannot be read, return None and the
    reason."""
    try:
        return invocation.api().state(timeout_s=5.0), ""
    except CliError as problem:
        served = None if invocation.url else read_served(invocation.settings().endpoints.folder)
        return None, problem.message if served is None else served.trouble or problem.message


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


def _about(process: SupervisedProcess, state: NodeState | None) -> str:
    """Return why a process does not run. For a runner that runs, return its model, if the node's
    state is known. Return an empty text for any other process."""
    if process.status != "running":
        return process.description
    if state is None or not process.name.startswith("runner:"):
        return ""
    mine = (state.node, process.name, process.pid)
    ready = [
        instance.model
        for instance in state.instances
        for rank in instance.ready
        if (rank.node, rank.process, rank.pid) == mine
    ]
    return ready[0] if ready else "no model: it is loading one, or it is a spare runner"
