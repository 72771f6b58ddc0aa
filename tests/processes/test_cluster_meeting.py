"""Nodes that meet others: of another version, forgotten, remembered, or serving already."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from bus.links.cluster_key import ClusterKeys
from bus.links.keyring import new_key, write_keys
from tests.harness.against import INSPECTED
from tests.harness.clusters import Cluster, free_base_ports, running_cluster, view_of
from tests.harness.nodes import MODEL, Node, Stream, eventually
from tests.harness.other_trees import raised_tree, tree_of

pytestmark = pytest.mark.timeout(300)

PATIENCE_S = 60.0
CALM_S = 10.0
MOST_LINES = 40
"""What a node may log of a neighbour that it cannot read, in all its processes."""
REFUSAL = re.compile(
    r"(older|newer) speaks protocols? ([\d to]+), (older|newer) (?:protocols? )?([\d to]+): "
    "upgrade the older one"
)


# --- another version ---


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Give a folder for trees."""
    with tempfile.TemporaryDirectory(prefix="shoal-trees-") as made:
        yield Path(made)


@pytest.fixture(scope="module")
def newer(folder: Path) -> Path:
    """Make a tree of the product whose protocol is one higher."""
    return raised_tree(folder)


@contextmanager
def _neighbours(
    older: Path | None, newer: Path | None, **settings: str
) -> Iterator[tuple[Node, Node]]:
    """Run two nodes that are told of each other, of these trees or of the one that is tested."""
    with ExitStack() as stack:
        pair = [Node(SHOAL_CLUSTER__NAMESPACE="versions", SHOAL_PRELOAD="") for _ in range(2)]
        ports = free_base_ports(2)
        for node, port, other in zip(pair, ports, reversed(ports), strict=True):
            stack.callback(node.close)
            node.move(port)
            node.env |= settings
            node.env["SHOAL_CLUSTER__PEERS"] = f"127.0.0.1:{other + 4}"
        for node, name, tree in zip(pair, ("older", "newer"), (older, newer), strict=True):
            node.env["SHOAL_NODE_NAME"] = name
            node.tree = tree or node.tree
        for node in pair:
            node.up()
        yield pair[0], pair[1]


def _says_both(node: Node, verb: str) -> bool:
    """Return whether a verb names both nodes and both versions in one sentence."""
    found = REFUSAL.search(" ".join(node.shoal(verb).stdout.split()))
    said = {} if found is None else {found[1]: found[2], found[3]: found[4]}
    highest = {name: int(told.rpartition(" ")[2]) for name, told in said.items()}  # or "1 to 3"
    return set(said) == {"older", "newer"} and highest["older"] < highest["newer"]


def _refused_by_name(node: Node) -> None:
    for verb in ("nodes", "doctor"):
        said = partial(_says_both, node, verb)
        eventually(said, PATIENCE_S, f"`{verb}` names both and both versions")


def _lines(node: Node) -> int:
    return sum(len(node.log_lines(name)) for name in ("bus", "master", "worker", "gateway"))


def _holds_alone(node: Node) -> None:
    def alone() -> bool:
        view = view_of(node)
        return bool(view) and view["holder"] == node.node_id()

    eventually(alone, PATIENCE_S, "it holds a term of its own")


def _serves_alone(node: Node) -> None:
    _holds_alone(node)
    assert node.chat("hi", max_tokens=4).status_code == 200
    view = view_of(node)
    assert view is not None
    assert {card["node"] for card in view["telemetry"]["cards"]} == {node.node_id()}
    assert set(view["state"]["nodes"]) == {node.node_id()}


@pytest.mark.proof
def test_nodes_of_two_versions_refuse_each_other_by_name_and_serve_on(newer: Path) -> None:
    with _neighbours(None, newer) as pair:
        for node in pair:
            _refused_by_name(node)
        for node in pair:
            _serves_alone(node)
        before = [_lines(node) for node in pair]
        streams = [node.stream("Tell me a story.", max_tokens=200) for node in pair]
        for stream in streams:
            assert stream.wait(PATIENCE_S).error is None, stream.error
        time.sleep(CALM_S)
        for node, count in zip(pair, before, strict=True):
            assert _lines(node) - count < MOST_LINES, node.logs()


