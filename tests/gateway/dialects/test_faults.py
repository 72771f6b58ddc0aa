from __future__ import annotations

import json
from typing import get_args

import pytest

from bus.wire.cards import PassedOver, passed_over_named
from bus.wire.errors import BadRequest, ContextOverflow, FailReason, Refusal, RefusalReason
from bus.wire.ids import ModelId, RequestId
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import Failed
from gateway.dialects import faults
from gateway.dialects.anthropic import ANTHROPIC
from gateway.dialects.api_table import Api
from gateway.dialects.dialect import headers_of
from gateway.dialects.ollama.api import OLLAMA
from gateway.dialects.openai.api import OPENAI
from gateway.dialects.registry import APIS


def _failed(reason: FailReason, **details: object) -> Failed:
    return Failed(RequestId("req-a-0-b-1"), 3, reason, "why", Usage(), details)


def test_every_reason_has_a_status() -> None:
    assert set(faults.REFUSALS) == set(get_args(RefusalReason))
    assert set(faults.FAILURES) == set(get_args(FailReason))
    rows = [*faults.REFUSALS.values(), *faults.FAILURES.values()]
    assert all(400 <= row.status < 600 for row in rows)


@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [
        ("queue_full", 429, "queue_full"),
        ("context_length", 400, "context_length_exceeded"),
        ("unknown_model", 404, "model_not_found"),
        ("insufficient_memory", 507, "insufficient_memory"),
        ("draining", 503, "draining"),
        ("pending", 503, "model_loading"),
    ],
)
def test_refusals_have_real_statuses(reason: RefusalReason, status: int, code: str) -> None:
    fault = faults.of_refusal(Refusal(reason=reason, message="why", field="model"))
    assert (fault.status, fault.code, fault.message, fault.field) == (status, code, "why", "model")


@pytest.mark.parametrize(
    ("reason", "status"),
    [("overloaded", 429), ("deadline", 504), ("model_unavailable", 503), ("context_length", 400),
     ("memory_pressure", 507), ("internal", 500), ("runner_lost", 503), ("bad_request", 400)],
)  # fmt: skip
def test_failures_have_real_statuses(reason: FailReason, status: int) -> None:
    assert faults.of_failed(_failed(reason)).status == status


def test_memory_that_is_pinned_is_no_matter_of_waiting() -> None:
    full = Refusal(reason="no_capacity", message="full", retry_after_s=2.0)
    assert faults.of_refusal(full).status == 503
    pinned = full.model_copy(update={"facts": {"pinned": ["m"]}, "retry_after_s": None})
    fault = faults.of_refusal(pinned)
    assert (fault.status, fault.code, fault.retry_after_s) == (507, "no_capacity", None)


def test_a_full_queue_says_when_to_come_back_and_its_place() -> None:
    refusal = Refusal(reason="queue_full", message="full", retry_after_s=2.2, position=9)
    headers = dict(headers_of(faults.of_refusal(refusal)))
    assert headers["retry-after"] == "3"
    assert headers["x-queue-position"] == "9"
    answer = OPENAI.envelope.answer(faults.of_refusal(refusal))
    assert json.loads(answer.body)["error"]["position"] == 9


@pytest.mark.parametrize("api", APIS, ids=lambda one: one.title)
def test_retry_after_is_there_exactly_when_trying_again_may_help(api: Api) -> None:
    rows = {**faults.REFUSALS}
    for reason, row in rows.items():
        answer = api.envelope.answer(faults.of_refusal(Refusal(reason=reason, message="why")))
        assert answer.status == row.status
        assert ("retry-after" in dict(answer.headers)) == (row.retry_after_s is not None)
    assert faults.REFUSALS["queue_full"].retry_after_s is not None
    assert faults.REFUSALS["pending"].retry_after_s is not None
    assert faults.REFUSALS["context_length"].retry_after_s is None


def test_details_of_a_failure_become_field_and_facts() -> None:
    fault = faults.of_failed(_failed("bad_request", field="tools[0]", retry_after_s=4, seen=2))
    assert (fault.field, fault.retry_after_s, fault.facts) == ("tools[0]", 4.0, {"seen": 2})


def test_openai_errors_have_their_four_keys_and_the_numbers() -> None:
    overflow = ContextOverflow(prompt_tokens=5000, limit_tokens=4096)
    answer = OPENAI.envelope.answer(faults.of_overflow(overflow))
    assert answer.status == 400
    assert json.loads(answer.body) == {
        "error": {
            "message": "This model's maximum context length is 4096 tokens. However, your "
            "messages resulted in 5000 tokens. Please reduce the length of the messages.",
            "type": "invalid_request_error",
            "param": None,
            "code": "context_length_exceeded",
            "prompt_tokens": 5000,
            "limit_tokens": 4096,
        }
    }


