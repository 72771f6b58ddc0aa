"""Talks to the node: `shoal` without a verb says what runs, and names three next steps.

`next_steps_of` is pure. If no node runs in the home, this module reads no settings and sends no
HTTP request.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from bus.process.installation import shoal_version
from conf.paths import BUNDLED_MODEL, find_paths
from gateway.cli.command import Invocation
from gateway.cli.node.locks import GATEWAY_LOCK, lock_holder
from gateway.cli.node.processes import our_supervisord
from gateway.cli.output.errors import CliError, at_home

if TYPE_CHECKING:
    from gateway.cli.node.node_api import NodeApi

ANSWER_S = 3.0
SHOWN_MODELS = 4
Step = tuple[str, str]


@dataclass(frozen=True, slots=True)
class NodeOverview:
    """The status of a node. `silent`: its processes run, but its API gives no answer, for the
    reason `trouble`. `models` are ready in the cluster's memory."""

    status: Literal["up", "silent", "down"]
    name: str = ""
    url: str = ""
    models: tuple[str, ...] = ()
    trouble: str = ""


def overview(invocation: Invocation) -> None:
    """Show whether the node runs, its address and its models in memory, and what to do next."""
    node, output = _look(invocation), invocation.output
    where = f" --url {invocation.url}" if invocation.url else at_home(invocation.home)
    steps = next_steps_of(node, where)
    output.document({"version": shoal_version(), **asdict(node), "next": [s for s, _ in steps]})
    output.say(f"shoal {shoal_version()}: {_in_words(node, invocation)}")
    if node.status == "up":
        shown, more = node.models[:SHOWN_MODELS], len(node.models) - SHOWN_MODELS
        names = ", ".join(shown) + (f" and {more} more" if more > 0 else "")
        output.say(f"models in memory: {names or 'none; they load on request'}")
    output.say("next:")
    width = max(len(command) for command, _ in steps)
    for command, about in steps:
        output.say(f"  {command:{width}}  {about}")
    output.say("`shoal --help` lists all commands")


def next_steps_of(node: NodeOverview, where: str) -> tuple[Step, Step, Step]:
    """Return three command lines, each with its purpose. `where` is the option that chooses the
    node; empty for the default home."""
    if node.status == "down":
        return (
            (f"shoal up{where}", "start a node with the bundled model"),
            (f"shoal doctor{where}", "check this machine"),
            (f"shoal service install{where}", "start a node with the machine"),
        )
    if node.status == "silent":
        return (
            (f"shoal status{where}", "show the processes"),
            (f"shoal logs gateway{where}", "show the log of the API"),
            (f"shoal restart{where}", "stop the node and start it again"),
        )
    model = node.models[0] if node.models else BUNDLED_MODEL
    return (
        (f"shoal run {model}{where}", "chat with a model"),
        (f"shoal search qwen3{where}", "find a larger model to pull"),
        (f"shoal status{where}", "show processes, memory and problems"),
    )


def _look(invocation: Invocation) -> NodeOverview:
    if invocation.url:
        return _answer_of(invocation.api(), invocation.url)
    paths = find_paths(invocation.home)
    if our_supervisord(paths) is None and lock_holder(paths.runtime / GATEWAY_LOCK) is None:
        return NodeOverview("down")
    settings = invocation.settings()
    try:
        return _answer_of(invocation.api(), settings.url)
    except CliError as problem:
        return NodeOverview("silent", settings.node_name, settings.url, trouble=problem.message)


def _answer_of(api: NodeApi, url: str) -> NodeOverview:
    health: dict[str, Any] = api.get("/health", timeout_s=ANSWER_S)
    models = tuple(health.get("models_ready") or ())
    return NodeOverview("up", str(health.get("name") or "a node"), url, models)


def _in_words(node: NodeOverview, invocation: Invocation) -> str:
    if node.status == "down":
        return f"no node runs in {find_paths(invocation.home).home}"
    if node.status == "silent":
        return f"{node.name} runs, but its API does not answer ({node.trouble})"
    return f"{node.name} is up at {node.url}"
