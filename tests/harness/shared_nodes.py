"""Nodes that the tests of many files share: one node, an empty one, one with API keys, a pair,
and a pair with a hub. Beside the one node a process has at most one of the others, from the
first file that asks for it to the first that does not.

A file keeps apart from others by model names, keys and client ids, and leaves a node as it found
it: that is checked after each file, and the failure names the file. A test that kills a service,
restarts a node or changes its settings has a node of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from bus.wire.errors import ShoalError
from tests.harness.clusters import Cluster
from tests.harness.hub import Faults, HubServer
from tests.harness.nodes import Node, eventually
from tests.harness.pulling import REPOSITORY, hub_settings, joining, tiny
from tests.harness.shared_files import ALONE_IN_A_PROCESS, shared_by

AFTER_S = 120.0
"""How long the nodes may take to let go of what a file had them do."""
NAMES = ("reef", "kelp")
KEYS = ("sk-of-one-3f9a", "sk-of-two-77c1")
"""API keys of the node that needs one, given in the environment of `shoal up`."""
PROVIDERS_KEY = "sk-planted-of-a-provider-31f7"
"""The key of a provider, in the environment of the empty node as `SHOAL_TEST_PLANTED`."""
SLOWLY = 2 << 20
"""Bytes of weights per second that the first of two stores gives."""
Left = dict[str, Any]


def left_on(node: Node) -> Left:
    """What tests may leave on a node: models, copies, leases, settings, keys, processes."""
    state = node.state()
    settings = node.http.get("/settings").json()
    running = [name for name in node.processes() if not name.startswith("runner:")]
    copies = [(one["model"], one["status"]) for one in state["instances"].values()]
    return {
        "copies": sorted(copies),
        "models": sorted(one["id"] for one in node.http.get("/v1/models").json()["data"]),
        "settings": {
            one["key"]: one["value"] for one in settings["settings"] if one["source"] != "default"
        },
        "services": sorted(running),
        **{name: state[name] for name in ("derived", "leases", "pins", "trace_ratio")},
    }


@dataclass
class Lent:
    """What this process has up, and what was on each node when it came up."""

    nodes: dict[str, Node | Cluster] = field(default_factory=dict[str, "Node | Cluster"])
    fresh: dict[str, list[Left]] = field(default_factory=dict[str, list[Left]])

    def get(self, name: str, start: Callable[[], Node | Cluster]) -> Any:
        """The node or the cluster of that name, started where it is not up."""
        if name not in self.nodes:
            self.nodes[name] = start()

            def has_come() -> bool:
                self.fresh[name] = self.left(name)
                return all(one["models"] for one in self.fresh[name])

            eventually(has_come, AFTER_S, "each node lists its models")
        return self.nodes[name]

    def left(self, name: str) -> list[Left]:
        """What is on each node of it now."""
        lent = self.nodes[name]
        return [left_on(node) for node in (lent.nodes if isinstance(lent, Cluster) else [lent])]

    def check(self, name: str, file: str) -> None:
        """Fail, naming the file, unless all is as it was when the nodes came up."""
        found: list[Left] = []

        def same() -> bool:
            with contextlib.suppress(httpx.HTTPError, ShoalError):
                found[:] = self.left(name)
                return found == self.fresh[name]
            return False

        try:
            eventually(same, AFTER_S, "the nodes are as they were")
        except AssertionError as wrong:
            said = [
                f"{key}: {was[key]!r} became {now[key]!r}"
                for was, now in zip(self.fresh[name], found, strict=False)
                for key in was
                if was[key] != now[key]
            ]
            self.close(name)
            pytest.fail(f"{file} left the shared {name} changed: {'; '.join(said) or wrong!r}")

    def close(self, *names: str) -> None:
        """End what is up of these."""
        for name in names:
            lent = self.nodes.pop(name, None)
            if lent is not None:
                lent.close()


LENT = Lent()


def started(lent: Node | Cluster) -> Any:
    """Bring up a node or a cluster; nothing is left of one that does not come up."""
    try:
        lent.up()
    except BaseException:
        lent.close()
        raise
    return lent


def loaded(node: Node) -> Node:
    eventually(node.ready, AFTER_S, "the model is loaded")
    return node


def named_pair() -> Cluster:
    """Nodes that have names, with the bundled model and nothing placed."""
    made = Cluster(len(NAMES))
    for node, name in zip(made.nodes, NAMES, strict=True):
        node.env["SHOAL_NODE_NAME"] = name
    return started(made)


class Stores(Cluster):
    """Two nodes, `first` and `second`, that pull from a hub, with nothing placed. Each has a folder
    of models besides its own. The first gives weights slowly; the second has no room for what it
    fetches, so it deletes a model that was unloaded."""

    def __init__(self) -> None:
        super().__init__(2, SHOAL_HTTP_PROCESSES="2", SHOAL_RUNNER__SPARE="false")
        self.hub = HubServer({REPOSITORY: tiny()})
        first, second = self.nodes
        for node, name in zip(self.nodes, ("first", "second"), strict=True):
            self.shelf(node).mkdir()
            node.env |= self._of_hub() | {"SHOAL_NODE_NAME": name}
            node.env["SHOAL_MODEL_FOLDERS"] = str(self.shelf(node))
        first.env["SHOAL_WEIGHTS_BYTES_PER_S"] = str(SLOWLY)
        second.env["SHOAL_STORE_BYTES"] = "0"

    def shelf(self, node: Node) -> Path:
        """Return a node's second folder of models."""
        return node.home.parent / "shelf"

    def of_third(self) -> dict[str, str]:
        """Return the environment of a third node of this cluster."""
        first = self.nodes[0]
        namespace = {"SHOAL_CLUSTER__NAMESPACE": first.env["SHOAL_CLUSTER__NAMESPACE"]}
        return self._of_hub() | joining(first) | namespace

    def remove(self, *models: str) -> None:
        """Delete models from both nodes."""
        folders = [node.home / "data" / "models" / model for node in self.nodes for model in models]

        def are_gone() -> bool:
            for model in models:
                self.nodes[0].shoal("rm", model, "--everywhere", "--yes")
            return not any(folder.exists() for folder in folders)

        eventually(are_gone, AFTER_S, f"{models} are deleted")

    def close(self) -> None:
        super().close()
        self.hub.close()

    def _of_hub(self) -> dict[str, str]:
        return hub_settings(self.hub, self.nodes[0].home.parent / "hf")


