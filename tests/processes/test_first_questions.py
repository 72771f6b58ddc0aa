"""What a newcomer sees first: lines to copy, that do what they say."""

from __future__ import annotations

import os
import subprocess
import tempfile

import pytest

from tests.harness.nodes import Node


def test_up_prints_three_lines_that_work_as_printed() -> None:
    node = Node()
    try:
        done = node.shoal("up", "--base-port", str(node.base_port))
        assert done.returncode == 0, done.stderr
        lines = [line[2:] for line in done.stderr.splitlines() if line.startswith("  ")]
        assert len(lines) == 3, f"three lines to copy, not {lines}"
        talk, ask, stop = (_typed(node, line) for line in lines)
        assert talk.returncode == 0 and talk.stdout.strip(), talk.stderr
        assert ask.returncode == 0 and '"choices"' in ask.stdout, ask.stdout + ask.stderr
        assert stop.returncode == 0 and not node.all_processes(), stop.stderr
    finally:
        node.close()


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


def _typed(node: Node, line: str) -> subprocess.CompletedProcess[str]:
    """What a shell makes of a line; what is said to the model follows by standard input."""
    return subprocess.run(
        ["bash", "-c", line],
        cwd=tempfile.gettempdir(),
        input="hello\n",
        env={**os.environ, **node.env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
