"""The role of a GGUF model with a real llama-server, over real sockets and threads."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.wire.messages.requests import (
    OutputFormat,
    PromptQuestion,
    Sampling,
    TextPrompt,
    TokensPrompt,
)
from bus.wire.messages.tokens import Cancel, Credit, Failed, Finished
from runner import lifecycle
from tests.harness.llama_site import TINY, LlamaSite, chat, needs_program, tiny_gguf

GREEDY = Sampling(temperature=0.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[LlamaSite]:
    made = LlamaSite(tmp_path_factory.mktemp("s"), model)
    try:
        assert made.host.phase == "ready", made.host.left
        yield made
    finally:
        made.close()


@needs_program
def test_a_chat_is_answered_and_counted(site: LlamaSite) -> None:
    site.gateway.submit("chat", chat("What is shoal?"), max_tokens=24, sampling=GREEDY)
    end = site.ended("chat")
    assert isinstance(end, Finished), end
    assert site.text("chat").strip() and site.reason("chat") in ("stop", "length")
    assert 0 < end.usage.completion_tokens <= 24 and end.usage.prompt_tokens > 5
    site.gateway.submit("again", chat("What is shoal?"), max_tokens=24, sampling=GREEDY)
    again = site.ended("again")
    assert site.text("again") == site.text("chat")
    assert isinstance(again, Finished) and again.usage.cached_tokens > 0
    reading = site.role.reading(site.reactor.now())
    assert reading.phase == "ready" and reading.running == 0
    assert reading.active_bytes > 10 << 20 and reading.process_bytes == reading.active_bytes


@needs_program
def test_choices_seeds_and_limits(site: LlamaSite) -> None:
    for name in ("first", "second"):
        site.gateway.submit(
            name, TextPrompt(text="Once"), n=2, max_tokens=4, sampling=Sampling(seed=5)
        )
        site.ended(name)
    assert site.reason("first") == site.reason("first", 1) == "length"
    assert [site.text("first", n) for n in (0, 1)] == [site.text("second", n) for n in (0, 1)]
    assert site.text("first", 0) != site.text("first", 1)


@needs_program
def test_a_stop_string_ends_the_text_before_it(site: LlamaSite) -> None:
    prompt = chat("What is shoal?")
    site.gateway.submit("whole", prompt, max_tokens=24, sampling=GREEDY)
    site.ended("whole")
    stop = site.text("whole")[5:9]
    site.gateway.submit("cut", prompt, max_tokens=24, sampling=GREEDY, stop=(stop,))
    site.ended("cut")
    assert site.reason("cut") == "stop"
    assert site.text("cut") == site.text("whole").partition(stop)[0]


@needs_program
def test_more_requests_than_rows_wait_and_all_end(site: LlamaSite) -> None:
    for number in range(8):
        site.gateway.submit(f"many{number}", TextPrompt(text="a b"), max_tokens=12)
    ends = [site.ended(f"many{number}") for number in range(8)]
    assert all(isinstance(end, Finished) for end in ends), ends


@needs_program
def test_a_cancelled_request_stops_its_row(site: LlamaSite) -> None:
    site.gateway.submit(
        "long", TextPrompt(text="a b"), max_tokens=400, credit=4000, ignore_eos=True
    )
    site.until(lambda: site.text("long"))
    site.gateway.send(Cancel("long", "client"))
    end = site.ended("long")
    assert isinstance(end, Finished) and end.usage.completion_tokens < 400
    site.gateway.submit("next", TextPrompt(text="a b"), max_tokens=4)
    assert isinstance(site.ended("next"), Finished)


@needs_program
def test_a_client_without_credit_holds_up_nobody(site: LlamaSite) -> None:
    site.gateway.submit("slow", TextPrompt(text="a b"), max_tokens=30, credit=1)
    site.gateway.submit("fast", TextPrompt(text="a b"), max_tokens=30)
    site.ended("fast")
    site.gateway.send(Credit("slow", 0, 100))
    assert isinstance(site.ended("slow"), Finished)


@needs_program
def test_questions_about_prompts_and_token_ids(site: LlamaSite) -> None:
    site.gateway.submit("asks", chat("Hi"), question=PromptQuestion(wants="tokens"))
    end = site.ended("asks")
    assert isinstance(end, Finished) and end.prompt is not None and end.prompt.token_ids
    site.gateway.submit("ids", TokensPrompt(token_ids=end.prompt.token_ids), max_tokens=3)
    assert isinstance(site.ended("ids"), Finished)


@needs_program
def test_what_llama_server_cannot_do_is_refused_by_name(site: LlamaSite) -> None:
    site.gateway.submit("scores", TextPrompt(text="Hi"), prompt_logprobs=1)
    refusal = site.refused("scores").refusal
    assert (refusal.reason, refusal.field) == ("unsupported", "prompt_logprobs")
    assert "GGUF" in refusal.message
    both = Sampling(repetition_penalty=1.2, frequency_penalty=0.5)
    site.gateway.submit("both", chat("Hi"), sampling=both)
    refusal = site.refused("both").refusal
    assert refusal.field == "repetition_penalty" and "those of the answer" in refusal.message
    schema = OutputFormat(kind="json_schema", json_schema={"type": "string", "minLength": "x"})
    site.gateway.submit("odd", chat("Hi"), output=schema)
    assert site.refused("odd").refusal.field == "response_format"
    site.gateway.submit("far", TextPrompt(text="a b c " * 2000))
    assert site.refused("far").refusal.reason == "context_length"


@needs_program
def test_a_killed_llama_server_ends_its_requests_with_a_reason(tmp_path: Path, model: Path) -> None:
    site = LlamaSite(tmp_path, model)
    try:
        site.gateway.submit(
            "cut", TextPrompt(text="a b"), max_tokens=400, credit=4000, ignore_eos=True
        )
        site.until(lambda: site.text("cut"))
        os.kill(site.child.pid, signal.SIGKILL)
        end = site.ended("cut")
        assert isinstance(end, Failed) and end.reason == "runner_lost"
        site.until(lambda: site.host.left)
        assert site.host.left is not None
        code, reason, message = site.host.left
        assert (code, reason) == (lifecycle.ENGINE_ERROR, "runner_lost")
        assert "killed by signal 9" in message
    finally:
        site.close()


@needs_program
def test_a_llama_server_that_stands_still_ends_the_runner(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.roles.llama.STILL_S", 0.3)
    site = LlamaSite(tmp_path, model)
    try:
        endless = Sampling(logit_bias=dict.fromkeys((2039, 2041), -100.0))
        site.gateway.submit("z", TextPrompt(text="a"), max_tokens=500, sampling=endless)
        site.until(lambda: site.text("z"))
        os.kill(site.child.pid, signal.SIGSTOP)

        def left() -> object:
            site.role.watch(site.reactor.now())
            return site.host.left

        site.until(left)
        assert site.host.left is not None and site.host.left[0] == lifecycle.WEDGED
        assert "used no processor time" in site.host.left[2]
    finally:
        site.close()
    assert not site.has_child


@needs_program
def test_output_that_is_not_utf_8_ends_with_its_limit(site: LlamaSite) -> None:
    vocabulary = json.loads((TINY / "tokenizer.json").read_text())["model"]["vocab"]
    for name, token in (("begun", "Ã"), ("within", "©")):
        sampling = Sampling(temperature=0.0, logit_bias={vocabulary[token]: 100.0})
        site.gateway.submit(name, TextPrompt(text="a"), max_tokens=12, sampling=sampling)
        end = site.ended(name)
        assert isinstance(end, Finished) and end.usage.completion_tokens == 12
        assert set(site.text(name)) <= {"\ufffd"} and site.reason(name) == "length"


@needs_program
@pytest.mark.parametrize(
    ("data", "said"),
    [(b"GGUF", "truncated"), (None, "llama-server ended"), (b"", "exactly one GGUF model")],
)
def test_a_file_that_does_not_load_says_why(
    tmp_path: Path, model: Path, data: bytes | None, said: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    if data is None:
        whole = (model / "tiny.gguf").read_bytes()
        data = whole.replace(b"blk.3.attn_q.weight", b"blk.3.attn_x.weight")
    if data:
        (folder / "m.gguf").write_bytes(data)
    site = LlamaSite(tmp_path, folder)
    try:
        assert site.host.left is not None
        code, _, message = site.host.left
        assert code == lifecycle.LOAD_FAILED and said in message, message
    finally:
        site.close()


def test_without_the_program_the_load_says_how_to_install_it(tmp_path: Path, model: Path) -> None:
    site = LlamaSite(tmp_path, model, program=())
    try:
        assert site.host.left is not None and "shoal-llm[llamacpp]" in site.host.left[2]
    finally:
        site.close()


def test_a_program_that_is_something_else_is_ended(tmp_path: Path, model: Path) -> None:
    other = tmp_path / "llama-server"
    other.write_text("#!/bin/sh\necho 'error: no such thing'\nexit 3\n")
    other.chmod(0o755)
    site = LlamaSite(tmp_path, model, program=(str(other),))
    try:
        assert site.host.left is not None
        assert "exit code 3: error: no such thing" in site.host.left[2]
    finally:
        site.close()
