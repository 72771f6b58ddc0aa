"""Chat completions that are kept: told, listed, labelled, removed; by whom, by which process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.access import hashed
from tests.harness.gateway_testbed import MODEL, GatewayTestbed, eventually, gateway_testbed

ONE, TWO = {"Authorization": "Bearer sk-one"}, {"Authorization": "Bearer sk-two"}
PROCESSES = 2
PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def testbed() -> Iterator[GatewayTestbed]:
    keys = [hashed("sk-one"), hashed("sk-two")]
    with gateway_testbed(keys=keys, processes=PROCESSES) as made:
        made.runner()
        yield made


def call(
    testbed: GatewayTestbed, method: str, path: str = "", headers: dict[str, str] = ONE, **more: Any
) -> httpx.Response:
    """Each call has a connection of its own, so that any of the processes may take it."""
    return httpx.request(method, f"{testbed.url}{PATH}{path}", headers=headers, timeout=30, **more)


def made(testbed: GatewayTestbed, text: str = "tokens=3", **more: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": [{"type": "text", "text": text}]}]
    body = {"model": MODEL, "messages": turns, "store": True, **more}
    answer = call(testbed, "POST", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def some(testbed: GatewayTestbed, **more: Any) -> list[dict[str, Any]]:
    """Answers made by both processes."""
    found: list[dict[str, Any]] = []

    def both() -> bool:
        found.append(made(testbed, **more))
        return len({one["id"].split("-")[3] for one in found}) > 1

    eventually(both, 60, "two processes made an answer each")
    return found


def test_a_kept_answer_is_told_with_its_labels_by_every_process(testbed: GatewayTestbed) -> None:
    for answer in some(testbed, metadata={"topic": "fish"}):
        for _ in range(4 * PROCESSES):
            told = call(testbed, "GET", f"/{answer['id']}").json()
            assert told == {**answer, "metadata": {"topic": "fish"}}


def test_a_stream_is_kept_as_it_would_be_told_whole(testbed: GatewayTestbed) -> None:
    body = {"model": MODEL, "stream": True, "store": True, "n": 2}
    turns = [{"role": "user", "content": "tokens=5"}]
    stream = call(testbed, "POST", json={**body, "messages": turns}).text
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    said = ["", ""]
    for chunk in chunks:
        for choice in chunk["choices"]:
            said[choice["index"]] += choice["delta"].get("content", "")
    told = call(testbed, "GET", f"/{chunks[0]['id']}").json()
    assert [one["message"]["content"] for one in told["choices"]] == said
    assert (told["object"], told["metadata"]) == ("chat.completion", {})
    assert told["usage"]["completion_tokens"] == 10


def test_the_messages_of_an_answer_are_told_in_pages(testbed: GatewayTestbed) -> None:
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "tokens=1"}]},
    ]
    answer = made(testbed, messages=turns)
    told = call(testbed, "GET", f"/{answer['id']}/messages").json()
    first, second = told["data"]
    assert (first["role"], first["content"], first["content_parts"]) == (
        *("system", "Be brief."),
        None,
    )
    assert (second["content"], second["content_parts"]) == (None, turns[1]["content"])
    assert (told["first_id"], told["has_more"]) == (first["id"], False)
    page = call(testbed, "GET", f"/{answer['id']}/messages?limit=1&order=desc").json()
    assert ([one["id"] for one in page["data"]], page["has_more"]) == ([second["id"]], True)


def test_lists_have_the_answers_of_all_processes_by_model_and_label(
    testbed: GatewayTestbed,
) -> None:
    answers = some(testbed, metadata={"list": "this", "other": "x"})
    made(testbed, store=False)
    names = [one["id"] for one in answers]
    for _ in range(2 * PROCESSES):
        told = call(testbed, "GET", f"?metadata[list]=this&model={MODEL}&limit=100").json()
        assert sorted(one["id"] for one in told["data"]) == sorted(names)
        assert all(one["metadata"]["list"] == "this" for one in told["data"])
        assert told["object"] == "list" and not told["has_more"]
    assert call(testbed, "GET", "?metadata[list]=that").json()["data"] == []
    assert call(testbed, "GET", "?model=other").json()["data"] == []
    last = call(testbed, "GET", "?metadata[list]=this&order=desc&limit=1").json()
    before = call(testbed, "GET", f"?metadata[list]=this&order=desc&after={last['last_id']}").json()
    assert last["has_more"] and len(before["data"]) == len(names) - 1
    assert call(testbed, "GET", "?limit=0").json()["error"]["param"] == "limit"


def test_labels_are_changed_by_every_process(testbed: GatewayTestbed) -> None:
    for answer in some(testbed, metadata={"a": "b"}):
        for count in range(2 * PROCESSES):
            labels = {"metadata": {"count": str(count)}}
            told = call(testbed, "POST", f"/{answer['id']}", json=labels)
            assert told.json() == {**answer, **labels}
            assert call(testbed, "GET", f"/{answer['id']}").json() == {**answer, **labels}
    refused = call(testbed, "POST", f"/{answer['id']}", json={"metadata": {"a": "x" * 513}})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "metadata.a")


def test_a_removed_answer_is_gone(testbed: GatewayTestbed) -> None:
    for answer in some(testbed):
        gone = call(testbed, "DELETE", f"/{answer['id']}").json()
        assert gone == {"id": answer["id"], "object": "chat.completion.deleted", "deleted": True}
        assert call(testbed, "GET", f"/{answer['id']}").status_code == 404
        assert call(testbed, "DELETE", f"/{answer['id']}").status_code == 404


def test_another_key_finds_none_and_what_is_not_to_be_kept_is_not(testbed: GatewayTestbed) -> None:
    answer, unkept = made(testbed), made(testbed, store=False)
    assert call(testbed, "GET", f"/{unkept['id']}").status_code == 404
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/messages")):
        refused = call(testbed, method, f"/{answer['id']}{path}", TWO)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found")
    body = {"metadata": {}}
    assert call(testbed, "POST", f"/{answer['id']}", TWO, json=body).status_code == 404
    assert call(testbed, "GET", headers=TWO).json()["data"] == []


def test_chat_completions_and_responses_are_found_at_their_own_paths_alone(
    testbed: GatewayTestbed,
) -> None:
    chat = made(testbed)
    url, body = f"{testbed.url}/v1/responses", {"model": MODEL, "input": "tokens=1"}
    response = httpx.post(url, json=body, headers=ONE).json()
    assert call(testbed, "GET", f"/{response['id']}").status_code == 404
    for name in (chat["id"], chat["id"].replace("chatcmpl-", "resp_")):
        assert httpx.get(f"{url}/{name}", headers=ONE).status_code == 404
        assert httpx.delete(f"{url}/{name}", headers=ONE).status_code == 404
        gone_on = {**body, "previous_response_id": name}
        assert httpx.post(url, json=gone_on, headers=ONE).status_code == 400
    assert call(testbed, "GET", f"/{chat['id']}").status_code == 200
