"""What a request gets if llama-server sends what it must not, ends, or never began.

The program is a fake one. `tests/processes/test_llama_faults.py` has the same with whole runners,
and with the real one.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bus.wire.messages.requests import TextPrompt
from bus.wire.messages.tokens import Failed, Finished
from runner import lifecycle
from tests.harness.fake_llama_server import STREAMS, program_in, set_fault
from tests.harness.llama_site import LlamaSite, tiny_gguf

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux has served engines"
)
SLICED: dict[str, Any] = {"ignore_eos": True, "top_logprobs": 2}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny")


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return program_in(tmp_path_factory.mktemp("program") / "fake")


@pytest.fixture(scope="module")
def site(
    tmp_path_factory: pytest.TempPathFactory, model: Path, script: Path
) -> Iterator[LlamaSite]:
    made = LlamaSite(tmp_path_factory.mktemp("s"), model, program=(str(script),))
    try:
        assert made.host.phase == "ready", made.host.left
        yield made
    finally:
        made.close()
    assert not made.has_child


def ask(site: LlamaSite, name: str, **fields: Any) -> Finished | Failed:
    site.gateway.submit(name, TextPrompt(text="Once"), max_tokens=9, **fields)
    return site.ended(name)


WORDS = {
    "garbage": "cannot read",
    "not UTF-8": "cannot read",
    "a cut line": "cannot read",
    "a stream without an end": "ended its answer early",
    "an endless line": "cannot read",
    "ten thousand brackets": "cannot read",
    "an infinite number": "cannot read",
    "an error event": "no room in the KV cache",
    "a count of 10^15": "could not be read",
    "more tokens than requested": "could not be read",
    "refuses": "refused it (400)",
    "fails": "refused it (500)",
}
"""What the end of a request says, by fault."""
REASONS = {
    "refuses": "bad_request",
    "a count of 10^15": "internal",
    "more tokens than requested": "internal",
}
"""The reasons of ends other than `runner_lost`."""


@pytest.mark.parametrize("fault", WORDS)
def test_a_bad_answer_ends_its_request_with_a_reason_and_no_other(
    site: LlamaSite, script: Path, fault: str
) -> None:
    set_fault(script, fault)
    try:
        end = ask(site, fault)
    finally:
        set_fault(script, "")
    assert isinstance(end, Failed) and WORDS[fault] in end.message, end
    assert end.reason == REASONS.get(fault, "runner_lost")
    assert isinstance(ask(site, f"after {fault}"), Finished)
    assert site.host.left is None and not site.role.open_requests


def test_each_fault_of_an_answer_is_tried() -> None:
    assert STREAMS.keys() <= WORDS.keys()


@pytest.mark.parametrize("fault", ["an unknown token", "an odd log-probability"])
def test_a_bad_slice_ends_its_request_with_a_reason(
    site: LlamaSite, script: Path, fault: str
) -> None:
    assert isinstance(ask(site, f"before {fault}", **SLICED), Finished)
    set_fault(script, fault)
    try:
        end = ask(site, fault, **SLICED)
    finally:
        set_fault(script, "")
    assert isinstance(end, Failed) and "read" in end.message, end
    assert site.host.left is None


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("exits", "exit code 3: ggml: error: the device is lost"),
        ("exits without a word", "llama-server ended with exit code 3"),
        ("too old", "too old: build 1100"),
    ],
)
def test_a_program_that_does_not_serve_says_why(
    tmp_path: Path, model: Path, fault: str, said: str
) -> None:
    own = program_in(tmp_path / "fake")
    set_fault(own, fault)
    site = LlamaSite(tmp_path, model, program=(str(own),))
    try:
        assert site.host.left is not None
        code, _, message = site.host.left
        assert code == lifecycle.LOAD_FAILED and said in message, message
    finally:
        site.close()
    assert not site.has_child


@pytest.mark.parametrize("fault", ["is killed", "is killed later"])
def test_a_program_that_is_killed_before_it_serves_may_be_tried_again(
    tmp_path: Path, model: Path, fault: str
) -> None:
    own = program_in(tmp_path / "fake")
    set_fault(own, fault)
    site = LlamaSite(tmp_path, model, program=(str(own),))
    try:
        assert site.host.left is not None
        code, reason, message = site.host.left
        assert (code, reason) == (lifecycle.ENGINE_ERROR, "runner_lost"), message
        assert "llama-server" in message
    finally:
        site.close()


def test_a_folder_in_the_place_of_the_socket_is_named(
    tmp_path: Path, model: Path, script: Path
) -> None:
    taken = tmp_path / "runner-00.llama.sock"
    taken.mkdir()
    site = LlamaSite(tmp_path, model, program=(str(script),))
    taken.rmdir()
    try:
        assert site.host.left is not None
        assert str(taken) in site.host.left[2] and "delete it" in site.host.left[2]
    finally:
        site.close()


def test_a_socket_that_another_process_has_left_or_uses_is_replaced(
    tmp_path: Path, model: Path, script: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "runner-00.llama.sock"))
        other.listen()
        site = LlamaSite(tmp_path, model, program=(str(script),))
        try:
            assert isinstance(ask(site, "served"), Finished), site.host.left
        finally:
            site.close()
