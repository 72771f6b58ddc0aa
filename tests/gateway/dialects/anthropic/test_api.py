"""Anthropic's table: its paths, and how it tells of failures."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bus.wire.errors import BadRequest, ContextOverflow, Refusal
from gateway.dialects import faults
from gateway.dialects.anthropic.api import ANTHROPIC
from gateway.dialects.anthropic.dialect import AnthropicMessages
from gateway.dialects.faults import HttpFault, of_bad_request
from gateway.dialects.openai.api import OPENAI
from gateway.dialects.registry import APIS, api_of, envelope_of
from gateway.dialects.to_come import not_there_yet, to_come


def _error(fault: HttpFault) -> dict[str, Any]:
    answer = ANTHROPIC.envelope.answer(fault)
    assert answer.status == fault.status
    found = json.loads(answer.body)
    assert found["type"] == "error"
    return found["error"]


def test_messages_are_answered_also_under_a_base_url_with_v1() -> None:
    assert ANTHROPIC in APIS
    paths = [one.path for one in ANTHROPIC.endpoints if "messages" in one.path]
    below = ["/messages", "/messages/count_tokens"]
    assert sorted(paths) == sorted(f"{base}{path}" for base in ("/v1", "/v1/v1") for path in below)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/v1/messages", "/v1/messages/misspelt"])
def test_failures_of_its_paths_are_in_its_envelope(path: str) -> None:
    assert to_come(path) is None
    assert envelope_of(path) is ANTHROPIC.envelope
    assert envelope_of("/v1/models") is OPENAI.envelope


@pytest.mark.parametrize("path", ["/v1/messages/batches", "/v1/messages/batches/b1"])
def test_paths_below_that_are_to_come_say_so_in_its_envelope(path: str) -> None:
    row = to_come(path)
    assert row is not None and envelope_of(path) is ANTHROPIC.envelope
    error = _error(not_there_yet(path, row))
    assert error["type"] == "not_found_error" and "not available yet" in error["message"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
        (507, "api_error"),
        (529, "overloaded_error"),
    ],
)
def test_each_status_has_its_word(status: int, kind: str) -> None:
    assert _error(HttpFault(status, "code", "why")) == {"type": kind, "message": "why"}


def test_the_field_at_fault_is_in_the_message_as_its_clients_know_it() -> None:
    assert _error(faults.of_bad_request(BadRequest("system: no", field="system"))) == {
        "type": "invalid_request_error",
        "message": "system: no",
    }
    stops = faults.of_bad_request(BadRequest("too long", field="stop[0]"))
    assert _error(stops)["message"] == "stop_sequences[0]: too long"


def test_an_overflow_is_told_in_the_words_that_clients_parse() -> None:
    words = "prompt is too long: 5000 tokens > 4096 maximum"
    overflow = ContextOverflow(prompt_tokens=5000, limit_tokens=4096)
    assert _error(faults.of_overflow(overflow))["message"] == words
    for limit in ("limit", "limit_tokens"):
        facts = {"prompt_tokens": 5000, limit: 4096}
        refusal = Refusal(reason="context_length", message="too much", facts=facts)
        assert _error(faults.of_refusal(refusal)) == {
            "type": "invalid_request_error",
            "message": words,
        }


def test_a_prompt_that_fits_alone_is_not_called_too_long() -> None:
    facts = {"prompt_tokens": 4000, "limit_tokens": 4096}
    refusal = Refusal(reason="context_length", message="and 200 more", facts=facts)
    assert _error(faults.of_refusal(refusal))["message"] == "and 200 more"


def test_a_failure_names_its_request_beside_what_went_wrong() -> None:
    answer = ANTHROPIC.envelope.answer(HttpFault(404, "not_found", "why"), "msg_req-1")
    assert json.loads(answer.body) == {
        "type": "error",
        "error": {"type": "not_found_error", "message": "why"},
        "request_id": "msg_req-1",
    }
    assert "request_id" not in json.loads(
        OPENAI.envelope.answer(HttpFault(404, "x", "y"), "r").body
    )


def test_models_are_its_own_to_answer_for_its_clients_alone() -> None:
    def has(header: str) -> bool:
        return header == "anthropic-version"

    assert api_of("/v1/models/m", has) is ANTHROPIC and api_of("/v1/models/m") is None
    assert envelope_of("/v1/models", has) is ANTHROPIC.envelope
    assert envelope_of("/v1/chat/completions", has) is OPENAI.envelope
    assert api_of("/v1/v1/models") is ANTHROPIC


def test_a_thread_is_refused_in_the_words_by_which_clients_go_on_without(desk: Any) -> None:
    body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
    for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
        error = _error(
            of_bad_request(desk.refusal(AnthropicMessages(), {**body, "thread": thread}))
        )
        assert error["details"] == {"error_code": "thread_unsupported_request"}
        assert "without 'thread'" in error["message"]
    assert desk.parse(AnthropicMessages(), {**body, "thread": None}).extras.ignored == ()
    assert "details" not in _error(of_bad_request(BadRequest("no", field="model")))
