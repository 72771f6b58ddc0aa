"""Talks to the system: `shoal lab N` starts several complete nodes on this machine.

A lab lets the user try out a cluster on one machine. Every node has its own home under
`<data>/lab`, its own ports and its own processes. The first node has the bundled model, and the
other nodes copy it from the first. A lab runs N times the processes of one node.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from bus.process.logs import file_of
from bus.process.supervisor import Supervisor
from bus.wire.errors import ShoalError
from conf.paths import HOME_VARIABLE, find_paths
from conf.ports import HIGHEST_BASE_PORT, SPAN, port_of
from conf.settings import LAUNCHED_BY, load_settings
from gateway.cli.command import Invocation
from gateway.cli.node import processes
from gateway.cli.node.node_api import NodeApi, home_api
from gateway.cli.node.node_state import NodeState
from gateway.cli.output.errors import CliError, at_home
from gateway.cli.output.log_lines import parse_line
from gateway.cli.output.terminal import Output
from gateway.cli.verbs.models.instances import AcknowledgedPlacement, wait_ready
from gateway.cli.verbs.node.down import bring_down

MOST = 16
FIRST_BASE_PORT = 25_000
UP_S = 180.0
FORM_S = 30.0
LOOK_S = 0.05
PROMPT = "list the integers from 1 to 10"


@dataclass(frozen=True, slots=True)
class LabNode:
    """One node of the lab."""

    name: str
    home: Path
    base_port: int

    @property
    def url(self) -> str:
        """Return the address of the node's HTTP API."""
        return f"http://127.0.0.1:{self.base_port}"

    @property
    def api(self) -> NodeApi:
        """Return the node's HTTP API, with the owner's token."""
        return home_api(self.url, find_paths(self.home))


def lab(
    invocation: Invocation,
    what: Annotated[
        str, typer.Argument(help="How many nodes (2 to 16), or `down`.", metavar="N|down")
    ],
    base_port: Annotated[
        int, typer.Option(help="The first node's base port; the others follow, 100 apart.")
    ] = FIRST_BASE_PORT,
    place: Annotated[
        bool, typer.Option("--place/--no-place", help="Place the bundled model across all nodes.")
    ] = True,
) -> None:
    """Start N nodes on this machine as one cluster, or stop them."""
    settings, output = invocation.settings(), invocation.output
    folder = settings.paths.data / "lab"
    if what == "down":
        _down(folder, output)
        return
    count = _node_count(what, base_port)
    nodes = [
        LabNode(f"lab-{n}", folder / f"node-{n}", base_port + SPAN * (n - 1))
        for n in range(1, count + 1)
    ]
    ending = f"`shoal lab down{at_home(invocation.home)}` stops"
    _refuse_second(folder, ending)
    prepare_homes(nodes)
    start_nodes(nodes, output)
    formed_s = wait_formed(nodes)
    output.say(f"{count} nodes formed a cluster in {formed_s:.2f} s")
    facts: dict[str, Any] = {
        "nodes": [{"name": node.name, "home": str(node.home), "url": node.url} for node in nodes],
        "formed_s": round(formed_s, 3),
    }
    if place:
        facts |= _place(nodes, settings.default_model, output)
    output.document(facts)
    output.table(("node", "url", "home"), [(node.name, node.url, node.home) for node in nodes])
    output.note(f"`shoal nodes --url {nodes[0].url}` shows the nodes; {ending} them")


def _node_count(what: str, base_port: int) -> int:
    if not what.isdecimal() or not 2 <= int(what) <= MOST:
        raise CliError(f"{what!r} is not valid; use a number from 2 to {MOST}, or `down`")
    if base_port < 1024 or base_port + SPAN * int(what) > HIGHEST_BASE_PORT:
        raise CliError(
            f"base port {base_port} is too high for {what} nodes of {SPAN} ports each",
            remedy=f"choose one from 1024 to {HIGHEST_BASE_PORT - SPAN * int(what)}",
        )
    return int(what)


def _refuse_second(folder: Path, ending: str) -> None:
    running = [home.name for home in _homes(folder) if processes.leftovers(find_paths(home))]
    if running:
        raise CliError(f"a lab is already running ({', '.join(running)})", remedy=f"{ending} it")


def _homes(folder: Path) -> list[Path]:
    return sorted(folder.glob("node-*")) if folder.is_dir() else []


def prepare_homes(
    nodes: list[LabNode], *, namespace: str = "lab", more: tuple[str, ...] = ()
) -> None:
    """Create a home for each node, with its settings in its own shoal.toml. `more` are lines of its
    first table."""
    seed = f"127.0.0.1:{port_of('peers', nodes[0].base_port)}"
    for node in nodes:
        first = node is nodes[0]
        config = node.home / "config" / "shoal.toml"
        config.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            f'node_name = "{node.name}"',
            f"base_port = {node.base_port}",
            "preload = []",
            f"bundled_model = {'true' if first else 'false'}",
            "http_processes = 1",
            *more,
            "",
            "[cluster]",
            f'namespace = "{namespace}"',
            'listen = "127.0.0.1"',
            f"peers = {json.dumps([] if first else [seed])}",
        ]
        config.write_text("\n".join(lines) + "\n")


