"""What is said of models, nodes and answers is what holds for them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.harness.nodes import MODEL, Node, answered, eventually, running_node

GPU_MIB, FREE_MIB = 81_559, 80_000


def _listed(node: Node) -> dict[str, Any]:
    models = node.http.get("/v1/models").json()["data"]
    return next(one for one in models if one["id"] == MODEL)


def test_max_model_len_is_what_the_loaded_copy_takes(node: Node) -> None:
    eventually(node.ready, 30, "ready")
    for instance in node.state()["instances"]:
        node.http.delete(f"/instance/{instance}?drain_s=1")
    eventually(lambda: not node.state()["instances"], 30, "nothing is loaded")
    made_for = _listed(node)["context_length"]
    placed = node.http.post("/place_instance", json={"model": MODEL, "context_tokens": 600})
    assert placed.status_code == 200, placed.text
    eventually(lambda: _listed(node)["loaded"], 60, "it is loaded")
    (instance,) = node.state()["instances"].values()
    found = _listed(node)
    assert found["max_model_len"] == instance["context_tokens"] < made_for, found
    node.http.delete(f"/instance/{instance['instance']}?drain_s=1")
    eventually(lambda: not node.state()["instances"], 30, "nothing is loaded")
    assert node.chat("hi", max_tokens=1).status_code == 200, "it is loaded as it was before"


def test_a_cancelled_stream_does_not_say_that_a_limit_was_reached(node: Node) -> None:
    stream = node.stream("Tell me about the sea.", max_tokens=3000, ignore_eos=True).flowing(1)
    (request,) = answered(
        lambda: httpx.get(f"{node.url}/queue", timeout=30).json()["requests"],
        lambda requests: len(requests) == 1,
        "the process that has the request tells of it",
    )
    assert node.http.post(f"/v1/cancel/{request['request']}").status_code == 200
    stream.wait(60.0)
    assert stream.done and stream.error is None
    assert stream.finish == "stop", stream.finish


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with room for no model, and a tool of NVIDIA's that tells of one GPU."""
    tool = tmp_path_factory.mktemp("tools") / "nvidia-smi"
    row = f"0, GPU-1, 00000000:01:00.0, NVIDIA H100, 550.54.14, {GPU_MIB}, {FREE_MIB}"
    tool.write_text(f'#!/bin/sh\ncase "$1" in *index*) echo "{row}";; *) echo {GPU_MIB};; esac\n')
    tool.chmod(0o755)
    path = f"{tool.parent}:{os.environ['PATH']}"
    with running_node(PATH=path, SHOAL_MEMORY_BYTES="10000000", SHOAL_PRELOAD="") as made:
        yield made


def test_a_refusal_names_the_operators_number(small: Node) -> None:
    eventually(lambda: small.http.get("/v1/models").json()["data"], 30, "models are listed")
    answer = small.http.post("/place_instance", json={"model": MODEL})
    assert answer.status_code == 507, answer.text
    message = answer.json()["error"]["message"]
    assert "memory_bytes" in message and "recommends" not in message, message


def test_every_status_has_its_name(small: Node) -> None:
    path = f"/instance/placement?model={MODEL}"

    def first_line() -> str:
        with socket.create_connection(("127.0.0.1", small.base_port), timeout=60) as line:
            head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            line.sendall(head.encode())
            return line.makefile("rb").readline().decode().strip()

    first = answered(first_line, lambda line: " 507 " in line, "it has no room")
    assert first == "HTTP/1.1 507 Insufficient Storage"


def test_a_nodes_card_tells_of_its_gpu(small: Node) -> None:
    (card,) = answered(
        lambda: small.http.get("/state").json()["telemetry"]["cards"],
        lambda cards: bool(cards and cards[0]["devices"]),
        "a card with its GPUs is heard",
    )
    (device,) = card["devices"]
    assert (device["name"], device["driver"]) == ("NVIDIA H100", "550.54.14")
    assert (device["total_bytes"], device["free_bytes"]) == (GPU_MIB << 20, FREE_MIB << 20)
    assert card["vram_bytes"] == GPU_MIB << 20, card["vram_bytes"]
    mlx = [backend for backend in card["backends"] if backend.startswith("mlx")]
    assert mlx == ["mlx-cpu"], "MLX without CUDA computes on the processor"
