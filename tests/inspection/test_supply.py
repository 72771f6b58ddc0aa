"""What clients ask for in great numbers costs the cluster little (B13 of the inspection)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.harness.nodes import MODEL, Node, eventually, running_node

pytestmark = pytest.mark.alone

LONG_PROMPTS = 40
LONG_CHARS = 1_200_000
WISHES = 40
SHORT_S = 1.5
"""Three times the half second that is promised."""


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
    asked_at = time.monotonic()
    assert lone.chat("hi", max_tokens=1).status_code == 200
    waited_s = time.monotonic() - asked_at
    print(f"a short prompt among {LONG_PROMPTS} long ones was answered after {waited_s:.2f} s")
    for thread in threads:
        thread.join(120.0)
    assert set(ended) <= {400, 429, 503}, ended
    assert waited_s < SHORT_S, f"it waited {waited_s:.1f} s behind long ones"


def test_b13_wishes_about_idling_that_alternate_are_few_events(lone: Node) -> None:
    """The log of the cluster grows by what was told, not by each request."""
    eventually(lone.ready, 30, "ready")

    def kept_s() -> float:
        instances = lone.state()["instances"].values()
        return next(one["keep_alive_s"] for one in instances if one["model"] == MODEL)

    began = int(lone.state()["index"])
    for number in range(WISHES):
        wish = {"keep_alive": "1h" if number % 2 else "2h"}
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": False}
        answer = lone.http.post("/api/chat", json={**body, **wish, "options": {"num_predict": 1}})
        assert answer.status_code == 200, answer.text
    grew = int(lone.state()["index"]) - began
    assert grew <= WISHES // 4, f"{WISHES} requests made {grew} events"
    eventually(lambda: kept_s() == 3600.0, 45, "the last wish came to be")