@pytest.mark.proof
def test_a_peer_that_comes_back_with_another_version_is_let_go_by_name(newer: Path) -> None:
    with _neighbours(None, None) as (one, other):
        eventually(lambda: len(one.state()["nodes"]) == 2, PATIENCE_S, "they are one cluster")
        before = _lines(one)
        other.kill()
        other.tree = newer
        other.up()
        for node in (one, other):
            _refused_by_name(node)
        time.sleep(CALM_S)
        for node in (one, other):
            _holds_alone(node)
        assert _lines(one) - before < MOST_LINES, one.logs()
        assert one.chat("hi", max_tokens=4).status_code == 200


@pytest.mark.proof
def test_the_first_builds_are_told_in_words_that_they_can_read(folder: Path, newer: Path) -> None:
    first = tree_of(INSPECTED, folder)
    if first is None:
        pytest.skip(f"this history does not hold {INSPECTED}")
    key = folder / "key"
    write_keys(key, ClusterKeys(new_key()), replace=False)  # the first builds had none by default
    with _neighbours(first, newer, SHOAL_CLUSTER_KEY_FILE=str(key)) as (old, new):
        for node in (old, new):
            eventually(lambda node=node: _says_both(node, "nodes"), PATIENCE_S, "it names both")
            _serves_alone(node)


# --- forgotten and remembered while away ---


@pytest.fixture
def three() -> Iterator[Cluster]:
    """Run three nodes that have a key."""
    with tempfile.TemporaryDirectory(prefix="shoal-test-key-") as made:
        key = Path(made) / "key"
        write_keys(key, ClusterKeys(new_key()), replace=False)
        with running_cluster(3, SHOAL_CLUSTER_KEY_FILE=str(key)) as cluster:
            yield cluster


def _link(node: Node, other: Node) -> str:
    """Return how a node is linked with another, by its own word."""
    view = view_of(node)
    known = view["telemetry"]["peers"].get(node.node_id(), {"peers": []}) if view else {"peers": []}
    found = {peer["node"]: peer["status"] for peer in known["peers"]}
    return found.get(other.node_id(), "")


def _asked(node: Node, other: Node, act: str) -> None:
    """Have a node forgotten or remembered, as soon as that is taken."""

    def done() -> bool:
        return node.http.post(f"/node/{other.node_id()}/{act}").status_code == 200

    eventually(done, PATIENCE_S, f"{act} is taken")


def _admits(node: Node, other: Node) -> bool:
    """Return whether a node admits another by its name."""
    return other.node_id() in (node.home / "state" / "known-nodes").read_text().split()


@pytest.mark.proof
def test_a_node_that_was_down_does_not_link_with_whom_the_others_forgot(three: Cluster) -> None:
    here, away, gone = three.nodes
    eventually(lambda: _link(away, gone) == "linked", PATIENCE_S, "all are linked")
    gone.down()
    away.down()
    _asked(here, gone, "forget")
    away.up()
    gone.up()
    eventually(lambda: _link(gone, here) == "refused", PATIENCE_S, "who saw it refuses")
    eventually(lambda: _link(gone, away) == "refused", PATIENCE_S, "who was down refuses as well")
    assert _link(away, gone) == "" and not _admits(away, gone)
    assert gone.node_id() not in away.state()["nodes"]


@pytest.mark.proof
def test_a_node_that_was_down_lets_in_whom_the_others_remember(three: Cluster) -> None:
    here, away, back = three.nodes
    eventually(lambda: _link(away, back) == "linked", PATIENCE_S, "all are linked")
    back.down()
    _asked(here, back, "forget")
    eventually(lambda: _link(away, back) == "", PATIENCE_S, "both forget")
    away.down()
    _asked(here, back, "remember")
    away.up()
    back.up()
    eventually(lambda: _link(here, back) == "linked", PATIENCE_S, "who saw it lets it in")
    eventually(lambda: _link(away, back) == "linked", PATIENCE_S, "who was down lets it in as well")
    eventually(three.formed, PATIENCE_S, "they are one cluster")