def test_openai_says_of_an_answer_that_does_not_fit_what_the_refusal_says() -> None:
    facts = {"prompt_tokens": 10, "limit": 100}
    refusal = Refusal(reason="context_length", message="90 tokens are left", facts=facts)
    fault = faults.of_refusal(refusal)
    assert faults.overflow_of(fault) is None
    answer = OPENAI.envelope.answer(fault)
    assert json.loads(answer.body)["error"]["message"] == "90 tokens are left"


def test_ollama_errors_are_one_string() -> None:
    answer = OLLAMA.envelope.answer(faults.of_bad_request(BadRequest("model is required")))
    assert answer.status == 400
    assert json.loads(answer.body) == {"error": "model is required"}
    assert dict(answer.headers)["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("field", "openai", "ollama"),
    [
        ("thinking", "reasoning_effort", "think: why"),
        ("response_format.json_schema", "response_format.json_schema", "format.json_schema: why"),
        ("stop[2]", "stop[2]", "options.stop[2]: why"),
        ("messages[1].content", "messages[1].content", "messages[1].content: why"),
        ("why", "why", "why"),
        (None, None, "why"),
    ],
)
def test_a_runners_refusal_names_the_field_in_the_clients_words(
    field: str | None, openai: str | None, ollama: str
) -> None:
    fault = faults.of_refusal(Refusal(reason="unsupported", message="why", field=field))
    assert json.loads(OPENAI.envelope.answer(fault).body)["error"]["param"] == openai
    assert json.loads(OLLAMA.envelope.answer(fault).body) == {"error": ollama}


def test_an_unknown_model_names_the_command_that_fetches_it() -> None:
    fault = faults.unknown_model("qwen3-tiny", ["shoal-tiny", "other"])
    assert fault.status == 404
    # clients of Ollama's look for these words
    assert fault.message.startswith("model 'qwen3-tiny' not found")
    assert fault.message.endswith("`shoal pull qwen3-tiny`")
    assert "did you mean" in faults.unknown_model("shoal-tony", ["shoal-tiny"]).message


def test_a_name_of_a_refused_card_says_that_it_is_not_in_force_and_why() -> None:
    card = PassedOver(
        name="big",
        path="/models/big",
        why="card.toml is refused, all of it: why",
        remedy="mend it",
        taken=True,
        reason="bad_card",
        aliases=(ModelId("Fast"),),
    )
    seen = passed_over_named("fast:latest", [("box", card)])
    assert seen == ("box", card) and passed_over_named("big", [("box", card)]) is None
    none = card.model_copy(update={"name": "fast", "taken": False, "aliases": ()})
    assert passed_over_named("fast", [("a", card), ("b", none)]) == ("b", none)
    said = faults.unknown_model("fast", ["big"], seen).message
    assert said.startswith(
        "model 'fast' not found: the card that gives big this name has no effect"
    )
    assert "/models/big on box" in said and f"{card.why}; mend it" in said


def test_facts_never_replace_the_words_of_the_envelope() -> None:
    failed = _failed("internal", message="secret", code=7)
    error = json.loads(OPENAI.envelope.answer(faults.of_failed(failed)).body)["error"]
    assert (error["message"], error["code"]) == ("why", "internal_error")


@pytest.mark.parametrize(
    ("fault", "status", "header"),
    [
        (faults.unauthorized("no key"), 401, "www-authenticate"),
        (faults.method_not_allowed("PUT", ["GET", "POST"]), 405, "allow"),
        (faults.forbidden("not yours"), 403, "content-type"),
        (faults.too_large(100), 413, "content-type"),
        (faults.not_found("/x"), 404, "content-type"),
        (faults.internal("req-1"), 500, "content-type"),
    ],
)
def test_faults_of_the_door_have_their_headers(
    fault: faults.HttpFault, status: int, header: str
) -> None:
    answer = OPENAI.envelope.answer(fault)
    assert answer.status == status
    assert header in dict(answer.headers)


def test_libraries_ask_again_only_what_may_go_better() -> None:
    """They ask again after 409 and any 5xx, unless it is said that this is of no use."""
    full = faults.of_refusal(Refusal(reason="insufficient_memory", message="m"))
    assert ("x-should-retry", "false") in headers_of(full)
    loading = faults.of_refusal(Refusal(reason="pending", message="m"))
    names = [name for name, _ in headers_of(loading)]
    assert "retry-after" in names and "x-should-retry" not in names


@pytest.mark.parametrize(
    ("api", "named"),
    [(ANTHROPIC, "tools[3].input_schema.$ref"), (OLLAMA, "tools[3].function.parameters.$ref")],
)
def test_a_tools_schema_is_named_as_its_client_wrote_it(api: Api, named: str) -> None:
    refusal = Refusal(reason="bad_request", message="no", field="tools[3].parameters.$ref")
    assert f"{named}: no" in api.envelope.answer(faults.of_refusal(refusal)).body.decode()
