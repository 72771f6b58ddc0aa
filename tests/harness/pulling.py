"""The process that pulls, run as its worker runs it, against a hub of ours."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from bus.wire.ids import ModelId
from bus.wire.messages.readings import PullState
from conf.paths import bundled_models
from tests.harness import forks
from tests.harness.hub import HubServer, files_of
from tests.harness.nodes import MODEL, ROOT, Node, eventually
from worker.models.manifest import belongs
from worker.pulling.order import PullOrder
from worker.pulling.patience import PullTiming

QUICK = PullTiming(silence_s=3.0, pause_s=0.05, longest_s=0.2, asked_s=5.0, busy=3)
REPOSITORY = "someone/tiny"
BEFORE_THE_HUB = (
    "httpx2", "worker.pulling.fetching.fetch", "worker.pulling.forecast", "anyio", "filelock",
    "httpcore2", "tqdm.auto", "truststore", "yaml",
)  # fmt: skip
"""What the process imports but `huggingface_hub`, which reads when imported where its hub is."""


def tiny() -> dict[str, bytes]:
    """The bundled model as a repository; without its card, which no hub's word replaces."""
    found = files_of(bundled_models()[MODEL])
    return {n: found[n] for n in found if belongs(n) and "/" not in n and n != "card.toml"}


def hub_settings(hub: HubServer, home: Path) -> dict[str, str]:
    """The environment of nodes that pull from a hub of ours, and load nothing by themselves."""
    return {
        "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_TOKEN": "",
        "SHOAL_PRELOAD": "", "SHOAL_RUNNER__SPARE": "false",
    }  # fmt: skip


def joining(first: Node) -> dict[str, str]:
    """The environment of a node that joins another one's cluster."""
    return {"SHOAL_CLUSTER__PEERS": f"127.0.0.1:{first.base_port + 4}"}


@contextmanager
def two_nodes(
    shared: Mapping[str, str], of_first: Mapping[str, str], of_second: Mapping[str, str]
) -> Iterator[tuple[Node, Node]]:
    """Two nodes of one cluster, called first and second, with what is set for both and for each."""
    first = Node(**shared, **of_first, SHOAL_NODE_NAME="first")
    second = Node(**shared, **of_second, **joining(first), SHOAL_NODE_NAME="second")
    second.move(first.base_port + 20)
    try:
        first.up(240)
        second.up(240)
        eventually(lambda: "second" in first.shoal("nodes").stdout, 240, "two nodes")
        yield first, second
    finally:
        second.close()
        first.close()


def is_whole(node: Node) -> bool:
    """Whether the model's copy on a node's disk is what the hub has, byte for byte; fails for half
    a model."""
    folder = node.home / "data" / "models" / REPOSITORY
    while folder.exists():
        with suppress(FileNotFoundError):  # it went while it was read: whole, or not at all
            found = {n: data for n, data in files_of(folder).items() if not n.startswith(".")}
            if folder.exists():
                assert found == tiny(), "half a model"
                return True
    return False


def environment(hub: HubServer, home: Path, **more: str) -> dict[str, str]:
    """What leads `huggingface_hub` to a hub of ours, and to no token of this machine's user."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return {**known, "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "PYTHONPATH": str(ROOT), **more}


def order_for(models: Path, **changes: object) -> PullOrder:
    """An order of the repository, in a hurry; it leaves no room free."""
    order = PullOrder(ModelId(REPOSITORY), "", str(models), margin_bytes=0, timing=QUICK)
    return dataclasses.replace(order, **changes)  # pyright: ignore[reportArgumentType]


def pull(
    hub: HubServer,
    models: Path,
    *,
    kill_when: Callable[[PullState], bool] | None = None,
    prefix: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    **changes: object,
) -> list[PullState]:
    """Pull; every state that was told. With `kill_when`, the process is killed at the first state
    for which that is so."""
    models.mkdir(parents=True, exist_ok=True)
    ordered, given = os.pipe()
    told, tells = os.pipe()
    env = environment(hub, models.parent / "hf", **(env or {}))
    process = _started(prefix, env, (ordered, tells))
    os.close(ordered)
    os.close(tells)
    states: list[PullState] = []
    with open(given, "wb", 0) as orders, open(told, "rb") as lines:
        order = json.dumps(dataclasses.asdict(order_for(models, **changes)))
        orders.write(order.encode() + b"\n")
        for line in lines:
            states.append(PullState.model_validate_json(line))
            if kill_when is not None and kill_when(states[-1]):
                process.kill()
                break
    process.wait(30)
    return states


def answer_of_search(question: bytes, env: dict[str, str]) -> bytes:
    """The line that the process which searches a hub answers to the one of a question."""
    asked, asks = os.pipe()
    told, tells = os.pipe()
    os.write(asks, question)
    process = _started((), env, (asked, tells), "worker.pulling.searching")
    for descriptor in (asks, asked, tells):
        os.close(descriptor)
    with open(told, "rb") as answer:
        line = answer.read()
    assert process.wait(30) == 0
    return line


def _started(
    prefix: tuple[str, ...],
    env: dict[str, str],
    streams: tuple[int, int],
    module: str = "worker.pulling",
) -> subprocess.Popen[bytes] | forks.Fork:
    """Start a process with these descriptors as its input and output, forked where nothing comes
    before its command: it takes a second of a processor otherwise, and there are many pulls."""
    stdin, stdout = streams
    folder = tempfile.gettempdir()
    if not prefix:
        run = f"{module}.__main__:program"
        own = (stdin, stdout, 2)
        return forks.started(BEFORE_THE_HUB, ROOT, run, (), env=env, cwd=folder, streams=own)
    command = [*prefix, sys.executable, "-P", "-m", module]
    return subprocess.Popen(command, stdin=stdin, stdout=stdout, cwd=folder, env=env)
