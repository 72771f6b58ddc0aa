"""Models verified and deleted on real nodes: while one is pulled, copied, loaded and streamed from,
it is kept, or goes whole; it is never broken."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.hub import Faults, HubServer
from tests.harness.nodes import MODEL, Node, answered, eventually
from tests.harness.pulling import REPOSITORY, is_whole, tiny
from tests.harness.shared_nodes import Stores

pytestmark = pytest.mark.nodes
MB = 1 << 20
TWICE = "someone/twice"
LOOKED_AT = "config.json"
"""Read before a pull is decided on, by each node that is to look whether the model would fit."""


@pytest.fixture(scope="module")
def hub(shared_stores: Stores) -> Iterator[HubServer]:
    shared_stores.hub.repositories[TWICE] = tiny()
    yield shared_stores.hub
    del shared_stores.hub.repositories[TWICE]


@pytest.fixture(scope="module")
def nodes(shared_stores: Stores) -> Iterator[tuple[Node, Node]]:
    """Two nodes of one cluster; the first gives weights slowly."""
    first, second = shared_stores.nodes
    yield first, second
    shared_stores.remove(REPOSITORY, TWICE)


def removed(node: Node) -> Any:
    """What the node answers who has the model deleted everywhere."""
    return node.http.request("DELETE", f"/store/models/{REPOSITORY}", timeout=60)


def intact(node: Node, *words: str) -> dict[str, Any]:
    """What `shoal verify` says of the model, which is well."""
    said = node.shoal("verify", REPOSITORY, *words, "--json")
    assert said.returncode == 0, said.stdout + said.stderr
    document = json.loads(said.stdout)
    assert document["well"]
    return document["models"][0]


@pytest.mark.proof
def test_a_model_is_kept_while_it_is_pulled_and_while_it_is_copied(
    nodes: tuple[Node, Node], hub: HubServer
) -> None:
    first, second = nodes
    hub.faults = Faults(bytes_per_s=0.2 * MB)
    pulls = threading.Thread(target=first.shoal, args=("pull", REPOSITORY))
    pulls.start()
    eventually(lambda: hub.sent.body_bytes > 0, 120, "the first bytes of the pull")
    kept = answered(
        lambda: removed(first), lambda answer: answer.status_code != 404, "the word of the pull"
    )
    assert kept.status_code == 409 and f"first is downloading {REPOSITORY}" in kept.text
    hub.faults = Faults()
    pulls.join(60)
    assert is_whole(first) and intact(first)["against"] == "hashes"
    copies = threading.Thread(target=first.shoal, args=("pull", REPOSITORY, "--to", "second"))
    copies.start()
    stages = second.home / "data" / "models" / ".staging"
    eventually(lambda: list(stages.glob("*/stage.json")), 60, "a stage at the second node")
    kept = eventually(lambda: _on_its_way(first), 30, "the word of the copy, or its end")
    assert kept.status_code == 409 and f"second is downloading {REPOSITORY}" in kept.text
    copies.join(90)
    assert is_whole(first) and is_whole(second)
    assert intact(second, "--node", "second")["node"] == second.node_id()


def _on_its_way(node: Node) -> Any:
    """Return what `rm` says once the node knows of a copy; None before that, with nothing done."""
    told = node.http.get("/state").json()["telemetry"]
    fetches = [one for reading in told["weights"] for one in reading["fetches"]]
    pulls = [one for reading in told["pulls"] for one in reading["pulls"]]
    known = any(one["phase"] not in ("done", "failed") for one in (*fetches, *pulls))
    return removed(node) if known else None


def test_two_nodes_that_are_asked_at_once_fetch_a_model_once(
    nodes: tuple[Node, Node], hub: HubServer
) -> None:
    hub.forget()
    hub.faults = Faults(bytes_per_s=4 * MB)
    said: dict[str, list[dict[str, Any]]] = {}

    def pull(node: Node, *, anyway: bool) -> None:
        body = {"model": TWICE, "anyway": anyway}
        told = said[node.node_id()] = []
        with node.http.stream("POST", "/models/pull", json=body, timeout=120) as answer:
            for line in answer.iter_lines():
                told.append(json.loads(line))
                if told[-1]["status"] == "copying" and told[-1]["completed"]:
                    return  # the rest of the copy would take its time, and shows no more

    asking = zip(nodes, (True, False), strict=True)
    both = [threading.Thread(target=pull, args=(n,), kwargs={"anyway": a}) for n, a in asking]
    for one in both:
        one.start()
    for one in both:
        one.join(120)
    hub.faults = Faults()
    sizes = {path: len(content) for path, content in tiny().items()}
    sent = dict(hub.sent.of)
    assert sent.pop(LOOKED_AT) in (sizes[LOOKED_AT], 2 * sizes[LOOKED_AT])
    assert sent == {path: size for path, size in sizes.items() if path != LOOKED_AT}
    (fetched, _), (_, events) = sorted(said.items(), key=lambda one: len(one[1][-1]["sources"]))
    assert (events[-1]["status"], events[-1]["sources"]) == ("copying", [fetched])
    name = next(n.env["SHOAL_NODE_NAME"] for n in nodes if n.node_id() == fetched)
    notes = {event["note"] for event in events}
    assert f"{name} is downloading it; this node copies it from there" in notes, notes


def test_verify_names_the_file_that_changed_and_ends_with_1(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    assert first.shoal("pull", REPOSITORY, "--to", "second").returncode == 0
    weights = second.home / "data" / "models" / REPOSITORY / "model.safetensors"
    right = weights.read_bytes()
    spoilt = bytearray(right)
    spoilt[len(spoilt) // 2] ^= 1
    weights.write_bytes(spoilt)
    try:
        said = first.shoal("verify", REPOSITORY, "--node", "second")
        assert said.returncode == 1, said
        assert "model.safetensors: the hash is" in said.stdout and "1 damaged" in said.stdout
        assert f"`shoal rm {REPOSITORY}`" in said.stderr
        body = {"model": REPOSITORY, "node": "second", "stream": False}
        told = first.http.post("/models/verify", json=body).json()
        assert (told["intact"], told["wrong_count"]) == (False, 1)
    finally:
        weights.write_bytes(right)
    read = first.shoal("verify", MODEL, "--json")
    (bundled,) = json.loads(read.stdout)["models"]
    assert read.returncode == 0 and bundled["against"] == "headers"
    assert first.shoal("verify", "nothing/here").returncode == 4
    elsewhere = first.http.post("/models/verify", json={"model": MODEL, "node": "third"})
    assert elsewhere.status_code == 404 and "the nodes are first" in elsewhere.text
    assert first.http.post("/models/verify", json={"model": "none"}).status_code == 404


@pytest.mark.proof
def test_a_model_is_kept_while_it_is_loaded_and_while_it_streams(nodes: tuple[Node, Node]) -> None:
    first, _ = nodes
    assert first.shoal("load", REPOSITORY).returncode == 0
    stream = first.stream(
        "Tell me of the sea.", model=REPOSITORY, max_tokens=3000, ignore_eos=True
    ).flowing()
    answer = removed(first)
    assert answer.status_code == 409 and f"`shoal stop {REPOSITORY}`" in answer.text
    kept = first.shoal("rm", REPOSITORY, "--everywhere", "--yes")
    assert kept.returncode == 1 and "is loaded or loading" in kept.stderr, kept
    stream.wait(120)
    assert not stream.error, stream
    assert first.shoal("stop", REPOSITORY).returncode == 0
    assert is_whole(first)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.proof) for seed in range(1, 4))]
)
def test_a_load_and_a_removal_at_one_moment_leave_a_whole_model_or_none(
    nodes: tuple[Node, Node], seed: int
) -> None:
    first, second = nodes
    assert first.shoal("pull", REPOSITORY).returncode == 0
    dice, loaded = random.Random(seed), list[Any]()
    loads = threading.Thread(target=lambda: loaded.append(_load(first)))
    first_goes = dice.random() < 0.5
    if first_goes:
        loads.start()
    time.sleep(dice.uniform(0.0, 0.05))
    if not first_goes:
        threading.Timer(dice.uniform(0.0, 0.05), loads.start).start()
    gone = removed(first)
    eventually(lambda: loads.ident is not None, 30, "the load began")
    loads.join(120)
    assert loaded, f"no answer in time; {gone.text}\n{first.logs()}\n{second.logs()}"
    (load,) = loaded
    if gone.status_code == 409:
        assert "is loaded or loading" in gone.text, gone.text
    else:
        assert gone.status_code == 200 and any(n["deleted"] for n in gone.json()["nodes"]), (
            gone.text
        )
    left = [node for node in (first, second) if is_whole(node)]
    if load.status_code == 200:
        assert left, "loaded from nothing"
    else:
        assert load.json()["error"]["message"], load.text
    assert first.shoal("stop", REPOSITORY).returncode in (0, 4)
    eventually(lambda: not _copies(first), 60, "no copy of the model")


def _load(node: Node) -> Any:
    """Ask the model something, which loads it."""
    return node.chat("Hi.", model=REPOSITORY, max_tokens=3)


def _copies(node: Node) -> list[Any]:
    return [one for one in node.state()["instances"].values() if one["model"] == REPOSITORY]