def start_nodes(
    nodes: list[LabNode], output: Output, variables: Mapping[str, str] | None = None
) -> None:
    """Start all nodes in parallel, with more environment `variables`. If one does not start, stop
    all of them. An interrupt ends the children that start them."""
    quiet = {k: v for k, v in os.environ.items() if not k.startswith("SHOAL_")}
    quiet |= variables or {}
    code = "import sys; from gateway.cli.app import main; sys.exit(main())"
    children = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", code, "up", "--home", str(node.home)],
            env={**quiet, HOME_VARIABLE: str(node.home), LAUNCHED_BY: "shoal lab"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in nodes
    ]
    try:
        failed = _first_failure(nodes, children, output)
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()
    if failed:
        for node in nodes:
            take_down(node.home, output)
        raise CliError(
            "cannot start the lab",
            details=failed,
            remedy="if a port is in use, move the whole lab with `--base-port N`",
        )


def _first_failure(
    nodes: list[LabNode], children: list[subprocess.Popen[str]], output: Output
) -> str:
    """Wait for all children. Return the message of the first that failed; empty if none did."""
    failed = ""
    for node, child in zip(nodes, children, strict=True):
        try:
            text, _ = child.communicate(timeout=UP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            text = "it did not start in time"
        if child.returncode != 0:
            lines = text.strip().splitlines()
            problem = "\n".join(line for line in lines if not line.startswith("next: "))
            failed = failed or f"{node.name}: {problem}"
        else:
            output.detail(f"{node.name} is up at {node.url}")
    return failed


def wait_formed(nodes: list[LabNode]) -> float:
    """Wait until all nodes know one leader. Return the seconds since the last switchboard started.
    Raises CliError."""
    ends_at = time.time() + FORM_S
    while True:
        states = [node.api.state_if_it_answers(2.0) for node in nodes]
        if is_formed(states):
            return formation_s(nodes, time.time())
        if time.time() > ends_at:
            raise CliError(
                f"the nodes did not form a cluster within {FORM_S:g} s",
                remedy=f"see `shoal nodes --url {nodes[0].url}` and the nodes' `bus` logs",
            )
        time.sleep(LOOK_S)


def is_formed(states: list[NodeState | None]) -> bool:
    """Return whether all nodes know the same leader, and whether each node knows all other
    nodes."""
    live = [state for state in states if state is not None and state.live]
    if len(live) != len(states):
        return False
    holders = {state.holder for state in live}
    return len(holders) == 1 and all(len(state.state.nodes) >= len(states) for state in live)


def formation_s(nodes: list[LabNode], now: float) -> float:
    """Return the seconds from the start of the last switchboard until all nodes know the leader.

    Both times come from the nodes' logs. Call this only when the cluster has formed.
    """
    began = max(_started_at(node) for node in nodes)
    return max(0.0, _agreed_at(nodes, now) - began)


def _started_at(node: LabNode) -> float:
    """Return when the node's switchboard last started, according to its log."""
    logged_at = _last_logged_at(node, "bus", "started")
    if logged_at is None:
        raise CliError(f"the switchboard of {node.name} logged nothing")
    return logged_at


def _agreed_at(nodes: list[LabNode], now: float) -> float:
    """Return when the last gateway learned who the common leader is, according to the logs. If a
    log does not say, return `now`."""
    heard = [_last_logged_at(node, "gateway", "following the leader") for node in nodes]
    return max(now if at is None else at for at in heard)


def _last_logged_at(node: LabNode, process: str, message: str) -> float | None:
    """Return when a process last logged this message; None if it never did."""
    path = find_paths(node.home).logs / file_of(process)
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    parsed = (parse_line(line, process) for line in reversed(lines))
    return next((line.at for line in parsed if line.message == message), None)


def _place(nodes: list[LabNode], model: str, output: Output) -> dict[str, Any]:
    """Place the model across all nodes and send it one prompt. Return the answer and the times in
    seconds."""
    api = nodes[0].api
    began = time.monotonic()
    answer = api.post("/place_instance", {"model": model, "min_nodes": len(nodes)})
    instance = wait_ready(api, AcknowledgedPlacement.of(answer), output, UP_S)
    loaded_s = time.monotonic() - began
    began, first_s, words = time.monotonic(), None, ""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": PROMPT}],
        "temperature": 0,
        "stream": True,
    }
    with nodes[-1].api.events("/v1/chat/completions", body) as events:
        for event in events:
            for choice in event["choices"]:
                text = choice["delta"].get("content") or ""
                if text and first_s is None:
                    first_s = time.monotonic() - began
                words += text
    output.say(
        f"{model} runs on {len(instance.shards)} ranks ({instance.sharding}); loaded after "
        f"{loaded_s:.1f} s; first token after {first_s or 0:.3f} s"
    )
    output.say(f"> {PROMPT}\n{words}")
    return {
        "instance": instance.instance,
        "sharding": instance.sharding,
        "ranks": len(instance.shards),
        "loaded_s": round(loaded_s, 3),
        "first_token_s": None if first_s is None else round(first_s, 4),
        "answer": words,
    }


def _down(folder: Path, output: Output) -> None:
    homes = _homes(folder)
    ended = [home.name for home in homes if take_down(home, output)]
    output.document({"ended": ended})
    output.say(f"stopped {', '.join(ended)}" if ended else "no lab is running")


def take_down(home: Path, output: Output) -> bool:
    """Stop a node of the lab. Return whether it was running."""
    settings = load_settings(home=home)
    supervisor = Supervisor(settings.endpoints.supervisor)
    ran = bool(processes.leftovers(settings.paths))
    with contextlib.suppress(ShoalError):
        ran = ran or supervisor.is_up()
    with processes.alone(settings.paths):
        bring_down(settings.paths, supervisor, output)
    return ran
