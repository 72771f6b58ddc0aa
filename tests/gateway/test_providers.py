"""Models of providers over HTTP: what a provider is asked, what comes back, and what its failures
are to a client; against servers of both kinds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.gateway_testbed import GatewayTestbed, eventually
from tests.harness.providers import (
    Provider,
    anthropic_frames,
    anthropic_whole,
    openai_frames,
    openai_whole,
)
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
    assert who(answer) == (None, "cloud:says", "asked for by its name")
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


@pytest.mark.parametrize(
    ("path", "model", "way"),
    [
        ("/api/chat", "cloud:says", "POST /v1/chat/completions"),
        ("/v1/chat/completions", "claude:says", "POST /v1/messages"),
        ("/v1/messages", "cloud:says", "POST /v1/chat/completions"),
        ("/v1/embeddings", "cloud:says", "POST /v1/chat/completions"),
    ],
)
def test_a_dialect_that_cannot_be_passed_on_is_refused_with_the_way(
    made: GatewayTestbed, openai: Provider, path: str, model: str, way: str
) -> None:
    answer = httpx.post(f"{made.url}{path}", json={"model": model, "messages": []})
    assert answer.status_code == 400 and way in answer.text and not openai.heard


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
