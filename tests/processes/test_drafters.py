"""A request chooses its drafter at a real node, in every dialect."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.nodes import MODEL, Node

TURNS = [{"role": "user", "content": "Repeat this: red blue green red blue green red blue green"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": TURNS},
    "/v1/completions": {"prompt": "red blue"},
    "/v1/messages": {"messages": TURNS, "max_tokens": 5},
    "/v1/responses": {"input": "red blue"},
    "/api/chat": {"messages": TURNS, "stream": False},
    "/api/generate": {"prompt": "red blue", "stream": False},
}


@pytest.mark.parametrize(
    ("drafter", "lacking"),
    [
        ("draft_model", "card names no draft model"),
        ("mtp", "card asks for no MTP head"),
        ("block", "card asks for no block drafter"),
    ],
)
@pytest.mark.parametrize("path", BODIES)
def test_a_drafter_that_the_model_lacks_is_refused(
    node: Node, path: str, drafter: str, lacking: str
) -> None:
    body = {"model": MODEL, **BODIES[path], "x_speculate": drafter}
    answer = node.http.post(path, json=body, timeout=60.0)
    assert answer.status_code == 400, answer.text
    assert f"{lacking}; use auto or off" in answer.text


def test_copied_tokens_are_counted_and_the_text_is_the_same(node: Node) -> None:
    answers = [
        node.chat(TURNS[0]["content"], temperature=0, max_tokens=40, **choice).json()
        for choice in ({"x_speculate": "off"}, {"x_speculate": "ngram"})
    ]
    texts = [answer["choices"][0]["message"]["content"] for answer in answers]
    assert texts[0] == texts[1] and texts[0]
    assert answers[0]["usage"] == answers[1]["usage"]
    assert "drafted_tokens" not in answers[0]["timing"]
    timing = answers[1]["timing"]
    assert timing["drafted_tokens"] == timing["drafters"]["ngram"]["drafted_tokens"] > 0
