"""Embeddings, raw completions and token counts of providers: passed on where the provider has the
client's dialect, and refused elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.harness.gateway_testbed import eventually
from tests.harness.providers import completion_frames, plain_whole
from tests.harness.tasked_gateway import TaskedGateway, frames_of, tasked_gateway, who

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
