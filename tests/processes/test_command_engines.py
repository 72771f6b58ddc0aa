"""Programs of `engines.toml` on a real node: listed, loaded, asked in all dialects, killed."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.harness.command_site import SERVER
from tests.harness.engine_wheels import write_wheel
from tests.harness.llama_site import TINY
from tests.harness.nodes import MODEL, Node, eventually

pytestmark = pytest.mark.nodes
FAKE, REAL, ENVIRONED = "fake", "mlx-served", "environed"
TOOL: dict[str, Any] = {"name": "weather", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture(scope="module")
def served(node: Node) -> Iterator[Node]:
    """Give the node two engines: a server of ours that speaks as vLLM does, and mlx_lm.server."""
    file = node.home / "config" / "engines.toml"
    file.write_text(
        f"""\
[engines.{FAKE}]
command = "{sys.executable} {SERVER} --port {{port}} --model {{model}} --key {{key}}"
memory_bytes = 200_000_000
calls_tools = true
stall_s = 3.0

[engines.{REAL}]
command = "{sys.executable} -m mlx_lm server --model {{model}} --port {{port}}"
model = "{TINY}"
context_tokens = 4096
"""
    )
    eventually(lambda: REAL in node.shoal("ls").stdout, 30, "the engines are listed")
    yield node
    file.unlink()
    for name in (FAKE, REAL):
        node.shoal("stop", name)
    eventually(lambda: not programs(node), 30, "the programs are gone")


def programs(node: Node) -> list[psutil.Process]:
    """The programs of this node's engines, without their guards."""
    found: list[psutil.Process] = []
    for process in node.all_processes():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if str(SERVER) in words and not any("guard.py" in word for word in words):
            found.append(process)
    return found


