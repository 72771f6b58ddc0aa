"""Conversations and lists on two real nodes: any gateway leads a conversation, lists are of all
nodes, page by page, and a node that is killed is named while all else goes on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from tests.harness.clusters import Cluster
from tests.harness.nodes import MODEL, Node, eventually

pytestmark = [pytest.mark.nodes, pytest.mark.slow, pytest.mark.timeout(600)]

PATIENCE_S = 120.0
GREEDY: dict[str, Any] = {"temperature": 0, "model": MODEL}
MISSING = "x-shoal-missing-nodes"


@pytest.fixture(scope="module")
def pair(shared_pair: Cluster) -> Iterator[Cluster]:
    shared_pair.nodes[0].chat("hi", max_tokens=1).raise_for_status()
    yield shared_pair
    shared_pair.clear()


def told(node: Node, method: str, path: str, **more: Any) -> dict[str, Any]:
    answer = node.http.request(method, path, timeout=60, **more)
    assert answer.status_code == 200, answer.text
    return answer.json()


def pages(node: Node, path: str, limit: int) -> list[str]:
    """The ids of a whole list, read page by page; none where a node was too slow to be in it."""
    found: list[str] = []
    after = ""
    while True:
        answer = node.http.get(f"{path}?limit={limit}{after}", timeout=60)
        assert answer.status_code == 200, answer.text
        if MISSING in answer.headers:
            return []
        page = answer.json()
        found += [one["id"] for one in page["data"]]
        if not page["has_more"]:
            return found
        after = f"&after={page['last_id']}"


def said(node: Node, conversation: str) -> list[str]:
    items = told(node, "GET", f"/v1/conversations/{conversation}/items?order=asc")["data"]
    return [one["content"][0]["text"] for one in items]


def response(node: Node, conversation: str, text: str) -> str:
    asked = {**GREEDY, "input": text, "conversation": conversation, "max_output_tokens": 20}
    made = told(node, "POST", "/v1/responses", json=asked)
    return made["output"][-1]["content"][0]["text"]


def test_a_conversation_is_led_at_every_gateway(pair: Cluster) -> None:
    for home in pair.nodes:
        name = told(home, "POST", "/v1/conversations", json={})["id"]
        expected: list[str] = []
        for count, node in enumerate(pair.nodes):
            text = f"List the integers from 1 to {count + 3}."
            expected += [text, response(node, name, text)]
            for other in pair.nodes:
                assert said(other, name) == expected


@pytest.fixture(scope="module")
def listed(pair: Cluster) -> tuple[list[str], list[str]]:
    """Jobs and kept answers, in the order in which they were made at both nodes by turns."""
    jobs: list[str] = []
    chats: list[str] = []
    for node in pair.nodes * 3:
        body = {**GREEDY, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        asked = {"path": "/v1/chat/completions", "body": body}
        jobs.append(node.http.post("/v1/jobs", json=asked).json()["id"])
        kept = {**body, "store": True, "metadata": {"list": "this"}}
        chats.append(told(node, "POST", "/v1/chat/completions", json=kept)["id"])
    return jobs, chats


def test_lists_are_of_all_nodes(pair: Cluster, listed: tuple[list[str], list[str]]) -> None:
    jobs, chats = listed
    for node in pair.nodes:
        for limit in (2, 100):
            for path, whole in (("/v1/jobs", jobs[::-1]), ("/v1/chat/completions", chats)):
                found = eventually(
                    partial(pages, node, path, limit), PATIENCE_S, f"{path} of all nodes"
                )
                assert [one for one in found if one in whole] == whole


@pytest.mark.proof
def test_a_node_that_is_killed_is_named_in_lists(
    pair: Cluster, listed: tuple[list[str], list[str]]
) -> None:
    jobs, chats = listed
    name = told(pair.nodes[1], "POST", "/v1/conversations", json={})["id"]

    pair.nodes[1].kill()
    left = pair.nodes[0]

    def named() -> httpx.Response | None:
        answer = left.http.get("/v1/jobs?limit=100", timeout=30)
        assert answer.status_code == 200, answer.text
        return answer if MISSING in answer.headers else None

    answer = eventually(named, PATIENCE_S, "the node is missed")
    assert answer.headers[MISSING].endswith(("(down)", "(silent)"))
    assert "," not in answer.headers[MISSING]
    there = [job for count, job in enumerate(jobs) if count % 2 != 1]
    assert [one["id"] for one in answer.json()["data"] if one["id"] in jobs] == there[::-1]
    chat = left.http.get("/v1/chat/completions?order=desc&metadata[list]=this", timeout=30)
    assert MISSING in chat.headers
    kept = [one for count, one in enumerate(chats) if count % 2 != 1]
    assert [one["id"] for one in chat.json()["data"]] == kept[::-1]
    asked = {**GREEDY, "input": "hi", "conversation": name}
    refused = left.http.post("/v1/responses", json=asked, timeout=30)
    assert refused.status_code in (503, 504), refused.text
    assert refused.json()["error"]["code"] in ("owner_down", "owner_silent")
    assert "node " in refused.json()["error"]["message"]
    mine = told(left, "POST", "/v1/conversations", json={})["id"]
    assert response(left, mine, "hi") and len(said(left, mine)) == 2
    pair.nodes[1].up(180.0)
    eventually(pair.formed, PATIENCE_S, "one cluster again")
