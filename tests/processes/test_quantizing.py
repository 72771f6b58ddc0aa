"""A model in fewer bits, through every process of a node: asked for on the command line and over
HTTP, seen, ended, killed in the middle, and answered with."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from bus.wire.messages.weights import UNFINISHED
from tests.harness.families import MODELS, write_model
from tests.harness.nodes import MODEL, Node, answered, eventually, everywhere, typed
from tests.harness.typed_lines import examples

pytestmark = pytest.mark.nodes
LARGE = MODELS["qwen3"] | {
    "hidden_size": 1024,
    "num_hidden_layers": 6,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
}


@pytest.fixture(scope="module")
def node(shared_empty: Node) -> Iterator[Node]:
    """A node with a model that takes a moment to quantize."""
    large = models_folder(shared_empty) / "someone" / "large"
    large.parent.mkdir(parents=True)
    write_model(shared_empty.home / "large", LARGE).rename(large)
    everywhere(
        lambda: httpx.get(f"{shared_empty.url}/v1/models", timeout=30).json()["data"],
        lambda found: "someone/large" in {one["id"] for one in found},
        "each HTTP process lists the large model",
        60,
    )
    yield shared_empty
    for name in listed(shared_empty) - {MODEL}:
        shutil.rmtree(models_folder(shared_empty) / name)
    large.parent.rmdir()


@pytest.fixture(autouse=True)
def clean(node: Node) -> Iterator[None]:
    yield
    for one in node.state()["instances"]:
        node.http.delete(f"/instance/{one}")
    eventually(lambda: not node.state()["instances"], 60, "nothing is loaded")


def models_folder(node: Node) -> Path:
    return node.home / "data" / "models"


def cards(node: Node) -> dict[str, Any]:
    found = node.http.get("/state").json()["telemetry"]["cards"]
    return {model["model"]: model for card in found for model in card["models"]}


def listed(node: Node) -> set[str]:
    return {one["id"] for one in node.http.get("/v1/models").json()["data"]}


def unfinished(node: Node) -> list[Path]:
    return list((models_folder(node) / UNFINISHED).glob("*"))


def begin(node: Node, /, **body: Any) -> httpx.Response:
    return node.http.post("/models/quantize", json=body)


def held_in_the_middle(node: Node, name: str) -> tuple[str, int]:
    """Begin to make a model and stop its runner while it writes; return instance and pid."""
    answer = begin(node, model="someone/large", bits=8, name=name)
    assert answer.status_code == 200, answer.text
    instance = answer.json()["instance"]

    def is_written() -> bool:
        return bool(unfinished(node)) and node.state()["instances"][instance]["status"] == "ready"

    eventually(is_written, 60, "it is being written, and the node has heard of it")
    pid = node.runner()[1]
    os.kill(pid, signal.SIGSTOP)
    assert unfinished(node), "stopped in the middle"
    return instance, pid


def test_the_command_makes_it_shows_it_and_it_answers(node: Node) -> None:
    done = node.shoal("quantize", MODEL, "--bits", "8", "--name", "tiny8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"made tiny8 from {MODEL} (")
    told = answered(
        lambda: node.shoal("ls").stdout,
        lambda told: "tiny8 " in told and f"made from {MODEL}" in told,
        "`ls` tells of it",
    )
    assert "tiny8 " in told
    done = answered(
        lambda: node.shoal("show", "tiny8", "--json"),
        lambda done: not done.returncode,
        "`show` knows it",
    )
    shown = json.loads(done.stdout)
    assert (shown["made_from"], shown["quantization"]) == (MODEL, "8-bit")
    eventually(lambda: node.state()["instances"] == {}, 20, "nothing is loaded for it any more")
    asked = {"model": "tiny8", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    answer = node.http.post("/v1/chat/completions", json=asked)
    assert answer.status_code == 200, answer.text
    eventually(lambda: cards(node)["tiny8"]["load_s"] > 0, 30, "how long it took to load is told")
    seconds = cards(node)["tiny8"]["load_s"]
    assert f"{seconds:.1f} s on " in node.shoal("show", "tiny8").stdout
    again = node.shoal("quantize", "tiny8")
    assert again.returncode == 1
    assert f"made from, {MODEL}" in again.stderr


@pytest.mark.parametrize(
    ("body", "status", "field", "said"),
    [
        ({"model": "nothing"}, 404, "model", "shoal pull nothing"),
        ({"model": MODEL, "bits": 5}, 400, "bits", "4, 6 or 8"),
        ({"model": MODEL, "group_size": 48}, 400, "group_size", "32, 64 or 128"),
        ({"model": MODEL, "name": MODEL}, 409, "name", "--name"),
        ({"model": MODEL, "name": "../x"}, 400, "name", "not a valid name for a model"),
        ({"model": MODEL, "node": "mars"}, 400, "node", "mars"),
        ({"model": MODEL, "bit": 4}, 400, "bit", "bit"),
    ],
)
def test_what_cannot_be_made_is_refused_with_the_field(
    node: Node, body: dict[str, Any], status: int, field: str, said: str
) -> None:
    answer = begin(node, **body)
    error = answer.json()["error"]
    assert (answer.status_code, error.get("param")) == (status, field), answer.text
    assert said in error["message"]


def test_it_is_shown_while_it_is_made_and_stopping_it_leaves_nothing(node: Node) -> None:
    before = listed(node)
    instance, pid = held_in_the_middle(node, "fewer")
    ps = answered(
        lambda: node.shoal("ps").stdout,
        lambda ps: "quantized from someone/large, " in ps,
        "`ps` tells of it",
    )
    assert "fewer" in ps
    assert listed(node) == before
    asked = {"model": "fewer", "messages": [{"role": "user", "content": "x"}]}
    assert node.http.post("/v1/chat/completions", json=asked).status_code == 404
    ready = node.http.get("/health").json()
    assert "fewer" not in ready["models_ready"]
    taken = begin(node, model="someone/large", bits=4, name="fewer")
    assert taken.status_code == 409
    assert node.http.delete(f"/instance/{instance}").status_code == 200
    with contextlib.suppress(ProcessLookupError):  # its worker may have killed it by then
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: instance not in node.state()["instances"], 60, "the work is over")
    eventually(lambda: not unfinished(node), 30, "its files were deleted")
    assert listed(node) == before


@pytest.mark.proof
def test_killed_in_the_middle_it_leaves_nothing_and_says_so(node: Node) -> None:
    before = listed(node)
    instance, pid = held_in_the_middle(node, "killed")
    os.kill(pid, signal.SIGKILL)
    failed = eventually(
        lambda: (
            found
            if (found := node.state()["instances"].get(instance, {})).get("status") == "failed"
            else None
        ),
        60,
        "the instance has failed",
    )
    assert failed["why"]
    eventually(lambda: not unfinished(node), 30, "what it left is removed")
    assert listed(node) == before
    assert not (models_folder(node) / "killed").exists()
    done = node.shoal("quantize", "someone/large", "--bits", "4", "--name", "killed")
    assert done.returncode == 0, done.stderr
    answered(
        lambda: node.shoal("rm", "killed", "--yes"),
        lambda done: not done.returncode,
        "what was made at last is deleted",
    )


@pytest.mark.proof
def test_an_interrupted_command_ends_the_work(node: Node) -> None:
    command = typed(node, "quantize", "someone/large", "--name", "given-up")
    try:
        eventually(lambda: unfinished(node), 60, "it is being written")
        runner = psutil.Process(node.runner()[1])
        runner.suspend()
        command.send_signal(signal.SIGINT)
        said = command.communicate(timeout=30)[1]
        with contextlib.suppress(psutil.NoSuchProcess):  # its worker may have killed it by then
            runner.resume()
    finally:
        command.kill()
    assert command.returncode == 130, said
    assert "its files were deleted" in said
    eventually(lambda: not node.state()["instances"], 60, "the work is over")
    eventually(lambda: not unfinished(node), 30, "its files were deleted")
    assert "given-up" not in listed(node)


@pytest.mark.proof
def test_a_source_that_is_cut_is_named(node: Node) -> None:
    folder = models_folder(node) / "torn"
    shutil.copytree(models_folder(node) / "someone" / "large", folder)
    eventually(lambda: "torn" in listed(node), 60, "it is listed")
    with open(folder / "model.safetensors", "r+b") as file:
        file.truncate(1_000_000)
    done = node.shoal("quantize", "torn", "--name", "whole")
    shutil.rmtree(folder)
    assert done.returncode != 0
    assert "model.safetensors is truncated" in done.stderr or "torn" in done.stderr


@pytest.mark.proof
def test_the_documented_lines_work_as_printed(node: Node) -> None:
    said = [node.shoal(*shlex.split(line)[1:]) for line in examples("quantize")]
    assert said
    assert all(one.returncode == 0 for one in said), said
