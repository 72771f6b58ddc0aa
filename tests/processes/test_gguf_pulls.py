"""A GGUF model in parts, pulled by a node that is killed on the way, and copied to a second node:
bytes counted at the hub, and equal answers of both nodes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.hub import HubServer, files_of
from tests.harness.llama_site import needs_program, tiny_gguf_repository
from tests.harness.nodes import Node, eventually
from tests.harness.pulling import hub_settings, two_nodes

pytestmark = [pytest.mark.proof, pytest.mark.nodes, needs_program]
REPOSITORY = "someone/tiny-gguf"
MODEL = f"{REPOSITORY}:Q4_K_M"
PARTS = 3
MB = 1 << 20


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    server = HubServer({REPOSITORY: tiny_gguf_repository(tmp_path_factory.mktemp("r"), PARTS)})
    yield server
    server.close()


@pytest.fixture(scope="module")
def nodes(hub: HubServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Node]]:
    with two_nodes(hub_settings(hub, tmp_path_factory.mktemp("hf")), {}, {}) as both:
        yield both


def expected(hub: HubServer) -> dict[str, bytes]:
    files = hub.repositories[REPOSITORY]
    names = [name for name in files if "Q4_K_M" in name]
    return {name.rpartition("/")[2]: files[name] for name in (*names, "tokenizer.json")}


def there(node: Node) -> dict[str, bytes]:
    found = files_of(node.home / "data" / "models" / MODEL)
    return {name: data for name, data in found.items() if not name.startswith(".")}


def pulls(node: Node) -> list[dict[str, Any]]:
    return node.http.get("/models/pulls").json()["pulls"]


def answer(node: Node) -> str:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "What is shoal?"}],
            "max_tokens": 16, "temperature": 0}  # fmt: skip
    reply = node.http.post("/v1/chat/completions", json=body, timeout=180)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["message"]["content"]


def on(node: Node, name: str) -> bool:
    """Whether the first node's models are known to lie on the disk of a node."""
    cards = node.http.get("/state").json()["telemetry"]["cards"]
    return any(
        card["name"] == name and any(model["model"] == MODEL for model in card["models"])
        for card in cards
    )


def test_a_killed_pull_of_parts_resumes_and_a_second_node_gets_a_copy(
    nodes: tuple[Node, Node], hub: HubServer
) -> None:
    first, second = nodes
    files = expected(hub)
    total = sum(map(len, files.values()))
    hub.faults.bytes_per_s = 1.0 * MB
    begun = first.shoal("pull", MODEL.lower(), "--detach")
    assert begun.returncode == 0 and "Q4_K_M (13.4 MB), as named" in begun.stderr, begun
    eventually(lambda: hub.sent.body_bytes > 0.4 * total, 90, "0.4 of it came")
    (row,) = pulls(first)
    assert row["model"] == MODEL and row["choice"] == "Q4_K_M (13.4 MB), as named"
    os.kill(first.pid("worker"), signal.SIGKILL)
    hub.faults.bytes_per_s = 0.0
    eventually(lambda: on(first, "first"), 90, "the model is listed")
    assert there(first) == files
    assert total <= hub.sent.body_bytes < total + 10 * MB, (total, hub.sent.body_bytes)
    verified = first.shoal("verify", MODEL)
    assert verified.returncode == 0, verified

    sent = hub.sent.body_bytes
    synced = first.shoal("sync", MODEL, "--to", "second")
    assert synced.returncode == 0, synced
    eventually(lambda: on(first, "second"), 60, "the copy is listed")
    assert there(second) == files and hub.sent.body_bytes == sent
    assert second.shoal("verify", MODEL, "--node", "second").returncode == 0
    text = answer(first)
    assert first.shoal("stop", MODEL).returncode == 0
    placed = first.shoal("place", MODEL, "--exclude", "first")
    assert placed.returncode == 0, placed
    assert answer(second) == text
    assert first.shoal("stop", MODEL).returncode == 0


def test_a_missing_part_is_named_until_it_is_back(nodes: tuple[Node, Node]) -> None:
    first, _ = nodes
    part = first.home / "data" / "models" / MODEL / "Tiny-Q4_K_M-00002-of-00003.gguf"
    content = part.read_bytes()
    part.unlink()
    said = f"{part.name} is missing"
    eventually(lambda: said in first.shoal("ls").stderr, 60, "what is missing")
    part.write_bytes(content)
    eventually(lambda: said not in first.shoal("ls").stderr, 60, "the whole model")


def test_a_paused_pull_waits_and_a_cancelled_one_leaves_nothing(
    nodes: tuple[Node, Node], hub: HubServer
) -> None:
    first, _ = nodes
    model = f"{REPOSITORY}:Q8_0"
    hub.faults.bytes_per_s = 0.2 * MB
    assert first.shoal("pull", model, "--detach").returncode == 0
    assert first.shoal("pulls", "pause", model).returncode == 0
    assert [row["state"] for row in pulls(first) if row["model"] == model] == ["paused"]
    assert first.shoal("pulls", "resume", model).returncode == 0
    assert first.shoal("pulls", "cancel", model).returncode == 0
    partial = first.home / "data" / "models" / ".pulling"
    eventually(lambda: not list(Path(partial).glob("*Q8_0*")), 30, "the partial files are deleted")
    hub.faults.bytes_per_s = 0.0
