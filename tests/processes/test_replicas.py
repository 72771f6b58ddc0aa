"""A model under load on two real nodes: it gets a replica, both copies answer, and the replica goes
when another model wants its room."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.harness.nodes import ROOT, Node, answered, eventually
from tests.harness.pulling import two_nodes

pytestmark = pytest.mark.nodes
CLIENTS, PATIENCE_S = 6, 120


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Node]]:
    """Two nodes with a slot each, and two models on both."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("first", "second"):
        left_out = shutil.ignore_patterns("make", "*.py")
        shutil.copytree(ROOT / "conf" / "tiny", folder / name, ignore=left_out)
    shared = {
        "SHOAL_MODEL_FOLDERS": str(folder), "SHOAL_SLOTS": "1", "SHOAL_PRELOAD": "",
        "SHOAL_RUNNER__SPARE": "false", "SHOAL_POOL__REPLICA_ROWS": "2",
        "SHOAL_POOL__REPLICA_AFTER_S": "2",
    }  # fmt: skip
    with two_nodes(shared, {}, {}) as made:
        yield made


def ask(client: httpx.Client, model: str, text: str, tokens: int) -> httpx.Response:
    messages = [{"role": "user", "content": text}]
    body = {"model": model, "messages": messages, "max_tokens": tokens, "ignore_eos": True}
    return client.post("/v1/chat/completions", json=body, timeout=180)


@contextmanager
def load(node: Node, model: str) -> Iterator[None]:
    """Clients that each ask something new as soon as they were answered; all of them are."""
    over, numbers, answers = threading.Event(), itertools.count(), list[httpx.Response]()

    def go_on() -> None:
        with httpx.Client(base_url=node.url) as client:
            while not over.is_set():
                answers.append(ask(client, model, f"question {next(numbers)}", 200))

    clients = [threading.Thread(target=go_on, daemon=True) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        over.set()
        for client in clients:
            client.join(PATIENCE_S)
    wrong = [one.text for one in answers if one.status_code != 200]
    assert answers and not wrong, wrong[:3]


def copies(node: Node, model: str) -> dict[str, dict[str, Any]]:
    found = node.state()["instances"].values()
    return {one["instance"]: one for one in found if one["model"] == model}


def told(node: Node) -> list[dict[str, Any]]:
    return node.http.get("/pool").json()["copies"]


def is_replicated(node: Node) -> bool:
    found = copies(node, "first").values()
    return (
        [one["status"] for one in found] == ["ready", "ready"]
        and len({one["shards"][0]["node"] for one in found}) == 2
        and sum(bool(one["replica"]) for one in told(node)) == 1
    )


def answering(node: Node) -> set[str]:
    seen = node.http.get("/metrics/snapshot").json()["instances"]
    return {one["instance"] for one in seen if one["model"] == "first" and one["running"]}


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_a_model_under_load_gets_a_replica_which_makes_way_for_another_model(
    nodes: tuple[Node, Node],
) -> None:
    one, other = nodes
    with load(one, "first"):
        for node in nodes:
            eventually(lambda node=node: is_replicated(node), PATIENCE_S, "it has a replica")
        found = answered(lambda: copies(one, "first"), lambda it: len(it) == 2, "both are known")
        first, replica = sorted(found.values(), key=lambda it: bool(it["replica"]))
        assert not first["replica"]
        assert "its instance was overloaded" in replica["replica"]
        both = {first["instance"], replica["instance"]}
        seen: set[str] = set()
        eventually(lambda: seen.update(answering(one)) or seen == both, 60, "both answer")
        said = answered(lambda: one.shoal("ps").stdout, lambda out: "is a replica" in out, "ps")
        assert f"first ({replica['instance']}) is a replica: for 2 s" in said, said
        assert "is a replica" in answered(
            lambda: other.shoal("pool").stdout, lambda out: "is a replica" in out, "pool"
        )
        answer = ask(other.http, "second", "hello", 4)
        assert answer.status_code == 200, answer.text
        for node in nodes:
            eventually(
                lambda node=node: set(copies(node, "first")) == {first["instance"]},
                PATIENCE_S, "the replica has made way",
            )  # fmt: skip
    answered(
        lambda: [it["why"] for it in one.http.get("/pool").json()["loads"]["changes"]],
        lambda seen: "evicted for second" in seen,
        "why it went is told",
    )