# --- serving already when they meet ---


class Relay:
    """A port that leads to another as soon as it is opened."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._door = socket.create_server(("127.0.0.1", 0))
        self._lines: list[socket.socket] = []
        self._open = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def port(self) -> int:
        """Return the port that leads there."""
        return self._door.getsockname()[1]

    def open(self) -> None:
        """Pass on what comes from now on."""
        self._open.set()

    def close(self) -> None:
        """Close every line."""
        for line in (self._door, *self._lines):
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._door.accept()
                self._lines.append(near)
                if not self._open.is_set():
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self._to))
                self._lines.append(far)
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True)
class Meeting:
    """Two nodes that served, each by itself, until they met while a stream of each ran."""

    nodes: tuple[Node, Node]
    placed: dict[str, str]
    streams: tuple[Stream, Stream]
    met_at: float

    @property
    def lost(self) -> str:
        """Return the instance that the log which counts does not have."""
        (name,) = set(self.placed.values()) - set(self.nodes[0].state()["instances"])
        return name


@pytest.fixture(scope="module")
def meeting() -> Iterator[Meeting]:
    """Have two nodes meet that answer requests."""
    with ExitStack() as stack:
        one, two = (Node(SHOAL_CLUSTER__NAMESPACE="meeting") for _ in range(2))
        for node, port in zip((one, two), free_base_ports(2), strict=True):
            stack.callback(node.close)
            node.move(port)
        relay = Relay(one.base_port + 4)
        stack.callback(relay.close)
        two.env["SHOAL_CLUSTER__PEERS"] = f"127.0.0.1:{relay.port}"
        placed: dict[str, str] = {}
        for node in (one, two):
            node.up()
            eventually(node.ready, PATIENCE_S, "it is ready")
            eventually(lambda node=node: node.chat("hi", max_tokens=1).is_success, 60.0, "answers")
            placed[node.node_id()] = next(iter(node.state()["instances"]))
        words = {"max_tokens": 2500, "ignore_eos": True}
        streams = (one.stream("Tell me a story.", **words), two.stream("Tell a story.", **words))
        for stream in streams:
            stream.flowing()
        relay.open()

        def met() -> bool:
            views = [view_of(node) for node in (one, two)]
            return all(views) and len({view["holder"] for view in views if view}) == 1

        eventually(met, PATIENCE_S, "they are one cluster")
        met_at = time.monotonic()
        for stream in streams:
            stream.wait(120.0)
        yield Meeting((one, two), placed, streams, met_at)


@pytest.mark.proof
def test_what_runs_when_two_clusters_meet_is_answered_to_its_end(meeting: Meeting) -> None:
    for stream in meeting.streams:
        assert stream.error is None and stream.broken is None, stream.error or stream.broken
        assert (stream.finish, stream.ended_at and stream.ended_at > meeting.met_at) == (
            "length",
            True,
        ), "it outlasted the meeting"
    assert meeting.lost in meeting.placed.values()
    one, two = meeting.nodes
    loser = one if meeting.placed[one.node_id()] == meeting.lost else two

    def gone() -> bool:
        return not any(name.startswith("runner:") for name in loser.processes())

    eventually(gone, PATIENCE_S, "its runner leaves when it is empty")


@pytest.mark.proof
def test_what_was_undone_when_two_clusters_met_is_listed(meeting: Meeting) -> None:
    for node in meeting.nodes:
        told = json.loads(node.shoal("status", "--json").stdout).get("undone", [])
        assert [one["instance"] for one in told] == [meeting.lost], "the copy that was let go"
        assert MODEL in told[0]["about"]
        said = node.shoal("status").stdout
        assert "undone" in said and meeting.lost in said, said