def test_it_is_listed_shown_and_answers_in_every_dialect(served: Node) -> None:
    shown = served.shoal("show", FAKE).stdout
    assert "a program of engines.toml" in shown and "tools" in shown
    turns = [{"role": "user", "content": "Hello"}]
    common: dict[str, Any] = {"model": FAKE, "messages": turns}
    http = served.http
    chat = http.post("/v1/chat/completions", json={**common, "max_tokens": 3}, timeout=60).json()
    assert chat["choices"][0]["message"]["content"] == "1 2 3 ", chat
    assert chat["usage"]["prompt_tokens"] == 7
    anthropic = http.post("/v1/messages", json={**common, "max_tokens": 3}).json()
    assert anthropic["content"][0]["text"] == "1 2 3 " and anthropic["stop_reason"] == "max_tokens"
    ollama = {**common, "stream": False, "options": {"num_predict": 3}}
    assert http.post("/api/chat", json=ollama).json()["message"]["content"] == "1 2 3 "
    generate = {"model": FAKE, "prompt": "Hello", "stream": False, "options": {"num_predict": 3}}
    generated = http.post("/api/generate", json=generate)
    assert generated.json()["response"] == "1 2 3 ", generated.text
    assert http.post("/api/generate", json={**generate, "context": [1]}).status_code == 400
    responses = {"model": FAKE, "input": "Hello", "max_output_tokens": 16}
    output = http.post("/v1/responses", json=responses).json()["output"]
    assert output[0]["content"][0]["text"].startswith("1 2 3 "), output
    tools = [{"type": "function", "function": TOOL}]
    called = http.post("/v1/chat/completions", json={**common, "tools": tools}).json()
    (call,) = called["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
    refused = http.post("/v1/embeddings", json={"model": FAKE, "input": "x"})
    assert 400 <= refused.status_code < 500, refused.text
    assert not any(FAKE in each for each in served.shoal("rm", FAKE).stdout.splitlines()[1:])
    assert FAKE in served.shoal("ps").stdout


def test_a_killed_program_ends_the_stream_and_starts_again(served: Node) -> None:
    assert answers(served)
    (before,) = programs(served)
    body = {"model": FAKE, "messages": [{"role": "user", "content": "x"}], "stream": True}
    with served.http.stream("POST", "/v1/chat/completions", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        next(line for line in lines if re.search(r'"content":"\d', line))
        before.send_signal(signal.SIGKILL)
        rest = "".join(lines)
    assert "runner_lost" in rest, rest[-500:]
    eventually(lambda: answers(served), 90, "the next answer")
    (after,) = programs(served)
    assert after.pid != before.pid


def test_nothing_is_left_of_a_killed_runner(served: Node) -> None:
    assert answers(served)
    (program,) = programs(served)
    guard = program.parent()
    assert guard is not None
    runner = guard.ppid()
    os.kill(runner, signal.SIGKILL)
    eventually(lambda: not program.is_running() or gone(program), 15, "the program is gone")
    eventually(lambda: answers(served), 90, "the next answer")
    assert served.chat("Hi", model=MODEL, max_tokens=2).status_code == 200


def answers(node: Node) -> bool:
    return node.chat("Hello", model=FAKE, max_tokens=2).status_code == 200


def gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.proof
def test_a_real_server_answers_as_the_model_does_alone(served: Node) -> None:
    fields: dict[str, Any] = {"max_tokens": 12, "temperature": 0.0}
    fields["chat_template_kwargs"] = {"enable_thinking": False}
    own = served.chat("What is shoal?", model=MODEL, **fields).json()
    other = served.chat("What is shoal?", model=REAL, **fields)
    assert other.status_code == 200, other.text
    texts = [each["choices"][0]["message"]["content"] for each in (own, other.json())]
    assert texts[0] == texts[1]

    def memory() -> int:
        return json.loads(served.shoal("show", REAL, "--json").stdout)["memory_bytes"]

    eventually(lambda: memory() > 100 << 20, 20, "its memory is measured")


def test_a_file_that_is_wrong_is_told_and_changes_nothing(served: Node) -> None:
    file = served.home / "config" / "engines.toml"
    before = file.read_text()
    try:
        file.write_text(before.replace("stall_s = 3.0", "stal_s = 3.0"))
        eventually(lambda: "stal_s" in served.shoal("ls").stderr, 15, "the mistake is told")
        assert "engines.toml, line 5" in served.shoal("doctor").stdout
        assert answers(served)
    finally:
        file.write_text(before)


def test_a_program_of_an_environment_is_there_once_that_is_made(
    served: Node, tmp_path: Path
) -> None:
    write_wheel(tmp_path, "vllm_like", "1.0", script="vllm-like", code=SERVER.read_text())
    file = served.home / "config" / "engines.toml"
    before = file.read_text()
    command = "vllm-like --port {port} --model {model} --key {key}"
    table = f'[engines.{ENVIRONED}]\ncommand = "{command}"\nvenv = "like"\n'
    try:
        file.write_text(f"{before}\n{table}")
        eventually(lambda: "no environment like" in served.shoal("ls").stderr, 15, "it is told")
        # another HTTP process may know of it a moment later
        eventually(
            lambda: "shoal engine add like" in served.chat("Hello", model=ENVIRONED).text,
            15,
            "requests are refused with the remedy",
        )
        assert served.chat("Hello", model=ENVIRONED).status_code == 404
        words = ("--find-links", str(tmp_path), "--no-index")
        made = served.shoal("engine", "add", "like", "vllm-like==1.0", *words)
        assert "made like: vllm-like==1.0" in made.stdout, made.stderr
        eventually(lambda: ENVIRONED in served.shoal("ls").stdout, 15, "the engine is listed")
        answer = served.chat("Hello", model=ENVIRONED, max_tokens=2)
        assert answer.status_code == 200, answer.text + served.logs()
        assert "in use by" in served.shoal("engine", "rm", "like").stderr
        served.shoal("stop", ENVIRONED)
        eventually(
            lambda: served.shoal("engine", "rm", "like").returncode == 0,
            20,
            "nothing uses it",
        )
    finally:
        file.write_text(before)