def unload_all(node: Node) -> None:
    """Have nothing loaded."""

    def is_empty() -> bool:
        loaded = node.state()["instances"]
        for name in loaded:
            node.http.delete(f"/instance/{name}?drain_s=1")
        return not loaded

    eventually(is_empty, AFTER_S, "nothing is loaded")


@pytest.fixture(scope="session")
def lent() -> Iterator[Lent]:
    """Ends what is shared when the last test has run."""
    yield LENT
    LENT.close(*LENT.nodes)


@pytest.fixture(scope="module", autouse=True)
def one_at_a_time(request: pytest.FixtureRequest) -> None:
    """End what earlier files shared and this one does not."""
    LENT.close(*({*ALONE_IN_A_PROCESS} - {shared_by(request.path)}))


@pytest.fixture(scope="module")
def shared_node(request: pytest.FixtureRequest, lent: Lent) -> Iterator[Node]:
    """A node with default settings, and the bundled model loaded."""
    yield lent.get("node", lambda: loaded(started(Node())))
    lent.check("node", request.path.name)


@pytest.fixture(scope="module")
def shared_empty(request: pytest.FixtureRequest, lent: Lent) -> Iterator[Node]:
    """A node with two HTTP processes, a provider's key and nothing loaded. Its services may be
    killed: they are back for the next file."""
    made = {"SHOAL_PRELOAD": "", "SHOAL_HTTP_PROCESSES": "2", "SHOAL_TEST_PLANTED": PROVIDERS_KEY}
    yield lent.get("empty", lambda: started(Node(**made)))
    lent.check("empty", request.path.name)


@pytest.fixture(scope="module")
def shared_keyed(request: pytest.FixtureRequest, lent: Lent) -> Iterator[Node]:
    """A node called reef that answers only with one of two API keys, with two HTTP processes, the
    bundled model loaded, and `runner.constrain_tools`."""

    def start() -> Node:
        made = Node(
            SHOAL_API_KEYS=",".join(KEYS),
            SHOAL_API_KEY=KEYS[0],
            SHOAL_HTTP_PROCESSES="2",
            SHOAL_NODE_NAME="reef",
            SHOAL_RUNNER__CONSTRAIN_TOOLS="true",
        )
        made.headers = {"Authorization": f"Bearer {KEYS[0]}"}
        made.http.headers.update(made.headers)
        return loaded(started(made))

    yield lent.get("keyed", start)
    lent.check("keyed", request.path.name)


@pytest.fixture(scope="module")
def shared_stores(request: pytest.FixtureRequest, lent: Lent) -> Iterator[Stores]:
    """Two nodes and a hub."""
    stores: Stores = lent.get("stores", lambda: started(Stores()))
    stores.hub.faults = Faults()
    stores.hub.forget()
    yield stores
    lent.check("stores", request.path.name)


@pytest.fixture(scope="module")
def shared_pair(request: pytest.FixtureRequest, lent: Lent) -> Iterator[Cluster]:
    """Two nodes, reef and kelp, with nothing placed."""
    yield lent.get("pair", named_pair)
    lent.check("pair", request.path.name)
