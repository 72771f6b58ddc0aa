"""What each node of a cluster exports: its own series, each once, and every rank's memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.harness.clusters import Cluster
from tests.harness.nodes import MODEL, Node, eventually

SERIES = re.compile(r"(\w+)\{(.*)\} (\S+)")
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def pair(shared_pair: Cluster) -> Iterator[Cluster]:
    """Two nodes with one model over both, and a copy of it on the first alone."""
    shared_pair.place(min_nodes=2, seconds=PATIENCE_S)
    other = shared_pair.nodes[1].node_id()
    shared_pair.place(excluded_nodes=[other], if_absent=False, seconds=PATIENCE_S)
    yield shared_pair
    shared_pair.clear()


def series(node: Node, name: str) -> list[tuple[dict[str, str], float]]:
    """Return the labels and the value of each series of a name, as this node exports them."""
    text = node.http.get("/metrics").text
    found = [match.groups() for match in map(SERIES.fullmatch, text.splitlines()) if match]
    return [
        (dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value))
        for stem, labels, value in found
        if stem == name
    ]


def told_of_runners(cluster: Cluster) -> bool:
    """Return whether each node has heard of both copies."""
    told = [node.http.get("/state").json()["telemetry"]["runners"] for node in cluster.nodes]
    return all(len({one["instance"] for one in runners}) == 2 for runners in told)


def test_a_node_exports_its_own_series_and_no_other_node_repeats_them(pair: Cluster) -> None:
    eventually(lambda: told_of_runners(pair), 30, "readings of both copies on both nodes")
    name = "shoal_num_requests_running"
    seen = [(labels, node.node_id()) for node in pair.nodes for labels, _ in series(node, name)]
    assert {labels["model_name"] for labels, _ in seen} == {MODEL}
    assert all(labels["node"] == told_by for labels, told_by in seen), seen
    assert len(seen) == len({tuple(sorted(labels.items())) for labels, _ in seen}) == 2


def test_no_series_has_the_label_that_prometheus_gives_to_what_it_scrapes(
    pair: Cluster,
) -> None:
    text = pair.nodes[0].http.get("/metrics").text
    labels = {name for line in text.splitlines() for name in re.findall(r'(\w+)="', line)}
    assert "model_name" in labels
    assert not labels & {"instance", "job"}, labels


def test_every_rank_of_a_group_reports_its_memory(pair: Cluster) -> None:
    def told(node: Node) -> list[float]:
        """Return the memory of the runners on this node, as it exports it."""
        found = series(node, "shoal_runner_memory_bytes")
        return [value for labels, value in found if labels["node"] == node.node_id()]

    def all_told() -> bool:
        return [len(told(node)) for node in pair.nodes] == [2, 1]

    eventually(all_told, 30, "the memory of each rank is exported by its own node")
    values = [value for node in pair.nodes for value in told(node)]
    assert all(value > 1 << 20 for value in values), values


def test_bytes_over_links_are_told_by_peer_and_plane_at_both_ends(pair: Cluster) -> None:
    first, second = pair.nodes
    other = {first.node_id(): second.node_id(), second.node_id(): first.node_id()}
    for node in pair.nodes:
        assert node.chat("Tell me of the sea.", max_tokens=20).status_code == 200

    def bytes_of(node: Node, direction: str) -> dict[str, float]:
        """Return what this node's processes count, by plane."""
        found: dict[str, float] = {}
        for labels, value in series(node, f"shoal_link_{direction}_bytes_total"):
            assert labels["node"] == node.node_id()
            assert labels["peer"] == other[node.node_id()], labels
            found[labels["plane"]] = found.get(labels["plane"], 0.0) + value
        return found

    needed = {"control", "telemetry", "peers", "plans"}
    for node in pair.nodes:
        for direction in ("sent", "received"):
            eventually(
                lambda node=node, direction=direction: needed <= {*bytes_of(node, direction)},
                30,
                f"{direction} on every plane",
            )
    names = {labels["process"] for labels, _ in series(first, "shoal_link_sent_bytes_total")}
    assert "bus" in names and any(name.startswith("runner:") for name in names)
