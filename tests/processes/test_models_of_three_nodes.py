"""Twenty models with cards on each of three nodes, and one pull that all three end up with."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.clusters import Cluster
from tests.harness.hub import HubServer, files_of
from tests.harness.nodes import ROOT, Node, answered
from tests.harness.pulling import REPOSITORY, tiny

pytestmark = [pytest.mark.proof, pytest.mark.nodes]
MODELS = tuple(f"org/model-{number:02}" for number in range(20))
TURN = [{"role": "user", "content": "Count from 1 to 3."}]


def alias_of(model: str) -> str:
    return f"fish-{model[-2:]}"


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    server = HubServer({REPOSITORY: tiny()})
    yield server
    server.close()


@pytest.fixture(scope="module")
def cluster(hub: HubServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(
        3,
        HF_ENDPOINT=hub.url,
        HF_HOME=str(tmp_path_factory.mktemp("hf")),
        HF_TOKEN="",
        SHOAL_RUNNER__SPARE="false",
    )
    for node in made.nodes:
        shelf = tmp_path_factory.mktemp("shelf")
        weights = shelf / "weights"
        shutil.copytree(
            ROOT / "conf" / "tiny",
            weights,
            ignore=shutil.ignore_patterns("make", "*.py", "card.toml"),
        )
        models = shelf / "models"
        for model in MODELS:
            shutil.copytree(weights, models / model, copy_function=os.link)
            (models / model / "card.toml").write_text(
                f'aliases = ["{alias_of(model)}"]\ntemperature = 0\ndefault_max_tokens = 24\n'
            )
        node.env["SHOAL_MODEL_FOLDERS"] = str(models)
    try:
        made.up()
        for node in made.nodes:
            answered(lambda node=node: names(node), lambda found: set(MODELS) <= found, "all", 120)
        yield made
    finally:
        made.close()


def names(node: Node) -> set[str]:
    return {one["id"] for one in node.http.get("/v1/models").json()["data"]}


def card_file(node: Node, model: str) -> Path:
    return Path(node.env["SHOAL_MODEL_FOLDERS"]) / model / "card.toml"


DIALECTS: dict[str, tuple[str, Callable[[str], dict[str, Any]], Callable[[Any], str]]] = {
    "chat completions": (
        "/v1/chat/completions",
        lambda name: {"model": name, "messages": TURN},
        lambda said: said["choices"][0]["message"]["content"],
    ),
    "completions": (
        "/v1/completions",
        lambda name: {"model": name, "prompt": "Count from 1 to 3."},
        lambda said: said["choices"][0]["text"],
    ),
    "responses": (
        "/v1/responses",
        lambda name: {"model": name, "input": "Count from 1 to 3."},
        lambda said: said["output"][0]["content"][0]["text"],
    ),
    "messages": (
        "/v1/messages",
        lambda name: {"model": name, "max_tokens": 24, "messages": TURN},
        lambda said: said["content"][0]["text"],
    ),
    "Ollama chat": (
        "/api/chat",
        lambda name: {"model": name, "messages": TURN, "stream": False},
        lambda said: said["message"]["content"],
    ),
    "Ollama generate": (
        "/api/generate",
        lambda name: {"model": name, "prompt": "Count from 1 to 3.", "stream": False},
        lambda said: said["response"],
    ),
}


@pytest.mark.parametrize("number", range(len(DIALECTS)), ids=list(DIALECTS))
def test_an_alias_answers_as_its_model_in_each_dialect(cluster: Cluster, number: int) -> None:
    path, asking, text_of = list(DIALECTS.values())[number]
    model, node = MODELS[number * 3], cluster.nodes[number % 3]
    by_alias = node.http.post(path, json=asking(alias_of(model)))
    by_name = node.http.post(path, json=asking(model))
    assert by_alias.status_code == by_name.status_code == 200, by_alias.text
    assert text_of(by_alias.json()) == text_of(by_name.json()) != ""
    other = cluster.nodes[(number + 1) % 3].http.get(f"/v1/models/{alias_of(model)}")
    assert other.status_code == 200, other.text


def test_an_edit_is_in_force_on_all_three_at_once(cluster: Cluster) -> None:
    model = MODELS[7]
    began = time.monotonic()
    written = cluster.nodes[1].http.put(
        f"/models/card/{model}", json={"aliases": ["herring"], "system": "Be brief."}
    )
    assert written.status_code == 200 and written.json()["in_force"], written.text
    for node in cluster.nodes:
        for name, wanted in (("herring", 200), (alias_of(model), 404)):
            answered(
                lambda node=node, name=name: node.http.get(f"/v1/models/{name}"),
                lambda found, wanted=wanted: found.status_code == wanted,
                f"{name} is {wanted}",
            )
    print(f"in force on three nodes {time.monotonic() - began:.2f} s after it was sent")
    files = {card_file(node, model).read_bytes() for node in cluster.nodes}
    assert len(files) == 1 and b"herring" in files.pop()


def test_a_typo_is_refused_and_no_node_has_it(cluster: Cluster) -> None:
    model = MODELS[11]
    before = [card_file(node, model).read_bytes() for node in cluster.nodes]
    refused = cluster.nodes[2].http.put(f"/models/card/{model}", content=b"temprature = 1\n")
    assert refused.status_code == 400 and "did you mean temperature?" in refused.text, refused.text
    typed = cluster.nodes[0].shoal("card", "add", model, "alias=wrong", "--replace")
    assert typed.returncode == 2 and "aliases" in typed.stderr, typed.stderr
    assert [card_file(node, model).read_bytes() for node in cluster.nodes] == before


def test_the_hub_sends_a_model_for_three_nodes_once(cluster: Cluster, hub: HubServer) -> None:
    hub.forget()
    done = cluster.nodes[0].shoal("pull", REPOSITORY, "--to", "all", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    told = {one["node"]: one["sources"] for one in json.loads(done.stdout)}
    first, *others = [node.node_id() for node in cluster.nodes]
    assert told.keys() == {first, *others}
    pulled = [node for node, sources in told.items() if not sources]
    assert len(pulled) == 1, told
    for node in cluster.nodes:
        copied = files_of(node.home / "data" / "models" / REPOSITORY)
        assert {name: data for name, data in copied.items() if not name.startswith(".")} == tiny()
    assert hub.sent.body_bytes == sum(map(len, tiny().values()))
