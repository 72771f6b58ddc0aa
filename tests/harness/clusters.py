"""Several real nodes on this machine as one cluster; ended by their own pids."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from bus.links.cluster_key import ClusterKeys
from bus.links.keyring import new_key, write_keys
from conf.ports import SPAN
from tests.harness.network_namespaces import NetworkNamespaces
from tests.harness.nodes import MODEL, ROOT, TREE, Node, eventually, free_base_port
from tests.harness.rated_wires import RatedWires

Wires = NetworkNamespaces | RatedWires
FORM_S = 60.0
API_KEY = "sk-of-the-test"
PLACED_BY_TESTS = {"SHOAL_POOL__REPLICAS": "0"} if TREE == ROOT else {}
"""Copies are counted, and placed by tests. Older trees make no replicas."""


class Cluster:
    """Nodes in the order in which they were started; the first is every other's seed."""

    def __init__(self, count: int, wires: Wires | None = None, **settings: str) -> None:
        self.nodes: list[Node] = []
        self.wires = wires
        self._folder = tempfile.TemporaryDirectory(prefix="shoal-test-key-")
        seed = ""
        for base_port in free_base_ports(count):
            node = Node(
                SHOAL_CLUSTER__NAMESPACE=f"test-{base_port // SPAN}-{time.time_ns()}",
                SHOAL_CLUSTER__PEERS=seed,
                SHOAL_PRELOAD="",
                SHOAL_SLOTS="3",
                **PLACED_BY_TESTS,
                **{"SHOAL_HTTP_PROCESSES": "1", **settings},
            )
            node.move(base_port)
            if self.nodes:
                node.env["SHOAL_CLUSTER__NAMESPACE"] = self.nodes[0].env["SHOAL_CLUSTER__NAMESPACE"]
            host = "127.0.0.1" if wires is None else self._remote(node, wires)
            seed = seed or f"{host}:{base_port + 4}"
            self.nodes.append(node)

    def up(self) -> None:
        """All nodes at once; returns when they know each other and one holder."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(lambda node: node.up(180.0), self.nodes))
        eventually(self.formed, FORM_S, "the nodes form a cluster")

    def formed(self) -> bool:
        """Whether all live nodes know the same holder and each other."""
        views = [view_of(node) for node in self.nodes]
        holders = {view["holder"] for view in views if view is not None and view["live"]}
        known = [len(view["state"]["nodes"]) for view in views if view is not None]
        whole = None not in views and all(count >= len(self.nodes) for count in known)
        return whole and len(holders) == 1 and None not in holders

    def holder(self) -> Node:
        """The node that holds the term."""
        view = eventually(lambda: self._agreed(), 30, "one holder")
        return self.by_id(view)

    def by_id(self, node_id: str) -> Node:
        """The node with this id."""
        return next(node for node in self.nodes if node.node_id() == node_id)

    def place(
        self, model: str = MODEL, *, asker: int = 0, seconds: float = 120.0, **fields: Any
    ) -> dict[str, Any]:
        """Place a model and wait until it is ready; the instance as the state has it."""
        asked = self.nodes[asker].http.post("/place_instance", json={"model": model, **fields})
        assert asked.status_code == 200, asked.text
        name = asked.json()["instance"]

        def ready() -> dict[str, Any] | None:
            found = self.nodes[asker].state()["instances"].get(name)
            assert found is None or found["status"] != "failed", found["why"]
            return found if found and found["status"] == "ready" else None

        return eventually(ready, seconds, f"{model} is ready")

    def clear(self, seconds: float = 60.0) -> None:
        """Have nothing placed."""

        def empty() -> bool:
            views = [view_of(node) for node in self.nodes]
            found: dict[str, Any] = {}
            for view in views:
                found |= view["state"]["instances"] if view else {}
            for name, one in found.items():
                if one["pinned"]:
                    self.nodes[0].http.post("/unpin", json={"model": one["model"]})
                self.nodes[0].http.delete(f"/instance/{name}")
            return not found and None not in views

        eventually(empty, seconds, "nothing is placed")

    def close(self) -> None:
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(lambda node: node.close(), self.nodes))
        self._folder.cleanup()

    def _remote(self, node: Node, wires: Wires) -> str:
        """Put the next node on its own machine, with the key that takes; its address."""
        number, key_file = len(self.nodes), Path(self._folder.name) / "cluster-key"
        if not key_file.exists():
            write_keys(key_file, ClusterKeys(new_key()), replace=False)
        host = wires.host(number)
        node.move_to(host, wires.inside(number), API_KEY)
        node.env |= {
            "SHOAL_CLUSTER__LISTEN": host,
            "SHOAL_CLUSTER_KEY_FILE": str(key_file),
            "SHOAL_HTTP_NAMES": host,
        }
        return host

    def _agreed(self) -> str | None:
        views = [view_of(node) for node in self.nodes]
        holders = {view["holder"] for view in views if view is not None}
        return holders.pop() if len(holders) == 1 else None


def view_of(node: Node) -> dict[str, Any] | None:
    """`GET /state`, None where nobody answers."""
    with contextlib.suppress(httpx.HTTPError):
        answer = node.http.get("/state", timeout=5.0)
        return answer.json() if answer.status_code == 200 else None
    return None


def free_base_ports(count: int) -> list[int]:
    """Base ports with a span of ports each, none of whose first ones is taken."""
    found: list[int] = []
    base = free_base_port()
    while len(found) < count:
        if all(_is_free(base + offset) for offset in (0, 1, 2, 3, 4, 10, 32)):
            found.append(base)
        base += SPAN
        assert base < 32_600, "no free ports"
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@contextlib.contextmanager
def running_cluster(count: int, wires: Wires | None = None, **settings: str) -> Iterator[Cluster]:
    """A cluster that has formed, for as long as the block lasts."""
    cluster = Cluster(count, wires, **settings)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.close()
