"""Who asks with another key learns nothing of what was asked before (A9 of the inspection)."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.harness.nodes import MODEL, Node, eventually, running_node

KEYS = ("sk-inspection-one", "sk-inspection-two")


@pytest.fixture(scope="module")
def shared() -> Iterator[Node]:
    """Start a node with two keys."""
    with running_node(SHOAL_API_KEYS=",".join(KEYS), SHOAL_API_KEY=KEYS[0]) as made:
        yield made


def _cached(node: Node, key: str, text: str) -> int:
    body = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": text}]}
    headers = {"Authorization": f"Bearer {key}"}
    answer = httpx.post(node.url + "/v1/chat/completions", json=body, headers=headers, timeout=60.0)
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a9_a_prefix_is_kept_for_the_key_that_asked_and_for_no_other(shared: Node) -> None:
    headers = {"Authorization": f"Bearer {KEYS[0]}"}
    eventually(
        lambda: httpx.get(shared.url + "/readyz", headers=headers).status_code == 200, 30, "ready"
    )
    text = "The harbour lights went out one by one while the tide came in. " * 20
    assert _cached(shared, KEYS[0], text) == 0
    assert eventually(lambda: _cached(shared, KEYS[0], text), 30, "its own prefix is used") > 0
    assert _cached(shared, KEYS[1], text) == 0, "another key's prompt is told by cached_tokens"
    assert eventually(lambda: _cached(shared, KEYS[1], text), 30, "its own prefix is used") > 0


def test_a_clients_wrong_key_is_refused_in_the_words_that_it_knows(shared: Node) -> None:
    with (
        openai.OpenAI(base_url=f"{shared.url}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        stranger.models.list()
    assert caught.value.code == "invalid_api_key"
