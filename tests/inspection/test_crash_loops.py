"""A model whose runner keeps dying is not loaded for ever (B14 of the inspection)."""

from __future__ import annotations

import time

import pytest

from tests.harness.nodes import eventually, kill, running_node

APART_S = 31.0
"""Three failures within a minute were always given up."""


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_b14_a_runner_that_keeps_dying_is_loaded_again_after_growing_pauses() -> None:
    with running_node() as node:
        killed_at = time.monotonic()
        for _ in range(3):
            eventually(node.ready, 90, "the model is loaded")
            time.sleep(max(0.0, killed_at + APART_S - time.monotonic()))
            killed_at = kill(node.runner()[1])
            eventually(lambda: not node.ready(), 20, "the runner is missed")
        answer = node.chat("hi", max_tokens=4)
        assert answer.status_code == 503, f"{answer.status_code}: it was loaded again at once"
        assert int(answer.headers["retry-after"]) >= 1
        assert "3 times in a row" in answer.json()["error"]["message"]
        eventually(node.ready, 90, "the model is loaded again after its pause")
        assert time.monotonic() - killed_at > 10.0
        assert node.chat("hi", max_tokens=4).status_code == 200
