"""What clients ask for in great numbers costs the cluster little."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.nodes import MODEL, Node, eventually, running_node

pytestmark = pytest.mark.proof

WISHES = 40


@pytest.fixture(scope="module")
def lone() -> Iterator[Node]:
    """Start a node with one HTTP process."""
    with running_node(SHOAL_HTTP_PROCESSES="1") as made:
        yield made


def test_wishes_about_idling_that_alternate_are_few_events(lone: Node) -> None:
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
