"""What clients ask for in great numbers costs the cluster little (B13 of the inspection)."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.harness.nodes import MODEL, Node, eventually, running_node

pytestmark = pytest.mark.alone

LONG_PROMPTS = 24
LONG_CHARS = 1_200_000


@pytest.fixture(scope="module")
def lone() -> Iterator[Node]:
    """Start a node with one HTTP process."""
    with running_node(SHOAL_HTTP_PROCESSES="1") as made:
        yield made


def test_b13_a_short_prompt_does_not_wait_behind_long_ones_that_are_read(lone: Node) -> None:
    body = {"model": MODEL, "prompt": "word " * (LONG_CHARS // 5), "max_tokens": 4}
    ended: list[int] = []

    def ask() -> None:
        answer = httpx.post(f"{lone.url}/v1/completions", json=body, timeout=120.0)
        ended.append(answer.status_code)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(LONG_PROMPTS)]
    for thread in threads:
        thread.start()
    eventually(lambda: ended, 60, "the first long prompt was read")
    assert lone.chat("hi", max_tokens=1).status_code == 200
    late = len(ended)
    for thread in threads:
        thread.join(120.0)
    assert set(ended) <= {400, 429, 503}, ended
    assert late < LONG_PROMPTS // 2, f"{late} of {LONG_PROMPTS} long ones went before the short one"
