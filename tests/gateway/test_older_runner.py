"""A runner that speaks an earlier data plane is asked for nothing that it does not know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from bus.wire.ids import ModelId
from tests.harness.gateway_testbed import MODEL, GatewayTestbed, Runner, gateway_testbed
from tests.harness.nodes import eventually
from tests.harness.shared_testbeds import new_name, turn_at


@pytest.fixture(scope="module")
def shared() -> Iterator[GatewayTestbed]:
    with gateway_testbed() as made:
        yield made


@pytest.fixture
def made(shared: GatewayTestbed) -> Iterator[GatewayTestbed]:
    with turn_at(shared) as testbed:
        yield testbed
        testbed.publish_card()


@pytest.fixture(params=[1, 2])
def runner(made: GatewayTestbed, request: pytest.FixtureRequest) -> Runner:
    """A runner of one of the first versions."""
    return made.runner(new_name(), protocol=request.param)


def ask(testbed: GatewayTestbed, **fields: object) -> httpx.Response:
    body: dict[str, Any] = {"model": MODEL, "prompt": "tokens=2", **fields}
    return httpx.post(f"{testbed.url}/v1/completions", json=body, timeout=10)


def test_it_is_not_asked_to_score_a_prompt_and_goes_on_to_answer(
    made: GatewayTestbed, runner: Runner
) -> None:
    before = len(runner.heard("submit"))
    refused = ask(made, echo=True, logprobs=1, max_tokens=0)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["param"] == "echo"
    assert "older version of shoal" in error["message"]
    answered = ask(made, echo=True, logprobs=None)
    assert answered.status_code == 200, answered.text
    assert answered.json()["choices"][0]["text"] == "tokens=2one two "
    eventually(lambda: len(runner.heard("submit")) == before + 1, 5.0, "the one that was asked")
    assert runner.heard("bad") == []


ABOUT_PROMPTS = (
    "/v1/messages/count_tokens",
    "/v1/responses/input_tokens",
    "/tokenize",
    "/apply-template",
)


def test_it_is_not_asked_about_prompts(made: GatewayTestbed, runner: Runner) -> None:
    turns = [{"role": "user", "content": "tokens=2"}]
    body = {"model": MODEL, "messages": turns}

    def answered() -> httpx.Response:
        return httpx.post(f"{made.url}/v1/chat/completions", json=body, timeout=10)

    for path in ABOUT_PROMPTS:
        before = runner.asked_so_far(answered)
        asks = {"model": MODEL, "input": turns} if "responses" in path else body
        refused = httpx.post(f"{made.url}{path}", json=asks, timeout=10)
        assert refused.status_code == 400
        assert "older version of shoal" in refused.json()["error"]["message"]
        assert runner.asked_so_far(answered) == before + 1
        assert runner.heard("bad") == []


LATER: list[dict[str, Any]] = [
    {"guided_regex": "a+"},
    {"guided_choice": ["a"]},
    {"grammar": 'root ::= "a"'},
    {"guided_json": {"type": "object"}},
    {"min_tokens": 1},
]


def test_it_is_not_asked_for_what_came_after_version_3(made: GatewayTestbed) -> None:
    runner = made.runner(new_name(), protocol=3)
    for sent in LATER:
        refused = ask(made, **sent)
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert error["param"] == next(iter(sent))
        assert "older version of shoal" in error["message"]
    answered = ask(made, response_format={"type": "json_object"})
    assert answered.status_code == 200, answered.text
    eventually(lambda: runner.heard("submit"), 10, "the runner says what it heard")
    assert len(runner.heard("submit")) == 1
    assert runner.heard("bad") == []


THOUGHTS: list[dict[str, Any]] = [
    {"reasoning_effort": "high"},
    {"thinking_budget": 5},
    {"chat_template_kwargs": {"style": "terse"}},
]


def test_it_is_not_told_how_much_to_think(made: GatewayTestbed) -> None:
    runner = made.runner(new_name(), protocol=4)
    for sent in THOUGHTS:
        refused = chat(made, **sent)
        assert refused.status_code == 400, refused.text
        error = refused.json()["error"]
        wanted = "chat_template_kwargs" if "chat_template_kwargs" in sent else "reasoning_effort"
        assert error["param"] == wanted
        assert "older version of shoal" in error["message"]
    answered = chat(made, reasoning_effort="none")
    assert answered.status_code == 200, answered.text
    eventually(lambda: runner.heard("submit"), 10, "the runner says what it heard")
    assert len(runner.heard("submit")) == 1
    assert runner.heard("bad") == []


def test_a_runner_of_version_4_is_asked_without_a_history_and_for_none(
    made: GatewayTestbed,
) -> None:
    runner = made.runner(new_name(), protocol=4)
    body = {"model": MODEL, "prompt": "tokens=2", "stream": False}
    answered = httpx.post(f"{made.url}/api/generate", json=body, timeout=10)
    assert answered.status_code == 200, answered.text
    assert "context" not in answered.json()
    refused = httpx.post(f"{made.url}/api/generate", json={**body, "context": [1]}, timeout=10)
    assert refused.status_code == 400
    said = refused.json()["error"]
    assert said.startswith("context: ") and "older version of shoal" in said
    eventually(lambda: runner.heard("submit"), 10, "the runner says what it heard")
    assert len(runner.heard("submit")) == 1
    assert runner.heard("bad") == []


def chat(testbed: GatewayTestbed, **fields: Any) -> httpx.Response:
    messages = [{"role": "user", "content": "tokens=2"}]
    body = {"model": MODEL, "messages": messages, **fields}
    return httpx.post(f"{testbed.url}/v1/chat/completions", json=body, timeout=10)


@pytest.mark.parametrize("thinks", [False, True])
def test_a_level_is_named_where_the_models_card_tells_of_no_thinking(
    made: GatewayTestbed, thinks: bool
) -> None:
    made.publish_card(thinking=thinks)
    made.runner(new_name())
    sent = {"reasoning_effort": "high", "thinking_budget": 9, "flavour": "salt"}
    answered = chat(made, **sent)
    assert answered.status_code == 200, answered.text
    unheeded = "" if thinks else ", reasoning_effort, thinking_budget"
    assert answered.headers["x-shoal-ignored"] == f"flavour{unheeded}"
    off = chat(made, reasoning_effort="none", thinking_budget=9)
    assert off.headers["x-shoal-ignored"] == "thinking_budget"
    assert "x-shoal-ignored" not in chat(made, reasoning_effort="none").headers


def test_it_is_not_asked_for_embeddings(made: GatewayTestbed) -> None:
    made.publish_card(embedding=("embedder",))
    runner = made.runner(new_name(), place=False, protocol=3)
    made.place(runner, ModelId("embedder"))
    for path in ("/v1/embeddings", "/api/embed"):
        body = {"model": "embedder", "input": "hi"}
        refused = httpx.post(f"{made.url}{path}", json=body, timeout=10)
        assert refused.status_code == 400, refused.text
        assert "older version of shoal, which has no embeddings" in refused.text
    assert runner.heard("submit") == runner.heard("bad") == []


def test_it_is_not_asked_to_rank(made: GatewayTestbed) -> None:
    made.publish_card(reranking=("reranker",))
    runner = made.runner(new_name(), place=False, protocol=15)
    made.place(runner, ModelId("reranker"))
    body = {"model": "reranker", "query": "q", "documents": ["a"]}
    refused = httpx.post(f"{made.url}/v1/rerank", json=body, timeout=10)
    assert refused.status_code == 400, refused.text
    assert "older version of shoal, which has no reranking" in refused.text
    assert runner.heard("submit") == runner.heard("bad") == []


def test_a_prediction_is_left_out_for_versions_before_12(made: GatewayTestbed) -> None:
    runner = made.runner(new_name(), protocol=11)
    answered = chat(made, prediction={"type": "content", "content": "one two"})
    assert answered.status_code == 200, answered.text
    eventually(lambda: runner.heard("submit"), 10, "the runner says what it heard")
    assert runner.heard("bad") == []


def test_a_choice_of_drafter_is_refused_for_versions_before_14(made: GatewayTestbed) -> None:
    runner = made.runner(new_name(), protocol=13)
    refused = chat(made, x_speculate="off")
    assert refused.status_code == 400, refused.text
    assert "x_speculate" in refused.text and "older version of shoal" in refused.text
    answered = chat(made, x_speculate="auto")
    assert answered.status_code == 200, answered.text
    eventually(lambda: runner.heard("submit"), 10, "the runner says what it heard")
    assert runner.heard("bad") == []


def test_an_mtp_head_is_refused_for_versions_before_15(made: GatewayTestbed) -> None:
    runner = made.runner(new_name(), protocol=14)
    refused = chat(made, x_speculate="mtp")
    assert refused.status_code == 400, refused.text
    assert "has no MTP heads" in refused.text and "older version of shoal" in refused.text
    assert chat(made, x_speculate="ngram").status_code == 200
    eventually(lambda: runner.heard("submit"), 10, "the runner says what it heard")
    assert runner.heard("bad") == []


def test_a_block_drafter_is_refused_for_versions_before_17(made: GatewayTestbed) -> None:
    runner = made.runner(new_name(), protocol=16)
    refused = chat(made, x_speculate="block")
    assert refused.status_code == 400, refused.text
    assert "has no block drafters" in refused.text and "older version of shoal" in refused.text
    assert chat(made, x_speculate="mtp").status_code == 200
    eventually(lambda: runner.heard("submit"), 10, "the runner says what it heard")
    assert runner.heard("bad") == []


def test_drafts_of_another_runner_are_refused_for_versions_before_15(made: GatewayTestbed) -> None:
    runner = made.runner(new_name(), protocol=14)
    refused = chat(made, x_speculate="remote")
    assert refused.status_code == 400, refused.text
    assert "cannot use drafts of other runners" in refused.text
    assert chat(made, x_speculate="off").status_code == 200
    eventually(lambda: runner.heard("submit"), 10, "the runner says what it heard")
