"""Nodes that meet others of another version (B9 of the inspection)."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.harness.clusters import free_base_ports, view_of
from tests.harness.nodes import Node, eventually
from tests.harness.other_trees import raised_tree, tree_of
from tests.inspection.against import INSPECTED

PATIENCE_S = 60.0
CALM_S = 10.0
MOST_LINES = 40
"""What a node may log of a neighbour that it cannot read, in all its processes."""
REFUSAL = re.compile(
    r"(older|newer) speaks protocols? ([\d to]+), (older|newer) (?:protocols? )?([\d to]+): "
    "upgrade the older one"
)


# --- another version (B9) ---


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
def _neighbours(older: Path | None, newer: Path | None) -> Iterator[tuple[Node, Node]]:
    """Run two nodes that are told of each other, of these trees or of the one that is tested."""
    with ExitStack() as stack:
        pair = [Node(SHOAL_CLUSTER__NAMESPACE="versions", SHOAL_PRELOAD="") for _ in range(2)]
        ports = free_base_ports(2)
        for node, port, other in zip(pair, ports, reversed(ports), strict=True):
            stack.callback(node.close)
            node.move(port)
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
    return set(said) == {"older", "newer"} and said["older"] < said["newer"]


def _refused_by_name(node: Node) -> None:
    for verb in ("nodes", "doctor"):
        said = partial(_says_both, node, verb)
        eventually(said, 20.0, f"`{verb}` names both and both versions")


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


def test_b9_nodes_of_two_versions_refuse_each_other_by_name_and_serve_on(newer: Path) -> None:
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


def test_b9_a_peer_that_comes_back_with_another_version_is_let_go_by_name(newer: Path) -> None:
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


def test_b9_the_first_builds_are_told_in_words_that_they_can_read(
    folder: Path, newer: Path
) -> None:
    first = tree_of(INSPECTED, folder)
    if first is None:
        pytest.skip(f"this history does not hold {INSPECTED}")
    with _neighbours(first, newer) as (old, new):
        for node in (old, new):
            eventually(lambda node=node: _says_both(node, "nodes"), 20.0, "`nodes` names both")
            _serves_alone(node)
