"""A runner that speaks an earlier data plane is asked for nothing that it does not know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from bus.wire.ids import ModelId
from tests.harness.gateway_testbed import MODEL, GatewayTestbed, gateway_testbed
from tests.harness.nodes import eventually


@pytest.fixture(scope="module", params=[1, 2])
def testbed(request: pytest.FixtureRequest) -> Iterator[GatewayTestbed]:
    with gateway_testbed() as made:
        made.runner(protocol=request.param)
        yield made


@pytest.fixture(scope="module")
def version_3() -> Iterator[GatewayTestbed]:
    with gateway_testbed() as made:
        made.runner(protocol=3)
        yield made


def ask(testbed: GatewayTestbed, **fields: object) -> httpx.Response:
    body: dict[str, Any] = {"model": MODEL, "prompt": "tokens=2", **fields}
    return httpx.post(f"{testbed.url}/v1/completions", json=body, timeout=10)


def test_it_is_not_asked_to_score_a_prompt_and_goes_on_to_answer(testbed: GatewayTestbed) -> None:
    before = len(testbed.runners[0].heard("submit"))
    refused = ask(testbed, echo=True, logprobs=1, max_tokens=0)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["param"] == "echo"
    assert "older shoal" in error["message"]
    answered = ask(testbed, echo=True, logprobs=None)
    assert answered.status_code == 200, answered.text
    assert answered.json()["choices"][0]["text"] == "tokens=2one two "
    runner = testbed.runners[0]
    eventually(lambda: len(runner.heard("submit")) == before + 1, 5.0, "the one that was asked")
    assert runner.heard("bad") == []


@pytest.mark.parametrize(
    "path",
    ["/v1/messages/count_tokens", "/v1/responses/input_tokens", "/tokenize", "/apply-template"],
)
def test_it_is_not_asked_about_prompts(testbed: GatewayTestbed, path: str) -> None:
    turns = [{"role": "user", "content": "tokens=2"}]
    body = {"model": MODEL, "messages": turns}

    def answered() -> httpx.Response:
        return httpx.post(f"{testbed.url}/v1/chat/completions", json=body, timeout=10)

    before = testbed.runners[0].asked_so_far(answered)
    asks = {"model": MODEL, "input": turns} if "responses" in path else body
    refused = httpx.post(f"{testbed.url}{path}", json=asks, timeout=10)
    assert refused.status_code == 400
    assert "older shoal" in refused.json()["error"]["message"]
    assert testbed.runners[0].asked_so_far(answered) == before + 1
    assert testbed.runners[0].heard("bad") == []


LATER: list[dict[str, Any]] = [
    {"guided_regex": "a+"},
    {"guided_choice": ["a"]},
    {"grammar": 'root ::= "a"'},
    {"guided_json": {"type": "object"}},
    {"min_tokens": 1},
]


def test_it_is_not_asked_for_what_came_after_version_3(version_3: GatewayTestbed) -> None:
    for sent in LATER:
        refused = ask(version_3, **sent)
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert error["param"] == next(iter(sent))
        assert "older shoal" in error["message"]
    answered = ask(version_3, response_format={"type": "json_object"})
    assert answered.status_code == 200, answered.text
    runner = version_3.runners[0]
    eventually(lambda: runner.heard("submit"), 10, "the runner says what it heard")
    assert len(runner.heard("submit")) == 1
    assert runner.heard("bad") == []


THOUGHTS: list[dict[str, Any]] = [
    {"reasoning_effort": "high"},
    {"thinking_budget": 5},
    {"chat_template_kwargs": {"style": "terse"}},
]


def test_it_is_not_told_how_much_to_think() -> None:
    with gateway_testbed() as testbed:
        runner = testbed.runner(protocol=4)
        for sent in THOUGHTS:
            refused = chat(testbed, **sent)
            assert refused.status_code == 400, refused.text
            error = refused.json()["error"]
            wanted = (
                "chat_template_kwargs" if "chat_template_kwargs" in sent else "reasoning_effort"
            )
            assert error["param"] == wanted
            assert "older shoal" in error["message"]
        answered = chat(testbed, reasoning_effort="none")
        assert answered.status_code == 200, answered.text
        eventually(lambda: runner.heard("submit"), 10, "the runner says what it heard")
        assert len(runner.heard("submit")) == 1
        assert runner.heard("bad") == []


def test_a_runner_of_version_4_is_asked_without_a_history_and_for_none() -> None:
    with gateway_testbed() as testbed:
        runner = testbed.runner(protocol=4)
        body = {"model": MODEL, "prompt": "tokens=2", "stream": False}
        answered = httpx.post(f"{testbed.url}/api/generate", json=body, timeout=10)
        assert answered.status_code == 200, answered.text
        assert "context" not in answered.json()
        refused = httpx.post(
            f"{testbed.url}/api/generate", json={**body, "context": [1]}, timeout=10
        )
        assert refused.status_code == 400
        said = refused.json()["error"]
        assert said.startswith("context: ") and "older shoal" in said
        eventually(lambda: runner.heard("submit"), 10, "the runner says what it heard")
        assert len(runner.heard("submit")) == 1
        assert runner.heard("bad") == []


def test_a_runner_of_version_5_is_given_no_template() -> None:
    with gateway_testbed() as testbed:
        runner = testbed.runner(protocol=5)
        body = {"model": MODEL, "prompt": "tokens=2", "stream": False}
        url = f"{testbed.url}/api/generate"
        refused = httpx.post(url, json={**body, "template": "{{ .Prompt }}"}, timeout=10)
        assert refused.status_code == 400, refused.text
        said = refused.json()["error"]
        assert "older shoal, whose templates are the models' own" in said
        assert httpx.post(url, json=body, timeout=10).status_code == 200
        eventually(lambda: runner.heard("submit"), 10, "the runner says what it heard")
        assert len(runner.heard("submit")) == 1
        assert runner.heard("bad") == []


def chat(testbed: GatewayTestbed, **fields: Any) -> httpx.Response:
    messages = [{"role": "user", "content": "tokens=2"}]
    body = {"model": MODEL, "messages": messages, **fields}
    return httpx.post(f"{testbed.url}/v1/chat/completions", json=body, timeout=10)


@pytest.mark.parametrize("thinks", [False, True])
def test_a_level_is_named_where_the_models_card_tells_of_no_thinking(thinks: bool) -> None:
    with gateway_testbed() as testbed:
        testbed.publish_card(thinking=thinks)
        testbed.runner()
        sent = {"reasoning_effort": "high", "thinking_budget": 9, "flavour": "salt"}
        answered = chat(testbed, **sent)
        assert answered.status_code == 200, answered.text
        unheeded = "" if thinks else ", reasoning_effort, thinking_budget"
        assert answered.headers["x-shoal-ignored"] == f"flavour{unheeded}"
        off = chat(testbed, reasoning_effort="none", thinking_budget=9)
        assert off.headers["x-shoal-ignored"] == "thinking_budget"
        assert "x-shoal-ignored" not in chat(testbed, reasoning_effort="none").headers


def test_it_is_not_asked_for_embeddings() -> None:
    with gateway_testbed() as testbed:
        testbed.publish_card(embedding=("embedder",))
        runner = testbed.runner(place=False, protocol=3)
        testbed.place(runner, ModelId("embedder"))
        for path in ("/v1/embeddings", "/api/embed"):
            body = {"model": "embedder", "input": "hi"}
            refused = httpx.post(f"{testbed.url}{path}", json=body, timeout=10)
            assert refused.status_code == 400, refused.text
            assert "older shoal, which cannot be asked for embeddings" in refused.text
        assert runner.heard("submit") == runner.heard("bad") == []
