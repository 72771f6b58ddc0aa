"""What must hold of a real cluster at rest, whatever befell it: every breach in words."""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path
from typing import Any

import psutil

from bus.wire.errors import ShoalError
from conf.ports import SPAN
from conf.settings import load_settings
from master.log.journal import MAX_LOG_BYTES
from tests.harness.clusters import Cluster, view_of
from tests.harness.nodes import SERVICES, Node, eventually

RUNNER = "runner:"
RESTING = ("ready", "failed")
PATIENCE_S = 300.0


def assert_invariants(cluster: Cluster, seconds: float = PATIENCE_S) -> None:
    """Wait until nothing is amiss; fails with what is, and with the logs."""
    said: list[str] = []

    def is_sound() -> bool:
        said[:] = breaches(cluster)
        return not said

    try:
        eventually(is_sound, seconds, "a sound cluster")
    except AssertionError as error:
        logs = "\n".join(node.logs() for node in cluster.nodes)
        raise AssertionError(f"{error}: {said}\n{logs}") from error


def breaches(cluster: Cluster) -> list[str]:
    """What does not hold; all nodes are to be up, and nothing is to be asked of them."""
    views = [view_of(node) for node in cluster.nodes]
    if None in views:
        return [f"node {number} does not answer" for number, v in enumerate(views) if v is None]
    known = [view for view in views if view is not None]
    places = {(view["holder"], view["state"]["term"], view["state"]["index"]) for view in known}
    if len(places) != 1 or None in next(iter(places)):
        return [f"not one holder and one log: {places}"]
    state, found = known[0]["state"], list[str]()
    waiting = [i["instance"] for i in state["instances"].values() if i["status"] not in RESTING]
    if waiting:
        found.append(f"on their way: {waiting}")
    for node in cluster.nodes:
        try:
            found += [f"{node.home}: {said}" for said in _of_node(node, state)]
        except ShoalError as error:
            found.append(f"{node.home}: {error}")
    return found


def _of_node(node: Node, state: dict[str, Any]) -> list[str]:
    supervised, me, found = node.processes(), node.node_id(), list[str]()
    missing = set(SERVICES) - set(supervised)
    if missing:
        found.append(f"not running: {sorted(missing)}")
    running = {pid for name, pid in supervised.items() if name.startswith(RUNNER)}
    wanted = {
        rank["pid"]
        for instance in state["instances"].values()
        for rank in instance["ready"]
        if rank["node"] == me and instance["status"] == "ready"
    }
    if running != wanted:
        found.append(f"runners {running}, by the state {wanted}")
    loose = [p.pid for p in runner_processes(node) if p.pid not in running]
    if loose:
        found.append(f"runners that nobody supervises: {loose}")
    return [*found, *_of_files(node, supervised), *_of_ports(node)]


def runner_processes(node: Node) -> list[psutil.Process]:
    """Every living runner of a node, supervised or not."""
    found: list[psutil.Process] = []
    for process in node.all_processes():
        with contextlib.suppress(psutil.Error):
            words = " ".join(process.cmdline())
            if "shoal runner" in words or "-m runner" in words:
                found.append(process)
    return found


def _of_files(node: Node, supervised: dict[str, int]) -> list[str]:
    """Sockets without an owner, and a journal beyond its bound."""
    settings, found = load_settings(home=node.home), list[str]()
    there = {name.replace(":", "-") for name in supervised}
    for path in sockets(settings.paths.runtime):
        if path.name.startswith("runner-") and path.name.partition(".")[0] not in there:
            found.append(f"nobody owns {path.name}")
    size = sum(one.stat().st_size for one in settings.paths.journal.rglob("*") if one.is_file())
    if size > 2 * MAX_LOG_BYTES:
        found.append(f"a journal of {size} bytes")
    return found


def sockets(folder: Path) -> list[Path]:
    """The sockets in a runtime folder."""
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if stat.S_ISSOCK(path.stat().st_mode)]


def _of_ports(node: Node) -> list[str]:
    own = range(node.base_port, node.base_port + SPAN)
    strange = sorted(port for port in listening(node) if port not in own)
    return [f"it listens on {strange}, which are not its ports"] if strange else []


def listening(node: Node) -> set[int]:
    """The TCP ports on which anything of this node listens."""
    ports: set[int] = set()
    for process in node.all_processes():
        with contextlib.suppress(psutil.Error):
            found = process.net_connections("tcp")
            ports |= {one.laddr.port for one in found if one.status == psutil.CONN_LISTEN}
    return ports


def remains(node: Node) -> list[str]:
    """What is left of a node that was taken down."""
    runtime = load_settings(home=node.home).paths.runtime
    files = sorted(one.name for one in runtime.iterdir()) if runtime.is_dir() else []
    left = [f"process {process.pid}" for process in node.all_processes()]
    return [*left, *(f"file {name}" for name in files)]
