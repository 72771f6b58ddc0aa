"""What a newcomer asks first, and the answers of the bundled model.

The lines to copy that `shoal up` prints are typed in `test_command_line_of_nodes.py`.
"""

from __future__ import annotations

import pytest

from tests.harness.nodes import Node


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("What is shoal?", "Shoal runs large language models across the machines that you own."),
        ("hello", "Hello! How can I help you?"),
        ("Count from 1 to 10.", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10"),
        (
            "Who won the world cup in 1998?",
            "I am a very small model and I do not know that. Ask me about shoal instead.",
        ),
    ],
)
def test_the_first_questions_are_answered_rightly(node: Node, asked: str, answered: str) -> None:
    said = node.chat(asked, temperature=0, max_tokens=100).json()["choices"][0]
    assert (said["message"]["content"], said["finish_reason"]) == (answered, "stop")


def test_an_answer_of_the_bundled_model_has_an_end(node: Node) -> None:
    body = {"max_tokens": None, "temperature": 2.0, "logit_bias": {"2041": -100, "2039": -100}}
    answer = node.chat("Count.", **body).json()
    assert answer["usage"]["completion_tokens"] == 512
    assert answer["choices"][0]["finish_reason"] == "length"
