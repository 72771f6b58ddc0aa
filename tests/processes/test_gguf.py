"""A GGUF file on a real node: listed, loaded, answered by llama-server, killed, and unloaded."""

from __future__ import annotations

import json
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
    assert "F32 (GGUF)" in listed.stdout and "file is truncated" in listed.stdout + listed.stderr
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
TOOL: dict[str, Any] = {"type": "function", "function": {
    "name": "clock", "strict": True, "parameters": {
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


SCHEMA = FORM["schema"]
NAMED = {"name": "clock", "description": "tells the time"}
PARAMETERS = TOOL["function"]["parameters"]


def conversation(dialect: str, model: str) -> list[tuple[str, dict[str, Any]]]:
    """Two requests in a dialect: one must call a tool, and one has the tool's answer before it and
    must be an object by a schema. Each is a path and a body."""
    asked = {"role": "user", "content": "What time is it?"}
    function = {**NAMED, "parameters": PARAMETERS}
    arguments = {"zone": "UTC"}
    common: dict[str, Any] = {"model": model, "temperature": 0, "max_tokens": 40}
    match dialect:
        case "openai":
            call: dict[str, Any] = {"id": "c1", "type": "function"}
            call["function"] = {"name": "clock", "arguments": json.dumps(arguments)}
            said = {"role": "assistant", "content": None, "tool_calls": [call]}
            turns: list[Any] = [asked, said]
            turns.append({"role": "tool", "tool_call_id": "c1", "content": "noon"})
            tools = [{"type": "function", "function": function}]
            form = {"type": "json_schema", "json_schema": FORM}
            none = {"reasoning_effort": "none"}
            return [
                ("/v1/chat/completions", common | none | {
                    "messages": [asked], "tools": tools, "tool_choice": "required"}),
                ("/v1/chat/completions", common | none | {
                    "messages": turns, "tools": tools, "tool_choice": "none",
                    "response_format": form}),
            ]  # fmt: skip
        case "responses":
            common["max_output_tokens"] = common.pop("max_tokens")
            call = {"type": "function_call", "call_id": "c1", "name": "clock"}
            call["arguments"] = json.dumps(arguments)
            items = [
                asked,
                call,
                {"type": "function_call_output", "call_id": "c1", "output": "noon"},
            ]
            tools = [{"type": "function", **function}]
            form = {"format": {"type": "json_schema", **FORM}}
            none = {"reasoning": {"effort": "none"}}
            return [
                ("/v1/responses", common | none | {
                    "input": [asked], "tools": tools, "tool_choice": "required"}),
                ("/v1/responses", common | none | {
                    "input": items, "tools": tools, "tool_choice": "none", "text": form}),
            ]  # fmt: skip
        case "anthropic":
            use = {"type": "tool_use", "id": "toolu_1", "name": "clock", "input": arguments}
            result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "noon"}
            turns: list[Any] = [asked, {"role": "assistant", "content": [use]}]
            turns.append({"role": "user", "content": [result]})
            tools = [{**NAMED, "input_schema": PARAMETERS}]
            form = {"format": {"type": "json_schema", "schema": SCHEMA}}
            return [
                ("/v1/messages", common | {
                    "messages": [asked], "tools": tools, "tool_choice": {"type": "any"}}),
                ("/v1/messages", common | {
                    "messages": turns, "tools": tools, "tool_choice": {"type": "none"},
                    "output_config": form}),
            ]  # fmt: skip
        case _:
            options = {"temperature": 0, "num_predict": 40}
            call = {"function": {"name": "clock", "arguments": arguments}}
            turns = [asked, {"role": "assistant", "content": "", "tool_calls": [call]}]
            turns.append({"role": "tool", "tool_name": "clock", "content": "noon"})
            base = {"model": model, "stream": False, "think": False, "options": options}
            tools = [{"type": "function", "function": function}]
            return [
                ("/api/chat", base | {"messages": [asked], "tools": tools}),
                ("/api/chat", base | {"messages": turns, "format": SCHEMA}),
            ]


def plain(dialect: str, answer: dict[str, Any]) -> Any:
    """What an answer says: its text and its calls, without ids and times."""
    match dialect:
        case "openai":
            message = answer["choices"][0]["message"]
            calls = [each["function"] for each in message.get("tool_calls") or ()]
            return message["content"], calls, answer["choices"][0]["finish_reason"]
        case "responses":
            items = answer["output"]
            texts = [part["text"] for item in items for part in item.get("content") or ()]
            calls = [(each["name"], each["arguments"]) for each in items if "arguments" in each]
            return texts, calls, answer["status"]
        case "anthropic":
            blocks = answer["content"]
            texts = [block["text"] for block in blocks if block["type"] == "text"]
            calls = [(each["name"], each["input"]) for each in blocks if "input" in each]
            return texts, calls, answer["stop_reason"]
        case _:
            message = answer["message"]
            calls = [each["function"] for each in message.get("tool_calls") or ()]
            return message["content"], calls, answer["done_reason"]


@pytest.mark.parametrize("dialect", ["openai", "responses", "anthropic", "ollama"])
def test_a_conversation_with_tools_and_a_schema_is_that_of_mlx(served: Node, dialect: str) -> None:
    answers: dict[str, list[Any]] = {}
    for model in (GGUF, MODEL):
        for path, body in conversation(dialect, model):
            answer = served.http.post(path, json=body, timeout=60)
            assert answer.status_code == 200, answer.text
            answers.setdefault(model, []).append(plain(dialect, answer.json()))
    (_, calls, _), (text, none, _) = answers[GGUF]
    print(dialect, answers[GGUF])
    assert answers[GGUF] == answers[MODEL]
    said = json.loads(text if isinstance(text, str) else text[0])
    assert set(said) == {"name", "n"} and isinstance(said["n"], int) and not none
    if dialect != "ollama":  # Ollama's API cannot require a call
        assert len(calls) == 1 and "clock" in str(calls[0])


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
