"""A model that three nodes pull by layers: bytes counted at a hub of each node, one killed on the
way, and answers over all three equal to those of the whole model on one node."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.harness.clusters import Cluster
from tests.harness.hub import HubServer, files_of
from tests.harness.nodes import Node, answered, eventually
from tests.harness.toy_model import save_toy_model

pytestmark = [pytest.mark.proof, pytest.mark.nodes]
MB = 1 << 20
MODEL, LAYERS = "someone/large", 9
COUNTS = (2, 4, 3)
SPANS = ((0, 2), (2, 6), (6, 9))
TURN = [{"role": "user", "content": "Count from 1 to 3."}]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("model") / "large"
    return files_of(save_toy_model(folder, layers=LAYERS, hidden=256, heads=4, wide=1024))


@pytest.fixture(scope="module")
def hubs(files: dict[str, bytes]) -> Iterator[list[HubServer]]:
    """A hub of each node, with the same content: so the bytes of each node are counted."""
    servers = [HubServer({MODEL: files}) for _ in range(3)]
    yield servers
    for server in servers:
        server.close()


@pytest.fixture(scope="module")
def cluster(hubs: list[HubServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("hf")
    made = Cluster(3, HF_HOME=str(home), HF_TOKEN="", SHOAL_RUNNER__SPARE="false")
    for number, (node, hub) in enumerate(zip(made.nodes, hubs, strict=True)):
        node.env |= {"HF_ENDPOINT": hub.url, "SHOAL_NODE_NAME": f"box{number}"}
    try:
        made.up()
        yield made
    finally:
        made.close()


def pulling(node: Node) -> psutil.Process | None:
    """The process of the node that pulls."""
    for process in psutil.process_iter():
        try:
            mine = process.environ().get("SHOAL_HOME") == str(node.home)
            if mine and "worker.pulling" in process.cmdline():
                return process
        except psutil.Error:
            continue
    return None


def parts(node: Node) -> dict[str, list[list[int]]]:
    """The layers of the model on each node, by the node's name, as one node knows them."""
    cards = node.http.get("/state").json()["telemetry"]["cards"]
    return {
        card["name"]: part["layers"]
        for card in cards
        for part in card["parts"]
        if part["model"] == MODEL
    }


def pulled_on(node: Node) -> dict[str, str]:
    rows = node.http.get("/models/pulls").json()["pulls"]
    return {row["name"]: row["state"] for row in rows if row["model"] == MODEL}


def said(node: Node) -> str:
    body = {"model": MODEL, "messages": TURN, "temperature": 0, "max_tokens": 12}
    answer = node.http.post("/v1/chat/completions", json=body, timeout=180)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


def seats(node: Node) -> list[tuple[int, int]]:
    """The layers of each rank of the model's ready instance."""
    instances = node.state()["instances"].values()
    ready = [one for one in instances if one["model"] == MODEL and one["status"] == "ready"]
    return sorted((s["first_layer"], s["last_layer"]) for one in ready for s in one["shards"])


def test_three_nodes_pull_their_own_layers_and_answer_as_the_whole_model_does(
    cluster: Cluster, hubs: list[HubServer], files: dict[str, bytes]
) -> None:
    first, second, _ = cluster.nodes
    size = len(files["model.safetensors"])
    names = ",".join(f"box{number}={count}" for number, count in enumerate(COUNTS))
    chosen = first.shoal("pull", MODEL, "--split", "box0,box1,box2", "--dry-run", "--json")
    assert chosen.returncode == 0, chosen.stdout + chosen.stderr
    planned = json.loads(chosen.stdout)
    assert sum(n["last_layer"] - n["first_layer"] for n in planned["nodes"]) == LAYERS
    assert {n["name"] for n in planned["nodes"]} == {"box0", "box1", "box2"}
    assert not any(hub.sent.of.get("model.safetensors") for hub in hubs)

    for hub in hubs:
        hub.forget()
        hub.faults.bytes_per_s = 2 * MB
    begun = first.shoal("pull", MODEL, "--split", names, "--detach", "--json")
    assert begun.returncode == 0, begun.stdout + begun.stderr
    eventually(lambda: hubs[1].sent.body_bytes > size / 6, 60, "a part of its layers came")
    process, worker = pulling(second), second.pid("worker")
    assert process is not None
    for pid in (process.pid, worker):
        os.kill(pid, signal.SIGKILL)
    for hub in hubs:
        hub.faults.bytes_per_s = 0.0
    held = {f"box{number}": [list(span)] for number, span in enumerate(SPANS)}
    answered(lambda: parts(first), lambda found: found == held, "each has its layers", 90)
    assert_counted(hubs, files)
    again = first.shoal("pull", MODEL, "--split", names)
    assert again.returncode == 0 and "by layers" in again.stdout, again.stdout + again.stderr
    assert_counted(hubs, files)
    for node in cluster.nodes:
        assert not (node.home / "data" / "models" / MODEL).exists()
    refusals(first)

    text = said(first)
    assert seats(first) == list(SPANS) and text
    shown = first.shoal("ls")
    assert f"layers 2 to 5 of {LAYERS} on box1" in shown.stdout, shown
    assert "box1 holds layers 2 to 5 of 9" in first.shoal("show", MODEL).stdout
    assert first.shoal("stop", MODEL).returncode == 0

    hubs[0].forget()
    whole = first.shoal("pull", MODEL, "--json")
    assert whole.returncode == 0, whole.stdout + whole.stderr
    assert hubs[0].sent.of["model.safetensors"] < size * (1 - COUNTS[0] / LAYERS) + 4 * MB
    placed = cluster.place(MODEL, excluded_nodes=["box1", "box2"])
    assert len(placed["shards"]) == 1
    assert said(first) == text


def assert_counted(hubs: list[HubServer], files: dict[str, bytes]) -> None:
    """Each hub sent its node the layers of the node, and little else."""
    size = len(files["model.safetensors"])
    small = sum(len(content) for path, content in files.items() if path != "model.safetensors")
    for number, (hub, count) in enumerate(zip(hubs, COUNTS, strict=True)):
        sent, own = hub.sent.of["model.safetensors"], size * count / LAYERS
        print(f"box{number}: {sent:,} of {size:,} bytes for {count} of {LAYERS} layers")
        # the embedding is small; besides the layers come a header, and edges of pieces; a kill
        # costs what was under way: a piece and what the sockets held, of each connection
        most = own + 4 * MB + (8 * MB if number == 1 else 0)
        assert 0.8 * own < sent < min(size, most)
        assert hub.sent.body_bytes - sent < 4 * small


def refusals(node: Node) -> None:
    """What works with whole models only says so."""

    def refused(ask: Any) -> Any:
        return answered(ask, lambda got: "no node has all of" in got.text, "it is refused", 30)

    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/models/verify", {"model": MODEL}),
        ("/models/sync", {"models": [MODEL], "to": "all"}),
        ("/models/quantize", {"model": MODEL, "bits": 4, "name": "small"}),
    ]
    for path, body in bodies:
        got = refused(lambda path=path, body=body: node.http.post(path, json=body))
        assert got.status_code == 409 and "box0 holds layers 0 to 1 of 9" in got.text, got.text
    gone = refused(lambda: node.http.get(f"/models/card/{MODEL}"))
    assert gone.status_code == 409
    alone = node.http.post("/place_instance", json={"model": MODEL, "excluded_nodes": ["box1"]})
    assert "no available node holds layers 2 to 5" in alone.text, alone.text
    assert Path(node.home / "data" / "models" / ".pulling").exists()
