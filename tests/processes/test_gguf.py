"""A GGUF file on a real node: listed, loaded, answered by llama-server, killed, and unloaded."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tests.harness.gguf_files import small
from tests.harness.llama_site import needs_program, tiny_gguf
from tests.harness.nodes import MODEL, Node, eventually

pytestmark = [pytest.mark.nodes, needs_program]
GGUF = "made/tiny-gguf"


@pytest.fixture(scope="module")
def served(node: Node) -> Iterator[Node]:
    """Put a GGUF file, and one that is cut, among the node's models."""
    models = node.home / "data" / "models"
    folder = tiny_gguf(models / "made" / "tiny-gguf")
    (folder / "card.toml").write_text("thinking_default = false\n")
    (models / "made" / "cut").mkdir()
    (models / "made" / "cut" / "m.gguf").write_bytes(small()[:-9])
    eventually(lambda: GGUF in node.shoal("ls").stdout, 30, "the model is listed")
    yield node
    node.shoal("stop", GGUF)
    for name in ("tiny-gguf", "cut"):
        for file in (models / "made" / name).iterdir():
            file.unlink()


def llama_servers(node: Node) -> list[psutil.Process]:
    """The llama-servers of this node's runners."""
    return [each for each in node.all_processes() if "--kv-unified" in words_of(each)]


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def ask(node: Node, **fields: Any) -> Any:
    return node.chat("What is shoal?", model=GGUF, max_tokens=16, **fields)


def test_it_is_listed_and_shown_and_what_is_cut_is_told(served: Node) -> None:
    listed, shown = served.shoal("ls"), served.shoal("show", GGUF).stdout
    assert "F32 (GGUF)" in listed.stdout and "it is truncated" in listed.stdout + listed.stderr
    assert "llama-server" in shown and "LoRA adapters (model)" in shown
    tags = served.http.get("/api/tags").json()["models"]
    (details,) = [each["details"] for each in tags if each["name"].startswith(GGUF)]
    assert (details["format"], details["quantization_level"]) == ("gguf", "F32")


def test_it_answers_as_the_model_in_mlx_and_refuses_by_name(served: Node) -> None:
    answer = ask(served)
    assert answer.status_code == 200, answer.text
    own = served.chat("What is shoal?", model=MODEL, max_tokens=16).json()
    assert answer.json()["choices"][0]["message"] == own["choices"][0]["message"]
    assert answer.json()["usage"]["prompt_tokens"] == own["usage"]["prompt_tokens"]
    fields = {"repetition_penalty": 1.2, "frequency_penalty": 0.5}
    refused = ask(served, **fields)
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"] == "repetition_penalty"


def both(node: Node, text: str, **fields: Any) -> list[dict[str, Any]]:
    """The choice of the GGUF model and that of the same weights in MLX."""
    answers = [node.chat(text, model=model, **fields) for model in (GGUF, MODEL)]
    assert [each.status_code for each in answers] == [200, 200], [each.text for each in answers]
    return [each.json()["choices"][0] for each in answers]


FORM = {"name": "f", "schema": {
    "type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["name", "n"], "additionalProperties": False}}  # fmt: skip
TOOL = {"type": "function", "function": {"name": "clock", "strict": True, "parameters": {
    "type": "object", "properties": {"zone": {"enum": ["CET", "UTC"]}}, "required": ["zone"],
    "additionalProperties": False}}}  # fmt: skip


LETTERS = {"logit_bias": {str(token): 30 for token in range(64, 90)}}


@pytest.mark.parametrize(
    ("fields", "beside"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": FORM}}, {}),
        ({"tool_choice": "required"}, {"tools": [TOOL]}),
        ({"guided_regex": "[a-z]{3} [0-9]{2}"}, {}),
        ({"frequency_penalty": 2.0}, LETTERS),
        ({"presence_penalty": 2.0}, LETTERS),
        ({"min_tokens": 30}, {}),
        ({"ignore_eos": True}, {}),
        ({"thinking_budget": 5}, {"reasoning_effort": "high"}),
        ({"logprobs": True, "top_logprobs": 3}, {}),
    ],
    ids=lambda fields: next(iter(fields), ""),
)
def test_each_field_has_the_effect_that_it_has_in_mlx(
    served: Node, fields: dict[str, Any], beside: dict[str, Any]
) -> None:
    own = {"max_tokens": 32, "reasoning_effort": "none", **beside}
    gguf, mlx = both(served, "What is shoal?", **own, **fields)
    plain = served.chat("What is shoal?", model=GGUF, **own).json()["choices"][0]
    assert gguf != plain
    scores = [choice.pop("logprobs", None) for choice in (gguf, mlx)]
    for call in [*gguf["message"].get("tool_calls", ()), *mlx["message"].get("tool_calls", ())]:
        del call["id"]
    assert gguf == mlx
    if "logprobs" not in fields:
        return
    for one, other in zip(scores[0]["content"], scores[1]["content"], strict=True):
        assert one["token"] == other["token"]
        assert one["logprob"] == pytest.approx(other["logprob"], abs=0.05)
        for near, far in zip(one["top_logprobs"], other["top_logprobs"], strict=True):
            assert near["logprob"] == pytest.approx(far["logprob"], abs=0.3)


def test_a_killed_llama_server_ends_the_stream_and_the_runner_starts_again(served: Node) -> None:
    assert ask(served).status_code == 200
    stream = served.stream("Tell me a long story", model=GGUF, max_tokens=2000, ignore_eos=False)
    eventually(lambda: stream.at, 60, "the first token")
    (child,) = llama_servers(served)
    os.kill(child.pid, signal.SIGKILL)
    stream.wait(60)
    assert stream.ends == 1 and (stream.error or stream.finish), vars(stream)
    eventually(lambda: ask(served).status_code == 200, 90, "the next answer")
    assert [each.pid for each in llama_servers(served)] != [child.pid]


def test_nothing_is_left_of_a_killed_runner_or_an_unloaded_model(served: Node) -> None:
    assert ask(served).status_code == 200
    (child,) = llama_servers(served)
    runner = child.parent()
    assert runner is not None
    os.kill(runner.pid, signal.SIGKILL)
    eventually(lambda: not child.is_running() or child.status() == "zombie", 20, "the child's end")
    eventually(lambda: ask(served).status_code == 200, 90, "the next answer")
    assert served.shoal("stop", GGUF).returncode == 0
    eventually(lambda: not llama_servers(served), 30, "no llama-server")
