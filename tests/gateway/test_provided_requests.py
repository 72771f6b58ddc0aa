"""Requests to providers: each is listed in `/queue` and can be stopped by its id, and connections
are kept. Embeddings, raw completions and token counts are passed on in the provider's dialect."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.harness.gateway_testbed import GatewayTestbed, eventually
from tests.harness.providers import Provider, completion_frames, plain_whole
from tests.harness.tasked_gateway import (
    TaskedGateway,
    chat,
    frames_of,
    tasked_gateway,
    who,
)

EMBEDS = """
[tasks.embeds]
candidates = ["no-such", "cloud:says"]
"""
TURNS = [{"role": "user", "content": "x"}]
SERVED = [
    ("/v1/embeddings", "cloud:says", {"input": ["Once"], "encoding_format": "float"}, 7),
    ("/v1/completions", "cloud:says", {"prompt": "Once", "logprobs": 2}, 7),
    ("/v1/messages/count_tokens", "claude:says", {"messages": TURNS}, 0),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TaskedGateway]:
    with tasked_gateway(tmp_path_factory.mktemp("config"), more=EMBEDS) as made:
        yield made


def provider_of(site: TaskedGateway, model: str) -> Provider:
    return site.openai if model.startswith("cloud:") else site.anthropic


def queue(made: GatewayTestbed) -> dict[str, Any]:
    return httpx.get(f"{made.url}/queue", timeout=10).json()


def row_of(made: GatewayTestbed, client: str) -> dict[str, Any]:
    def rows() -> list[dict[str, Any]]:
        return [row for row in queue(made)["requests"] if row["client"] == client]

    (row,) = eventually(rows, 10, "the request is listed")
    return row


def cancel(made: GatewayTestbed, row: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{made.url}/v1/cancel/{row['request']}", timeout=10)


@pytest.mark.parametrize("model", ["cloud:counts", "claude:counts"])
def test_a_providers_stream_is_listed_and_stopped_by_its_id(
    site: TaskedGateway, model: str
) -> None:
    made, provider = site.made, provider_of(site, model)
    hung_up, client = provider.hung_up, f"reads {model}"
    turns = [{"role": "user", "content": "x"}]
    body = {"model": model, "messages": turns, "stream": True, "x_client_id": client}
    body |= {"x_priority": "high"}
    url = f"{made.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=30) as answer:
        pieces = answer.iter_bytes()
        next(pieces)
        row = row_of(made, client)
        # Anthropic's stream begins with an event that has no text
        assert row["waiting"] == (model == "claude:counts")
        assert answer.headers["x-request-id"].endswith(row["request"])
        assert (row["model"], row["provider"]) == (model, model.partition(":")[0])
        assert row["instance"] is None and row["priority"] == 5 and row["seconds"] >= 0
        assert queue(made)["waiting"] == 0, "a provider's request waits for no instance"
        assert cancel(made, row).status_code == 200
        text = b"".join(pieces).decode()
    assert text.endswith("data: [DONE]\n\n")
    if model == "cloud:counts":
        error = json.loads(text.split("\n\n")[-3].removeprefix("data: "))["error"]
        assert error["code"] == "cancelled"
    eventually(lambda: provider.hung_up > hung_up, 10, "the connection is closed")
    eventually(lambda: not queue(made)["requests"], 10, "nothing is open")
    assert cancel(made, row).status_code == 200, "a repeated stop has the same answer"


@pytest.mark.parametrize(("model", "status"), [("cloud:silent", 409), ("claude:silent", 200)])
def test_a_request_that_no_provider_has_answered_waits_and_is_stopped(
    site: TaskedGateway, model: str, status: int
) -> None:
    made, client, answers = site.made, f"waits for {model}", list[httpx.Response]()
    asking = threading.Thread(
        target=lambda: answers.append(chat(made, model, x_client_id=client)), daemon=True
    )
    asking.start()
    row = row_of(made, client)
    assert row["waiting"] and row["tokens"] == 0
    assert cancel(made, row).status_code == 200
    asking.join(20)
    assert answers[0].status_code == status
    eventually(lambda: not queue(made)["requests"], 10, "nothing is open")


def test_a_slow_reader_keeps_no_connection_of_a_stopped_request(site: TaskedGateway) -> None:
    made, provider, client = site.made, site.openai, "reads nothing"
    hung_up = provider.hung_up
    turns = [{"role": "user", "content": "x"}]
    body = {"model": "cloud:floods", "messages": turns, "stream": True, "x_client_id": client}
    url = f"{made.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=30):
        row = row_of(made, client)
        assert cancel(made, row).status_code == 200
        eventually(lambda: provider.hung_up > hung_up, 10, "the connection is closed")


@pytest.fixture
def keeping(site: TaskedGateway) -> Iterator[TaskedGateway]:
    site.openai.keeps = site.anthropic.keeps = True
    yield site
    site.openai.keeps = site.anthropic.keeps = False


def test_a_connection_is_kept_after_whole_answers_alone(keeping: TaskedGateway) -> None:
    made, openai = keeping.made, keeping.openai

    def port(model: str, **more: Any) -> int:
        chat(made, model, **more)
        return (keeping.anthropic if model.startswith("claude:") else openai).heard[-1].port

    first = port("cloud:says")
    assert port("cloud:says", stream=True) == first, "a stream that was read to its end"
    assert port("cloud:busy") == first, "a refusal that was read to its end"
    assert port("claude:works") == port("claude:works", stream=True), "translated answers"
    again = port("cloud:says", x_client_id="kept")
    assert again == first, "each provider has its own connections"
    # a stream that is stopped within its answer, and answers that break off
    assert port("cloud:silent", x_timeout_s=0.3) == first
    second = port("cloud:says")
    assert second != first, "an answer was open on the first one"
    assert port("cloud:dies", stream=True) == second
    third = port("cloud:says")
    assert third not in (first, second)
    assert "connection" not in openai.heard[-1].headers


def test_a_connection_that_the_provider_closed_is_not_used(keeping: TaskedGateway) -> None:
    keeping.openai.keeps = False
    ports = set[int]()
    for _ in range(3):
        assert chat(keeping.made, "cloud:says").status_code == 200
        ports.add(keeping.openai.heard[-1].port)
    assert len(ports) == 3


# --- embeddings, raw completions and token counts ---


def post(site: TaskedGateway, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(site.made.url + path, json=body, timeout=30)


@pytest.mark.parametrize(("path", "model", "fields", "tokens"), SERVED)
def test_a_provider_answers_in_its_own_dialect(
    site: TaskedGateway, path: str, model: str, fields: dict[str, Any], tokens: int
) -> None:
    answer = post(site, path, {"model": model, "x_client_id": path, **fields})
    assert answer.status_code == 200 and answer.content == plain_whole(path, "says"), answer.text
    heard = (site.openai if model.startswith("cloud") else site.anthropic).heard[-1]
    assert heard.path == path and heard.body == {"model": "says", **fields}

    def rows() -> list[dict[str, Any]]:
        asked = {"client": path}
        return httpx.get(f"{site.made.url}/requests/recent", params=asked).json()["requests"]

    (row,) = eventually(rows, 5, "a row")
    assert (row["model"], row["error"], row["prompt_tokens"]) == (model, None, tokens)


def test_a_raw_completion_streams_and_an_embedding_never_does(site: TaskedGateway) -> None:
    body = {"model": "cloud:says", "prompt": "Once", "stream": True}
    assert frames_of(post(site, "/v1/completions", body)) == completion_frames("says")
    broken = post(site, "/v1/completions", {**body, "model": "cloud:dies"})
    *_, error, last = frames_of(broken)
    assert json.loads(error[6:])["error"]["code"] == "provider_broke_off"
    assert last == b"data: [DONE]\n\n"


def test_a_task_may_have_embeddings_of_a_provider(site: TaskedGateway) -> None:
    answer = post(site, "/v1/embeddings", {"model": "embeds", "input": "Once"})
    assert answer.status_code == 200 and who(answer)[:2] == ("embeds", "cloud:says"), answer.text


@pytest.mark.parametrize(
    ("path", "model", "fields"),
    [
        ("/v1/embeddings", "claude:says", {"input": "Once"}),
        ("/api/embed", "cloud:says", {"input": "Once"}),
        ("/v1/messages/count_tokens", "cloud:says", {"messages": TURNS}),
        ("/v1/responses/input_tokens", "cloud:says", {"input": "Once"}),
        ("/v1/completions", "claude:says", {"prompt": "Once"}),
        ("/api/generate", "cloud:says", {"prompt": "Once", "raw": True}),
    ],
)
def test_what_the_provider_does_not_have_is_refused(
    site: TaskedGateway, path: str, model: str, fields: dict[str, Any]
) -> None:
    site.openai.heard.clear()
    site.anthropic.heard.clear()
    answer = post(site, path, {"model": model, **fields})
    assert answer.status_code == 400 and "provider" in answer.text
    assert not site.openai.heard and not site.anthropic.heard


@pytest.mark.parametrize(
    ("model", "status", "code"),
    [("busy", 429, "provider_rate_limited"), ("not-there", 404, "model_not_found")],
)
def test_a_provider_that_refuses_embeddings_is_an_error(
    site: TaskedGateway, model: str, status: int, code: str
) -> None:
    answer = post(site, "/v1/embeddings", {"model": f"cloud:{model}", "input": "Once"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
