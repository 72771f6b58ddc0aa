"""The role of a program of `engines.toml`, with a real program, over real sockets and threads."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bus.models.tasks import CommandEngine
from bus.wire.ids import RequestId
from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    ImagePart,
    OutputFormat,
    PromptQuestion,
    Sampling,
    TextPrompt,
    TokensPrompt,
    ToolSpec,
)
from bus.wire.messages.tokens import Cancel, Failed, Finished, Refused
from runner import lifecycle
from runner.command import guard
from runner.command.engine_process import free_port
from tests.harness.command_site import SERVER, CommandSite, engine
from tests.harness.llama_site import chat


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandSite]:
    made = CommandSite(tmp_path_factory.mktemp("s"), engine())
    try:
        assert made.host.phase == "ready", made.host.left
        yield made
    finally:
        made.close()
    assert not made.processes


def test_a_chat_is_answered_and_counted(site: CommandSite) -> None:
    site.gateway.submit("chat", chat("Hello"), max_tokens=5, sampling=Sampling(temperature=0.0))
    end = site.ended("chat")
    assert isinstance(end, Finished), end
    assert (site.text("chat"), site.reason("chat")) == ("1 2 3 4 5 ", "length")
    assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (7, 5)
    assert end.usage.prefill_s > 0 and end.usage.decode_s > 0
    asked = site.seen[-1]["body"]
    assert asked["messages"] == [{"role": "user", "content": "Hello"}]
    assert (asked["model"], asked["temperature"], asked["stream"]) == ("m", 0.0, True)
    reading = site.role.reading(site.reactor.now())
    assert reading.phase == "ready" and reading.process_bytes > 5 << 20


def test_tools_formats_and_thinking_are_passed_on(site: CommandSite) -> None:
    tool = ToolSpec(name="weather", parameters={"type": "object"})
    prompt = chat("How is the weather?").model_copy(update={"tools": (tool,)})
    site.gateway.submit("tool", prompt, max_tokens=9)
    schema = OutputFormat(kind="json_schema", json_schema={"type": "object"})
    site.gateway.submit("json", chat("An object"), max_tokens=9, output=schema)
    assert isinstance(site.ended("tool"), Finished) and isinstance(site.ended("json"), Finished)
    assert site.call("tool") == ("weather", '{"city": "Oslo"}')
    assert site.reason("tool") == "tool_calls"
    assert site.text("json") == '{"name": "shoal"}'
    site.gateway.submit("think", chat("Hm"), max_tokens=2, thinking=True)
    assert isinstance(site.ended("think"), Finished)
    assert site.text("think", channel="reasoning") == "hmm "
    asked = {each["body"]["messages"][0]["content"]: each["body"] for each in site.seen}
    wanted = asked["An object"]["response_format"]["json_schema"]["schema"]
    assert wanted == {"type": "object"}
    assert asked["How is the weather?"]["tools"][0]["function"]["name"] == "weather"


def test_local_fields_choices_and_raw_prompts(site: CommandSite) -> None:
    sampling = Sampling(top_k=5, min_p=0.1, repetition_penalty=1.2, logit_bias={7: -2.0})
    site.gateway.submit("two", chat("two"), n=2, max_tokens=3, sampling=sampling, top_logprobs=1)
    site.gateway.submit("raw", TextPrompt(text="One,"), max_tokens=3)
    site.gateway.submit("ids", TokensPrompt(token_ids=(1, 2)), max_tokens=3)
    for name in ("two", "raw", "ids"):
        assert isinstance(site.ended(name), Finished), site.gateway.entries[name][-1]
    assert site.text("two", 0) == site.text("two", 1) == "1 2 3 "
    assert site.text("raw") == site.text("ids") == " 1 2 3"
    bodies = [each["body"] for each in site.seen]
    (two,) = [body for body in bodies if body.get("n") == 2]
    assert (two["top_k"], two["min_p"], two["repetition_penalty"]) == (5, 0.1, 1.2)
    assert two["logit_bias"] == {"7": -2.0} and two["top_logprobs"] == 1
    prompts = [body["prompt"] for body in bodies if "prompt" in body]
    assert "One," in prompts and [1, 2] in prompts


def test_no_more_than_its_capacity_are_asked_at_a_time(site: CommandSite) -> None:
    names = [f"many-{number}" for number in range(6)]
    for name in names:
        site.gateway.submit(name, chat("many"), max_tokens=12)
    assert all(isinstance(site.ended(name), Finished) for name in names)
    assert max(each["at_once"] for each in site.seen) <= 2


def test_what_it_gets_not_is_refused_by_name(site: CommandSite) -> None:
    image = ImagePart(url="data:image/png;base64,AA==")
    picture = ChatPrompt(messages=(ChatMessage(role="user", parts=(image,)),))
    wrong: dict[str, tuple[Any, dict[str, Any], str]] = {
        "count": (TextPrompt(text="x"), {"question": PromptQuestion(wants="count")}, "prompt"),
        "adapter": (chat("x"), {"adapter": "pirate"}, "model"),
        "scores": (TextPrompt(text="x"), {"prompt_logprobs": 1}, "prompt_logprobs"),
        "history": (chat("x"), {"history": (1, 2)}, "history"),
        "regex": (chat("x"), {"output": OutputFormat(kind="regex", rule="a")}, "response_format"),
        "image": (picture, {}, "messages"),
    }
    for name, (prompt, fields, field) in wrong.items():
        site.gateway.submit(name, prompt, **fields)
        site.until(lambda name=name: name in site.gateway.answers)
        (answer,) = site.gateway.answers[name]
        assert isinstance(answer, Refused), answer
        assert answer.refusal.field == field and "engines.toml" in answer.refusal.message


def test_a_cancelled_request_is_hung_up_on(site: CommandSite) -> None:
    before = site.hung_up
    site.gateway.submit("long", chat("long"), max_tokens=2_000)
    site.until(lambda: len(site.gateway.entries.get("long", [])) > 3)
    site.gateway.send(Cancel(RequestId("long"), "client"))
    assert isinstance(site.ended("long"), Finished)
    assert site.reason("long") == "cancelled"
    site.until(lambda: site.hung_up > before)


@pytest.mark.parametrize(
    ("arguments", "settings", "words"),
    [
        (["--fault", "exits"], {}, "ended with exit code 4: error: cannot find the weights"),
        (["--fault", "hangs"], {}, "GET /health answered 503"),
        (["--fault", "html"], {}, "text/html instead of a stream of events"),
        (["--fault", "no-stream"], {}, "application/json instead of a stream of events"),
        (["--fault", "cut"], {}, "did not finish the answer to a short request"),
        (["--fault", "nonsense"], {}, "not a JSON object"),
        (
            ["--fault", "refuses"],
            {},
            "answered /v1/chat/completions with 400: temperature: too hot",
        ),
        (["--fault", "other-port"], {}, "no program listens at the port"),
        (["--key", "else"], {}, "answered /v1/chat/completions with 401: the key is wrong"),
        ([], {"health": "/ready"}, "GET /ready answered 503"),
        (["--fault", "greedy"], {"memory_bytes": 200 << 20}, "memory_bytes = 209,715,200"),
    ],
)
def test_a_program_that_is_not_good_says_why(
    tmp_path: Path, arguments: list[str], settings: dict[str, Any], words: str
) -> None:
    made = CommandSite(tmp_path, engine(*arguments, **settings), load_deadline_s=4.0)
    try:
        made.until(lambda: made.host.left is not None)
        assert made.host.left is not None
        code, reason, message = made.host.left
        assert (code, reason) == (lifecycle.LOAD_FAILED, "model_unavailable")
        assert words in message, message
    finally:
        made.close()
    assert not made.processes


def test_a_program_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    missing = CommandEngine(command="/no/such/program --port {port}", memory_bytes=1 << 20)
    made = CommandSite(tmp_path, missing)
    try:
        made.until(lambda: made.host.left is not None)
        assert made.host.left is not None
        assert "cannot start /no/such/program: No such file" in made.host.left[2]
    finally:
        made.close()


@pytest.mark.parametrize(
    ("fault", "number", "words"),
    [
        ("dies", 0, "exit code 3"),
        ("", signal.SIGKILL, "was killed by signal 9"),
        ("", signal.SIGSTOP, "sent nothing for 1 s"),
    ],
)
def test_a_program_that_goes_down_ends_its_requests_and_the_runner(
    tmp_path: Path, fault: str, number: int, words: str
) -> None:
    settings = engine("--later", *(("--fault", fault) if fault else ()), stall_s=1.0)
    made = CommandSite(tmp_path, settings)
    try:
        made.gateway.submit("long", chat("long"), max_tokens=2_000)
        made.until(lambda: len(made.gateway.entries.get("long", [])) > 1)
        if number:
            program = next(p for p in made.processes if "guard.py" not in " ".join(p.cmdline()))
            program.send_signal(number)
        made.until(lambda: made.host.left is not None)
        assert made.host.left is not None and made.host.left[0] == lifecycle.ENGINE_ERROR
        assert words in made.host.left[2], made.host.left
        end = made.ended("long")
        assert isinstance(end, Failed) and end.reason == "runner_lost", end
    finally:
        made.close()
    assert not made.processes


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("cut", "ended its answer early"),
        ("nonsense", "not a JSON object"),
        ("no-stream", "application/json instead of a stream"),
        ("refuses", "too hot"),
        ("dumb", "sent nothing for 1 s"),
    ],
)
def test_an_answer_that_goes_wrong_ends_with_a_reason(
    tmp_path: Path, fault: str, words: str
) -> None:
    made = CommandSite(tmp_path, engine("--fault", fault, "--later", stall_s=1.0))
    try:
        made.gateway.submit("a", chat("a"), max_tokens=20)
        end = made.ended("a")
        assert isinstance(end, Failed) and words in end.message, end
        assert end.reason == ("bad_request" if fault == "refuses" else "runner_lost")
        assert made.host.phase == "ready"
    finally:
        made.close()


def test_nothing_is_left_of_a_program_whose_runner_is_killed(tmp_path: Path) -> None:
    """Play the runner's end as the guard sees it: its standard input ends."""
    words = [sys.executable, str(SERVER), "--port", str(free_port()), "--model", "m"]
    guarding = [sys.executable, "-I", "-S", guard.__file__, str(int(signal.SIGTERM)), "1", *words]
    process = subprocess.Popen(guarding, stdin=subprocess.PIPE, start_new_session=True)
    seen = psutil.Process(process.pid)
    while not (children := seen.children(recursive=True)):
        time.sleep(0.02)
    assert process.stdin is not None
    process.stdin.close()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert process.wait(10) == 128 + signal.SIGTERM and not alive
