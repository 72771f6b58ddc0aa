"""A model whose runner keeps dying is not loaded for ever."""

from __future__ import annotations

import time

import httpx
import pytest

from tests.harness.nodes import Node, eventually, kill, running_node

APART_S = 31.0
"""Three failures within a minute were always given up."""


@pytest.mark.proof
@pytest.mark.timeout(400)
def test_a_runner_that_keeps_dying_is_loaded_again_after_growing_pauses() -> None:
    with running_node() as node:
        killed_at = time.monotonic()
        for _ in range(3):
            eventually(node.ready, 90, "the model is loaded")
            time.sleep(max(0.0, killed_at + APART_S - time.monotonic()))
            killed_at = kill(node.runner()[1])
        answer = eventually(lambda: _answer_after(node), 60, "an answer")
        assert answer.status_code == 503, f"{answer.status_code}: it was loaded again at once"
        assert int(answer.headers["retry-after"]) >= 1
        assert "3 times in a row" in answer.json()["error"]["message"]
        again = eventually(lambda: _served(node), 90, "the model is loaded again after its pause")
        assert again - killed_at > 10.0


def _served(node: Node) -> float:
    """Return when an answer came; 0 while none comes."""
    return time.monotonic() if node.chat("hi", max_tokens=4).status_code == 200 else 0.0


def _answer_after(node: Node) -> httpx.Response | None:
    """Ask; None for the words of a runner that has just been lost."""
    answer = node.chat("hi", max_tokens=4)
    lost = answer.status_code >= 500 and "in a row" not in answer.text
    return None if lost else answer
