"""Prompts that another node computes: the same text, also when that node dies meanwhile
(decision 0109, `make prove-nodes`)."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from bus.models.kv import kv_files
from tests.bench.models import random_qwen3
from tests.harness.clusters import Cluster, running_cluster
from tests.harness.nodes import Node, eventually
from tests.processes.conftest import results_folder

pytestmark = [pytest.mark.proof, pytest.mark.nodes, pytest.mark.timeout(1200)]

NAME = "split30m"
TOKENS = 2_500
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 1.0, "seed": 11},
}


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    cached: int
    seconds: float


def ask(node: Node, salt: int, kind: str, tokens: int = TOKENS) -> Answer:
    chance = random.Random(salt)
    prompt = [chance.randrange(300, 2000) for _ in range(tokens)]
    body = {"model": NAME, "prompt": prompt, "max_tokens": 24, "ignore_eos": True, **KINDS[kind]}
    began_at = time.monotonic()
    answer = node.http.post("/v1/completions", json=body, timeout=300.0)
    assert answer.status_code == 200, answer.text
    whole = answer.json()
    cached = whole["usage"]["prompt_tokens_details"]["cached_tokens"]
    return Answer(whole["choices"][0]["text"], cached, time.monotonic() - began_at)


def logged(node: Node, process: str, text: str) -> list[dict[str, Any]]:
    return [line for line in node.log_lines(process) if text in str(line["message"])]


def note(**row: Any) -> None:
    print(json.dumps(row))
    with open(results_folder() / "phase-split.jsonl", "a") as file:
        file.write(json.dumps(row) + "\n")


def running_at(node: Node) -> float:
    """The requests that the runner of a node computes now."""
    lines = node.http.get("/metrics").text.splitlines()
    mine = [line for line in lines if line.startswith("shoal_num_requests_running{")]
    return sum(float(line.split()[-1]) for line in mine if node.node_id() in line)


def set_card(node: Node, **card: str) -> None:
    answer = node.http.put(f"/models/card/{NAME}", json=card)
    assert answer.status_code == 200 and answer.json()["in_force"], answer.text


def load_on(cluster: Cluster, number: int) -> None:
    other = cluster.nodes[1 - number]
    cluster.place(NAME, excluded_nodes=[other.node_id()], seconds=300)
    hashes = cluster.nodes[number].home / "state" / "weights"
    eventually(lambda: len([*hashes.glob("?" * 32)]) >= 2, 60, "the model is hashed")


def is_ready_on(cluster: Cluster, number: int) -> bool:
    node = cluster.nodes[number].node_id()
    instances = cluster.nodes[0].state()["instances"].values()
    return any(i["status"] == "ready" and i["shards"][0]["node"] == node for i in instances)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes, each with an instance of the model."""
    model = random_qwen3(tmp_path_factory.mktemp("model") / NAME, context=8192)
    with running_cluster(2) as made:
        for node in made.nodes:
            shutil.copytree(model, node.home / "data" / "models" / NAME)
        eventually(
            lambda: all(NAME in node.http.get("/v1/models").text for node in made.nodes),
            60,
            "both nodes list the model",
        )
        for number in (0, 1):
            load_on(made, number)
        yield made


def test_the_named_node_computes_the_prompt_and_the_text_stays_the_same(cluster: Cluster) -> None:
    first, second = cluster.nodes
    set_card(first, prefill_on=second.node_id())
    split = {kind: ask(first, salt, kind) for salt, kind in enumerate(KINDS)}
    done = logged(first, "gateway", "another node has computed a prompt")
    assert [line["node"] for line in done] == [second.node_id()] * 2, first.logs()
    copies = [file for file in kv_files(first.home / "state" / "kv") if file.origin]
    assert len(copies) == 2 and all(file.origin == second.node_id() for file in copies)
    assert all(answer.cached == TOKENS - 1 for answer in split.values())
    short = ask(first, 9, "greedy", tokens=500)
    assert short.cached == 0 and len(logged(first, "gateway", "computed")) == 2

    assert first.http.delete(f"/models/card/{NAME}").status_code == 200
    cluster.clear()
    for node in cluster.nodes:
        assert node.shoal("kv", "purge").returncode == 0
    load_on(cluster, 0)
    alone = {kind: ask(first, salt, kind) for salt, kind in enumerate(KINDS)}
    for kind, answer in alone.items():
        assert (answer.cached, answer.text) == (0, split[kind].text), kind
        seconds = {"split_s": split[kind].seconds, "alone_s": answer.seconds}
        note(proof="phase split", kind=kind, **{k: round(v, 2) for k, v in seconds.items()})


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_survives_the_node_that_computes_its_prompt(cluster: Cluster, kind: str) -> None:
    first, second = cluster.nodes
    for number in (0, 1):
        if not is_ready_on(cluster, number):
            load_on(cluster, number)
    set_card(first, prefill_on=second.node_id())
    seen = len(logged(first, "gateway", "computed by its own runner"))
    salt = 20 + [*KINDS].index(kind)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, first, salt, kind)
        eventually(lambda: running_at(second) >= 1, 60, "the other node computes the prompt")
        killed_at = time.monotonic()
        second.kill()
        survived = answer.result(300)
    after_s = time.monotonic() - killed_at
    lines = logged(first, "gateway", "computed by its own runner")[seen:]
    assert len(lines) == 1 and lines[0]["why"], lines
    assert survived.cached == 0
    note(
        proof="phase split",
        kind=f"{kind}, node killed",
        seconds=round(survived.seconds, 2),
        after_kill_s=round(after_s, 2),
        why=lines[0]["why"],
    )
    assert first.http.delete(f"/models/card/{NAME}").status_code == 200
    again = ask(first, salt, kind)
    assert again.text == survived.text
    second.up(180.0)
    eventually(cluster.formed, 120, "the cluster is whole")
    cluster.clear()
