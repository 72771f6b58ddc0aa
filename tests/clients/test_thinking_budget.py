"""Budgets of thinking on a running node: kept to the token, and the answer comes all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

Ask = Callable[..., Any]
QUESTION = "List the integers from 1 to 30"
CHOICES = ["fish", "boat"]
MARK = 1
"""The tokens of the bundled model's end of thinking that count as thinking."""


def thought(answer: Any) -> tuple[str, str, int]:
    """What was thought, what was said, and how many tokens were thinking."""
    message = answer.choices[0].message
    counted = answer.usage.completion_tokens_details.reasoning_tokens
    return getattr(message, "reasoning_content", None) or "", message.content, counted


@pytest.fixture(scope="module")
def post(node_url: str, model: str) -> Iterator[Callable[..., Any]]:
    """Ask one question in some dialect; returns the answer's JSON."""
    with httpx.Client(base_url=node_url, timeout=90) as made:

        def posted(path: str, **body: Any) -> Any:
            answer = made.post(path, json={"model": model, **body})
            answer.raise_for_status()
            assert "x-shoal-ignored" not in answer.headers
            return answer.json()

        yield posted


@pytest.fixture(scope="module")
def free(ask: Ask) -> tuple[str, str, int]:
    """What comes without a budget."""
    made = thought(ask(QUESTION, reasoning_effort="high"))
    assert made[2] > 6, "the bundled model thinks for some tokens"
    return made


@pytest.mark.parametrize(
    "name",
    [
        "thinking_budget",
        pytest.param("thinking_budget_tokens", marks=pytest.mark.proof),
        pytest.param("thinking_token_budget", marks=pytest.mark.proof),
    ],
)
def test_thinking_ends_at_its_budget_and_the_answer_comes(
    ask: Ask, free: tuple[str, str, int], name: str
) -> None:
    for budget in (0, 1, 5):
        reasoning, said, counted = thought(
            ask(QUESTION, reasoning_effort="high", extra_body={name: budget})
        )
        assert counted <= budget + MARK + (not budget)
        assert free[0].startswith(reasoning) and len(reasoning) < len(free[0])
        assert said.strip() and "think>" not in said + reasoning


@pytest.mark.proof
def test_a_budget_that_is_not_used_up_changes_nothing(ask: Ask, free: tuple[str, str, int]) -> None:
    for budget in (free[2], free[2] + 40, -1):
        sent = {"thinking_budget": budget}
        assert thought(ask(QUESTION, reasoning_effort="high", extra_body=sent)) == free


@pytest.mark.proof
def test_rows_with_budgets_say_the_same_together_alone_and_streamed(ask: Ask) -> None:
    def said(budget: int) -> tuple[str, str, int]:
        sent = {"thinking_budget": budget}
        return thought(
            ask(QUESTION, reasoning_effort="high", temperature=0.8, seed=5, extra_body=sent)
        )

    budgets = [0, 2, 4, 7, 500]
    alone = [said(budget) for budget in budgets]
    with ThreadPoolExecutor(len(budgets)) as pool:
        assert list(pool.map(said, budgets)) == alone
    chunks = list(
        ask(QUESTION, reasoning_effort="high", temperature=0.8, seed=5, stream=True,
            extra_body={"thinking_budget": 4})
    )  # fmt: skip
    deltas = [one.choices[0].delta for one in chunks if one.choices]
    text = "".join(one.content or "" for one in deltas)
    reasoning = "".join(getattr(one, "reasoning_content", None) or "" for one in deltas)
    assert (reasoning, text) == alone[2][:2]


def test_a_form_holds_what_comes_after_a_budget(ask: Ask) -> None:
    for budget in (0, 3):
        sent = {"guided_choice": CHOICES, "thinking_budget": budget}
        _, said, counted = thought(ask(QUESTION, reasoning_effort="high", extra_body=sent))
        assert said in CHOICES
        assert counted <= budget + MARK + (not budget)
    listed = ask(
        QUESTION, reasoning_effort="high", logprobs=True, top_logprobs=2,
        extra_body={"thinking_budget": 3},
    )  # fmt: skip
    assert "".join(one.token for one in listed.choices[0].logprobs.content).strip()


@pytest.mark.proof
def test_each_dialect_has_its_own_words_for_it(post: Any, free: tuple[str, str, int]) -> None:
    turns = [{"role": "user", "content": QUESTION}]
    whole = post("/v1/responses", input=QUESTION, temperature=0, store=False,
                 reasoning={"effort": "high", "max_tokens": 4})  # fmt: skip
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] <= 4 + MARK
    assert [one["type"] for one in whole["output"]] == ["reasoning", "message"]
    whole = post("/v1/messages", messages=turns, max_tokens=2000, temperature=0,
                 thinking={"type": "enabled", "budget_tokens": 1024},
                 output_config={"effort": "low"})  # fmt: skip
    assert [one["type"] for one in whole["content"]] == ["thinking", "text"]
    assert whole["usage"]["output_tokens_details"]["thinking_tokens"] == free[2]
    whole = post("/api/chat", messages=turns, think="high", stream=False,
                 options={"temperature": 0})  # fmt: skip
    assert whole["message"]["thinking"] == free[0]
    for sent in (
        {"reasoning": {"max_tokens": 4}},
        {"thinking": {"type": "enabled", "budget_tokens": 4}},
        {"chat_template_kwargs": {"enable_thinking": True, "thinking_budget": 4}},
    ):
        whole = post("/v1/chat/completions", messages=turns, temperature=0, **sent)
        details = whole["usage"]["completion_tokens_details"]
        assert details["reasoning_tokens"] <= 4 + MARK
