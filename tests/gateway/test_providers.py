"""Models of providers over HTTP: what a provider is asked, what comes back, and what its failures
are to a client; in its own dialect and in all others, against servers of both kinds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.gateway_testbed import GatewayTestbed, eventually
from tests.harness.providers import (
    CALLS,
    TEXT,
    THOUGHTS,
    Provider,
    anthropic_frames,
    anthropic_whole,
    openai_frames,
    openai_whole,
)
from tests.harness.spoken import ARGUMENTS, PATHS, SCHEMA, ask, events_of, said_in
from tests.harness.tasked_gateway import (
    KEY,
    OTHER_KEY,
    TaskedGateway,
    chat,
    frames_of,
    message,
    tasked_gateway,
    who,
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TaskedGateway]:
    with tasked_gateway(tmp_path_factory.mktemp("config"), processes=2) as found:
        yield found


@pytest.fixture
def made(site: TaskedGateway) -> GatewayTestbed:
    return site.made


@pytest.fixture
def openai(site: TaskedGateway) -> Provider:
    site.openai.heard.clear()
    return site.openai


@pytest.fixture
def anthropic(site: TaskedGateway) -> Provider:
    site.anthropic.heard.clear()
    return site.anthropic


def test_a_providers_answer_comes_back_as_it_is(made: GatewayTestbed, openai: Provider) -> None:
    more = {"x_client_id": "ann", "x_priority": "high", "x_timeout_s": 20, "user_field": [1, None]}
    more["x_trace"] = True
    answer = chat(made, "cloud:says", "hello", **more)
    assert answer.status_code == 200 and answer.content == openai_whole("says")
    assert who(answer) == (None, "cloud:says", "requested by name")
    assert answer.headers["x-shoal-ignored"] == "x_trace", "its times are not known"
    (heard,) = openai.heard
    messages = [{"role": "user", "content": "hello"}]
    assert heard.body == {"model": "says", "messages": messages, "user_field": [1, None]}
    assert heard.path == "/v1/chat/completions"
    assert heard.headers["authorization"] == f"Bearer {KEY}"
    assert OTHER_KEY not in str(heard.headers), "a client's key is not the provider's to know"


def test_a_providers_stream_comes_back_as_it_is(made: GatewayTestbed) -> None:
    asked = {"stream": True, "stream_options": {"include_usage": True}}
    answer = chat(made, "cloud:says", **asked)
    assert answer.headers["content-type"] == "text/event-stream"
    assert frames_of(answer) == openai_frames({"model": "says", **asked})
    assert who(answer)[1] == "cloud:says"


def test_messages_go_to_a_provider_of_anthropics_kind(
    made: GatewayTestbed, anthropic: Provider
) -> None:
    whole = message(made, "claude:says")
    assert whole.content == anthropic_whole("says") and who(whole)[1] == "claude:says"
    streamed = message(made, "claude:says", stream=True)
    assert frames_of(streamed) == anthropic_frames("says")
    heard = anthropic.heard[0]
    assert (heard.path, heard.headers["x-api-key"]) == ("/v1/messages", KEY)
    assert heard.headers["anthropic-beta"] == "b1" and heard.body["model"] == "says"
    assert "authorization" not in heard.headers and OTHER_KEY not in str(heard.headers)


REFUSED = [
    ("cloud:unknown-key", 502, "provider_unauthorized", "SHOAL_TEST_CLOUD_KEY"),
    ("keyless:m", 502, "provider_unauthorized", "SHOAL_TEST_NO_SUCH_KEY"),
    ("cloud:busy", 429, "provider_rate_limited", "too many requests"),
    ("cloud:broken", 502, "provider_failed", "it is on fire"),
    ("cloud:overloaded", 502, "provider_failed", "529"),
    ("cloud:not-there", 404, "model_not_found", "'not-there'"),
    ("cloud:picky", 400, "provider_refused", "too hot"),
    ("cloud:elsewhere", 502, "provider_failed", "base_url"),
    ("cloud:dies-at-once", 502, "provider_broke_off", "'cloud'"),
    ("down:m", 502, "provider_unreachable", "'down'"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("model", "status", "code", "words"), REFUSED)
def test_a_refusal_is_an_error_of_the_clients_dialect_and_names_the_provider(
    made: GatewayTestbed, model: str, status: int, code: str, words: str, stream: bool
) -> None:
    answer = chat(made, model, stream=stream)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["code"] == code and words in error["message"]
    assert model.partition(":")[0] in error["message"] and KEY not in answer.text
    again = {"cloud:busy": "17", "cloud:overloaded": "3"}.get(model)
    assert again is None or answer.headers["retry-after"] == again


@pytest.mark.parametrize(("model", "status"), [("unknown-key", 502), ("busy", 429), ("picky", 400)])
def test_a_refusal_to_messages_is_in_anthropics_form(
    made: GatewayTestbed, model: str, status: int
) -> None:
    answer = message(made, f"claude:{model}")
    assert answer.status_code == status and answer.json()["type"] == "error"
    assert "'claude'" in answer.json()["error"]["message"]


def test_a_whole_answer_that_breaks_off_is_a_502(made: GatewayTestbed) -> None:
    answer = chat(made, "cloud:dies")
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "provider_broke_off")


@pytest.mark.parametrize("model", ["dies", "ends-early"])
def test_a_stream_that_breaks_off_ends_with_an_error_in_the_clients_dialect(
    made: GatewayTestbed, model: str
) -> None:
    answer = chat(made, f"cloud:{model}", stream=True)
    *said, error, last = frames_of(answer)
    assert said == openai_frames({"model": model})[:3] and last == b"data: [DONE]\n\n"
    assert json.loads(error[6:])["error"]["code"] == "provider_broke_off"
    answer = message(made, f"claude:{model}", stream=True)
    *said, error = frames_of(answer)
    assert said == anthropic_frames(model)[:3] and error.startswith(b"event: error\n")
    assert "'claude'" in json.loads(error.partition(b"data: ")[2])["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_provider_that_says_nothing_is_left_at_the_clients_deadline(
    made: GatewayTestbed, stream: bool
) -> None:
    answer = chat(made, "cloud:silent", x_timeout_s=0.3, stream=stream)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")


def test_a_stream_that_stalls_ends_with_an_error_at_the_clients_deadline(
    made: GatewayTestbed,
) -> None:
    *said, error, _ = frames_of(chat(made, "cloud:stalls", x_timeout_s=1.0, stream=True))
    assert said == openai_frames({"model": "stalls"})[:3]
    assert json.loads(error[6:])["error"]["code"] == "deadline_exceeded"


def test_a_client_that_hangs_up_ends_the_providers_answer(
    made: GatewayTestbed, openai: Provider
) -> None:
    before = openai.hung_up
    asked = {"model": "cloud:counts", "messages": [], "stream": True}
    with httpx.stream("POST", f"{made.url}/v1/chat/completions", json=asked) as answer:
        assert next(answer.iter_bytes())
    eventually(lambda: openai.hung_up > before, 10, "the provider is left")


def recent(made: GatewayTestbed, client: str) -> list[dict[str, Any]]:
    answer = httpx.get(f"{made.url}/requests/recent", params={"client": client})
    return answer.json()["requests"]


def test_what_a_provider_was_asked_is_in_the_request_log_with_its_tokens(
    made: GatewayTestbed,
) -> None:
    chat(made, "cloud:says", x_client_id="whole", x_priority="high")
    (row,) = eventually(lambda: recent(made, "whole"), 5, "a row")
    assert {
        "model": "cloud:says", "dialect": "openai_chat", "status": 200, "error": None,
        "prompt_tokens": 11, "completion_tokens": 4, "finish": "stop", "priority": 5,
        "streamed": False, "instance": None,
    }.items() <= row.items()  # fmt: skip
    assert 0 <= row["ttft_s"] <= row["seconds"]
    chat(made, "cloud:dies", x_client_id="cut", stream=True)
    (row,) = eventually(lambda: recent(made, "cut"), 5, "a row")
    told = row["status"], row["error"], row["completion_tokens"], row["streamed"]
    assert told == (200, "provider_broke_off", 3, True)
    chat(made, "cloud:busy", x_client_id="busy")
    (row,) = eventually(lambda: recent(made, "busy"), 5, "a row")
    assert (row["status"], row["error"]) == (429, "provider_rate_limited")


def test_no_key_is_in_any_line_of_the_log(made: GatewayTestbed) -> None:
    chat(made, "cloud:unknown-key")
    chat(made, "cloud:says", stream=True)
    told = Path(f"{made.folder}/gateway.log").read_text()
    assert "cloud:says" in told and KEY not in told and OTHER_KEY not in told


def test_a_gateway_that_stops_ends_a_providers_stream_in_words(tmp_path: Path) -> None:
    with tasked_gateway(tmp_path, drain_s=0.3) as site:
        asked = {"model": "cloud:counts", "messages": [], "stream": True}
        url = f"{site.made.url}/v1/chat/completions"
        with httpx.stream("POST", url, json=asked, timeout=30) as answer:
            pieces = answer.iter_bytes()
            next(pieces)
            site.made.gateway.terminate()
            said = b"".join(pieces)
        assert b"shutting down" in said and said.endswith(b"data: [DONE]\n\n")
        assert site.made.gateway.wait(20) == 0


# --- in another dialect than the provider's -----------------------------------------------------

KINDS = ("cloud", "claude")
PAIRS = [
    (dialect, kind)
    for dialect in PATHS
    for kind in KINDS
    if (dialect, kind) not in (("chat", "cloud"), ("messages", "claude"))
]
"""The other two are passed on as they are."""


def heard(site: TaskedGateway, kind: str) -> list[Any]:
    found = site.openai if kind == "cloud" else site.anthropic
    return [one.body for one in found.heard]


REASONS = {
    "chat": "tool_calls",
    "responses": "completed",
    "messages": "tool_use",
    "ollama": "stop",
    "generate": "stop",
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("dialect", "kind"), PAIRS)
def test_what_a_provider_says_comes_in_the_client_s_dialect(
    made: GatewayTestbed, dialect: str, kind: str, stream: bool
) -> None:
    usage = {"stream_options": {"include_usage": True}} if dialect == "chat" and stream else {}
    answer = ask(made, dialect, f"{kind}:works", stream=stream, **usage)
    said = said_in(dialect, answer, stream=stream)
    assert (said.text, said.thoughts) == ("".join(TEXT), "".join(THOUGHTS))
    called = [(name, json.loads(arguments)) for name, arguments in CALLS]
    assert said.calls == ([] if dialect == "generate" else called)
    assert said.reason == REASONS[dialect] and said.tokens == (11, 9)
    assert who(answer) == (None, f"{kind}:works", "requested by name")


OPENAI_TURNS = [
    {"role": "system", "content": "You fish."},
    {"role": "user", "content": "Find one."},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function",
         "function": {"name": "find_fish", "arguments": ARGUMENTS}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "a cod"},
]  # fmt: skip
ANTHROPIC_TURNS = [
    {"role": "user", "content": [{"type": "text", "text": "Find one."}]},
    {"role": "assistant", "content": [
        {"type": "tool_use", "id": "c1", "name": "find_fish", "input": ARGUMENTS}]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "c1",
         "content": [{"type": "text", "text": "a cod"}]}]},
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "kind"), PAIRS)
def test_a_provider_is_asked_in_its_own_dialect(
    site: TaskedGateway, dialect: str, kind: str
) -> None:
    (site.openai if kind == "cloud" else site.anthropic).heard.clear()
    assert ask(site.made, dialect, f"{kind}:says", stream=False).status_code == 200
    (body,) = heard(site, kind)
    assert (body["model"], body["stream"], body["max_tokens"]) == ("says", True, 50)
    count = 2 if dialect == "generate" else 4
    if kind == "cloud":
        for turn in body["messages"]:
            for call in turn.get("tool_calls", ()):
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        assert body["messages"] == OPENAI_TURNS[:count]
    else:
        assert body["system"] == "You fish." and body["messages"] == ANTHROPIC_TURNS[: count - 1]
    if dialect != "generate":
        (tool,) = body["tools"]
        schema = tool["function"]["parameters"] if kind == "cloud" else tool["input_schema"]
        assert schema == SCHEMA


@pytest.mark.parametrize("model", ["ends-early", "dies", "fails", "refuses"])
@pytest.mark.parametrize(("dialect", "kind"), PAIRS)
def test_a_stream_that_breaks_ends_in_words_of_the_client_s_dialect(
    made: GatewayTestbed, dialect: str, kind: str, model: str
) -> None:
    answer = ask(made, dialect, f"{kind}:{model}", stream=True)
    assert answer.status_code == 200
    match dialect:
        case "chat":
            error = events_of(answer)[-1]["error"]["message"]
            assert answer.text.endswith("data: [DONE]\n\n")
        case "responses":
            last = events_of(answer)[-1]
            assert last["type"] == "response.failed"
            error = last["response"]["error"]["message"]
        case "messages":
            last = events_of(answer)[-1]
            assert last["type"] == "error"
            error = last["error"]["message"]
        case _:
            error = json.loads(answer.text.splitlines()[-1])["error"]
    assert f"'{kind}'" in error and TEXT[0].strip() in answer.text
    assert ("too hot" in error) == (model == "fails") and KEY not in answer.text


@pytest.mark.parametrize(
    ("model", "status", "words"),
    [
        ("claude:busy", 429, "too many requests"),
        ("claude:unknown-key", 502, "SHOAL_TEST_CLOUD_KEY"),
        ("claude:not-there", 404, "'not-there'"),
        ("claude:dies-at-once", 502, "closed the connection"),
        ("claude:ends-early", 502, "before the end"),
    ],
)
def test_a_refusal_is_a_status_in_another_dialect_too(
    made: GatewayTestbed, model: str, status: int, words: str
) -> None:
    answer = chat(made, model)
    assert answer.status_code == status and words in answer.json()["error"]["message"]
    assert KEY not in answer.text


@pytest.mark.parametrize(
    ("dialect", "model", "more", "ignored"),
    [
        ("chat", "claude:says", {"seed": 7, "presence_penalty": 0.5}, "presence_penalty, seed"),
        ("chat", "claude:says", {"temperature": 1.7}, "temperature"),
        ("ollama", "cloud:says", {"options": {"top_k": 4, "seed": 7}}, "top_k"),
        ("ollama", "cloud:says", {"think": True}, "thinking"),
    ],
)
def test_what_a_provider_has_no_words_for_is_named(
    made: GatewayTestbed, dialect: str, model: str, more: dict[str, Any], ignored: str
) -> None:
    answer = ask(made, dialect, model, stream=False, **more)
    assert answer.status_code == 200 and answer.headers["x-shoal-ignored"] == ignored


@pytest.mark.parametrize(
    ("path", "more", "field"),
    [
        ("/v1/chat/completions", {"n": 2}, "n"),
        ("/v1/chat/completions", {"logprobs": True}, "logprobs"),
        ("/v1/chat/completions", {"response_format": {"type": "json_object"}}, "response_format"),
        ("/v1/completions", {"prompt": "Once", "messages": None}, "prompt"),
        ("/v1/completions", {"prompt": ["Once", "Twice"], "messages": None}, "prompt"),
        ("/v1/embeddings", {"input": "Once", "messages": None}, "model"),
    ],
)
def test_what_would_make_the_answer_wrong_is_refused_by_name(
    site: TaskedGateway, path: str, more: dict[str, Any], field: str
) -> None:
    site.anthropic.heard.clear()
    body = {"model": "claude:says", "messages": [{"role": "user", "content": "x"}], **more}
    body = {name: value for name, value in body.items() if value is not None}
    answer = httpx.post(site.made.url + path, json=body, timeout=30)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == field and not site.anthropic.heard


def test_an_answer_of_a_provider_is_kept_and_gone_on_from(site: TaskedGateway) -> None:
    url, asked = f"{site.made.url}/v1/responses", {"model": "claude:says", "input": "Hello"}
    first = httpx.post(url, json=asked, timeout=30).json()
    assert httpx.get(f"{url}/{first['id']}").json()["model"] == "claude:says"
    site.anthropic.heard.clear()
    more = {**asked, "previous_response_id": first["id"]}
    assert httpx.post(url, json=more, timeout=30).status_code == 200
    (body,) = heard(site, "claude")
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]


def test_a_client_that_hangs_up_ends_a_translated_answer(site: TaskedGateway) -> None:
    before = site.anthropic.hung_up
    asked = {
        "model": "claude:counts",
        "stream": True,
        "messages": [{"role": "user", "content": "x"}],
    }
    url = f"{site.made.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=asked, timeout=30) as answer:
        next(answer.iter_bytes())
    eventually(lambda: site.anthropic.hung_up > before, 10, "the provider is left")


def test_a_row_of_the_request_log_tells_of_a_translated_answer(made: GatewayTestbed) -> None:
    chat(made, "claude:works", x_client_id="over there")

    (row,) = eventually(lambda: recent(made, "over there"), 5, "a row")
    expected = {"model": "claude:works", "dialect": "openai_chat", "status": 200, "error": None}
    assert expected.items() <= row.items()
    told = row["prompt_tokens"], row["completion_tokens"], row["cached_tokens"], row["finish"]
    assert told == (11, 9, 5, "tool_calls")


def test_loading_a_provider_s_model_is_done_at_once(made: GatewayTestbed) -> None:
    answer = httpx.post(f"{made.url}/api/chat", json={"model": "cloud:says", "messages": []})
    assert (answer.status_code, answer.json()["done_reason"]) == (200, "load"), answer.text
