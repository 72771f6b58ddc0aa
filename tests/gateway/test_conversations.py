"""Conversations over HTTP: by every process, at every gateway, with responses of every manner."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from openai import NotFoundError, OpenAI

from bus.wire.ids import NodeId
from bus.wire.messages.peers import PeerReading, PeersReading
from gateway.access import hashed
from tests.harness.gateway_testbed import MODEL, GatewayTestbed, eventually, gateway_testbed
from tests.harness.second_gateway import ELSEWHERE, SecondGateway

ONE, TWO = {"Authorization": "Bearer sk-one"}, {"Authorization": "Bearer sk-two"}
PROCESSES = 2
PAGE = Path(__file__).parents[2] / "docs/operations/http-api.md"


def ready(url: str) -> bool:
    return MODEL in httpx.get(f"{url}/health", headers=ONE).json()["models_ready"]


@pytest.fixture(scope="module")
def testbed() -> Iterator[GatewayTestbed]:
    keys = [hashed("sk-one"), hashed("sk-two")]
    with gateway_testbed(keys=keys, processes=PROCESSES) as made:
        made.runner()
        eventually(lambda: ready(made.url), 10, "the instance is ready")
        yield made


def call(
    url: str, method: str, path: str = "", headers: dict[str, str] = ONE, **more: Any
) -> httpx.Response:
    """Each call has a connection of its own, so that any of the processes may take it."""
    return httpx.request(
        method, f"{url}/v1/conversations{path}", headers=headers, timeout=30, **more
    )


def begun(url: str, *texts: str, **more: Any) -> str:
    items = [{"role": "user", "content": text} for text in texts]
    answer = call(url, "POST", json={"items": items, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


def ask(url: str, conversation: Any, text: str = "tokens=3", **more: Any) -> httpx.Response:
    body = {"model": MODEL, "input": text, "conversation": conversation, **more}
    headers = more.pop("headers", ONE)
    body.pop("headers", None)
    return httpx.post(f"{url}/v1/responses", json=body, headers=headers, timeout=30)


def items(url: str, name: str, query: str = "?order=asc&limit=100") -> list[dict[str, Any]]:
    answer = call(url, "GET", f"/{name}/items{query}")
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def texts(url: str, name: str) -> list[tuple[str, str]]:
    return [(one["role"], one["content"][0]["text"]) for one in items(url, name)]


def words(response: dict[str, Any]) -> str:
    return "".join(one["content"][0]["text"] for one in response["output"])


# --- conversations and their items ---------------------------------------------------------------


def test_a_conversation_is_told_labelled_and_removed_by_every_process(
    testbed: GatewayTestbed,
) -> None:
    url = testbed.url
    name = begun(url, "hello", metadata={"topic": "fish"})
    assert name.startswith("conv_req-n1-")
    for count in range(2 * PROCESSES):
        told = call(url, "GET", f"/{name}").json()
        assert (told["id"], told["object"]) == (name, "conversation")
        assert abs(told["created_at"] - time.time()) < 60
        labels = {"count": str(count)}
        changed = call(url, "POST", f"/{name}", json={"metadata": labels}).json()
        assert changed == {**told, "metadata": labels} == call(url, "GET", f"/{name}").json()
    gone = call(url, "DELETE", f"/{name}").json()
    assert gone == {"id": name, "object": "conversation.deleted", "deleted": True}
    for method, below in (("GET", ""), ("DELETE", ""), ("GET", "/items"), ("GET", "/items/msg_1")):
        refused = call(url, method, f"/{name}{below}")
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found")
        assert f"Conversation with id '{name}' not found" in refused.json()["error"]["message"]


def test_items_are_added_told_in_pages_and_removed(testbed: GatewayTestbed) -> None:
    url, name = testbed.url, begun(testbed.url, "0")
    more = [{"role": "user", "content": str(count)} for count in range(1, 6)]
    added = call(url, "POST", f"/{name}/items", json={"items": more}).json()
    assert added["object"] == "list" and len(added["data"]) == 5
    assert [text for _, text in texts(url, name)] == list("012345")
    latest = call(url, "GET", f"/{name}/items?limit=2").json()
    assert [one["content"][0]["text"] for one in latest["data"]] == ["5", "4"]
    assert latest["has_more"] and latest["last_id"] == latest["data"][1]["id"]
    rest = call(url, "GET", f"/{name}/items?limit=10&after={latest['last_id']}").json()
    assert [one["content"][0]["text"] for one in rest["data"]] == ["3", "2", "1", "0"]
    assert not rest["has_more"]
    one = rest["data"][0]
    assert call(url, "GET", f"/{name}/items/{one['id']}").json() == one
    left = call(url, "DELETE", f"/{name}/items/{one['id']}").json()
    assert (left["id"], left["object"]) == (name, "conversation")
    assert call(url, "GET", f"/{name}/items/{one['id']}").status_code == 404
    assert call(url, "DELETE", f"/{name}/items/{one['id']}").status_code == 404
    assert [text for _, text in texts(url, name)] == list("01245")
    after = call(url, "GET", f"/{name}/items?after=msg_none").json()["error"]
    assert after["param"] == "after"
    again = call(url, "POST", f"/{name}/items", json={"items": [items(url, name)[0]]})
    assert (again.status_code, again.json()["error"]["param"]) == (400, "items")


def test_another_key_finds_nothing(testbed: GatewayTestbed) -> None:
    url, name = testbed.url, begun(testbed.url, "secret")
    [one] = items(url, name)
    for method, below, body in (
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", "", {"metadata": {}}),
        ("GET", "/items", None),
        ("POST", "/items", {"items": [{"role": "user", "content": "x"}]}),
        ("GET", f"/items/{one['id']}", None),
        ("DELETE", f"/items/{one['id']}", None),
    ):
        refused = call(url, method, f"/{name}{below}", TWO, json=body)
        assert refused.status_code == 404, (method, below, refused.text)
    asked = ask(url, name, headers=TWO)
    assert (asked.status_code, asked.json()["error"]["code"]) == (404, "conversation_not_found")
    assert texts(url, name) == [("user", "secret")]


def test_the_example_of_the_page_begins_one(testbed: GatewayTestbed) -> None:
    printed = PAGE.read_text().partition("/v1/conversations -H")[2]
    body = json.loads(printed.partition("-d '")[2].partition("'\n")[0])
    made = call(testbed.url, "POST", json=body).json()
    assert made["metadata"] == {"topic": "fish"}
    assert texts(testbed.url, made["id"]) == [("developer", "Answer in one sentence.")]


def test_a_conversation_takes_no_more_than_it_may(testbed: GatewayTestbed) -> None:
    url, name = testbed.url, begun(testbed.url)
    large = {"role": "user", "content": "x" * (5 << 20)}
    assert call(url, "POST", f"/{name}/items", json={"items": [large]}).status_code == 200
    full = call(url, "POST", f"/{name}/items", json={"items": [large]})
    assert (full.status_code, full.json()["error"]["code"]) == (400, "conversation_full")
    asked = ask(url, name, "x" * (4 << 20))
    error = asked.json()["error"]
    assert (asked.status_code, error["code"]) == (400, "conversation_full")
    assert error["param"] == "conversation"
    assert len(items(url, name)) == 1


# --- responses -----------------------------------------------------------------------------------


def test_a_response_adds_what_was_asked_and_said_and_the_next_reads_it(
    testbed: GatewayTestbed,
) -> None:
    url, name = testbed.url, begun(testbed.url, "before")
    first = ask(url, name).json()
    assert first["conversation"] == {"id": name}
    second = ask(url, {"id": name}, "tokens=2 again").json()
    told = [
        *(("user", "before"), ("user", "tokens=3"), ("assistant", words(first))),
        *(("user", "tokens=2 again"), ("assistant", words(second))),
    ]
    assert texts(url, name) == told
    page = httpx.get(f"{url}/v1/responses/{second['id']}/input_items?order=asc", headers=ONE)
    assert [one["content"][0]["text"] for one in page.json()["data"]] == [
        text for _, text in told[:4]
    ]
    gone = httpx.delete(f"{url}/v1/responses/{second['id']}", headers=ONE)
    assert gone.status_code == 200 and texts(url, name) == told, "its items stay"


def test_the_model_is_told_the_items_of_a_conversation(testbed: GatewayTestbed) -> None:
    url, name = testbed.url, begun(testbed.url, "tokens=5")
    response = ask(url, name, None).json()  # type: ignore[arg-type]
    assert len(words(response).split()) == 5, "it does what an item of the conversation says"
    assert [role for role, _ in texts(url, name)] == ["user", "assistant"]


def test_a_response_that_is_not_kept_is_added_all_the_same(testbed: GatewayTestbed) -> None:
    url, name = testbed.url, begun(testbed.url)
    response = ask(url, name, store=False).json()
    assert texts(url, name) == [("user", "tokens=3"), ("assistant", words(response))]
    found = httpx.get(f"{url}/v1/responses/{response['id']}", headers=ONE)
    assert found.status_code == 404


def test_a_stream_has_added_when_its_last_event_is_read(testbed: GatewayTestbed) -> None:
    url, name = testbed.url, begun(testbed.url)
    body = {"model": MODEL, "input": "tokens=4", "conversation": name, "stream": True}
    with httpx.stream("POST", f"{url}/v1/responses", json=body, headers=ONE, timeout=30) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: "):
                continue
            event = json.loads(line.removeprefix("data: "))
            if event["type"] == "response.completed":
                said = words(event["response"])
                assert event["response"]["conversation"] == {"id": name}
                assert texts(url, name) == [("user", "tokens=4"), ("assistant", said)]
                break
        else:
            raise AssertionError("no last event")


def test_one_that_is_stopped_or_left_adds_nothing(testbed: GatewayTestbed) -> None:
    url, name = testbed.url, begun(testbed.url)
    body = {"model": MODEL, "input": "tokens=100000 every_ms=10", "conversation": name}
    endless = {**body, "stream": True}
    for leaves in (True, False):
        with httpx.stream(
            "POST", f"{url}/v1/responses", json=endless, headers=ONE, timeout=30
        ) as answer:
            lines = answer.iter_lines()
            data = next(line for line in lines if line.startswith("data: "))
            if leaves:
                continue
            made = json.loads(data.removeprefix("data: "))["response"]["id"]
            stopped = httpx.post(f"{url}/v1/responses/{made}/cancel", headers=ONE, timeout=30)
            assert stopped.json()["status"] == "cancelled", stopped.text
            for _ in lines:
                pass
    assert items(url, name) == []


def test_what_cannot_be_gone_on_with_is_refused(testbed: GatewayTestbed) -> None:
    url, name = testbed.url, begun(testbed.url, "hi")
    kept = ask(url, name).json()
    both = ask(url, name, previous_response_id=kept["id"])
    error = both.json()["error"]
    assert (both.status_code, error["param"]) == (400, "conversation")
    assert error["message"].startswith("Mutually exclusive parameters")
    unknown = ask(url, "conv_req-n1-h0-nothing-1")
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "conversation")
    foreign = ask(url, "conv_68542dab")
    assert (foreign.status_code, foreign.json()["error"]["code"]) == (404, "conversation_not_found")
    again = ask(url, name, [items(url, name)[0]])  # type: ignore[arg-type]
    assert "Duplicate item found" in again.json()["error"]["message"]
    empty = ask(url, begun(url), None)  # type: ignore[arg-type]
    assert (empty.status_code, empty.json()["error"]["param"]) == (400, "input")


def test_two_responses_at_a_time_each_add_their_own_in_one_piece_as_they_end(
    testbed: GatewayTestbed,
) -> None:
    url, name = testbed.url, begun(testbed.url, "first")
    with ThreadPoolExecutor(8) as pool:
        asked = [
            (text, pool.submit(ask, url, name, text))
            for text in [
                f"tokens={3 + count} every_ms={5 * (count % 3)} n{count}" for count in range(8)
            ]
        ]
        said = {text: words(one.result().json()) for text, one in asked}
    told = texts(url, name)
    assert told[0] == ("user", "first") and len(told) == 17
    pairs = list(zip(told[1::2], told[2::2], strict=True))
    assert sorted(question for (_, question), _ in pairs) == sorted(said)
    assert all(
        role == "assistant" and said[question] == text for (_, question), (role, text) in pairs
    )


def test_one_that_is_removed_meanwhile_is_told_so(testbed: GatewayTestbed) -> None:
    url, name = testbed.url, begun(testbed.url, "hi")
    found: list[httpx.Response] = []
    [runner] = testbed.runners
    before = len(runner.heard("submit"))
    asker = threading.Thread(target=lambda: found.append(ask(url, name, "tokens=30 every_ms=20")))
    asker.start()
    eventually(lambda: len(runner.heard("submit")) > before, 10, "it is asked for")
    assert call(url, "DELETE", f"/{name}").status_code == 200
    asker.join(30)
    [answer] = found
    assert answer.status_code == 200
    assert "deleted in the meantime" in answer.headers["x-shoal-not-kept"]
    kept = httpx.get(f"{url}/v1/responses/{answer.json()['id']}", headers=ONE)
    assert kept.status_code == 200, "the answer itself is kept"


def test_a_response_in_the_background_and_a_job_add_when_they_are_done(
    testbed: GatewayTestbed,
) -> None:
    url, name = testbed.url, begun(testbed.url)
    queued = ask(url, name, "tokens=3 background", background=True).json()
    assert (queued["status"], queued["conversation"]) == ("queued", {"id": name})
    path = f"{url}/v1/responses/{queued['id']}"
    done = eventually(
        lambda: (one := httpx.get(path, headers=ONE).json())["status"] == "completed" and one,
        20,
        "it is made",
    )
    expected = [("user", "tokens=3 background"), ("assistant", words(done))]
    assert texts(url, name) == expected
    body = {"model": MODEL, "input": "tokens=2 job", "conversation": name}
    job = httpx.post(
        f"{url}/v1/jobs", json={"path": "/v1/responses", "body": body}, headers=ONE
    ).json()
    ended = eventually(
        lambda: (
            (one := httpx.get(f"{url}/v1/jobs/{job['id']}", headers=ONE).json())["status"] == "done"
            and one
        ),
        20,
        "it is done",
    )
    expected += [("user", "tokens=2 job"), ("assistant", words(ended["result"]))]
    assert texts(url, name) == expected
    lost = ask(url, "conv_req-n1-h0-nothing-1", background=True)
    assert lost.status_code == 404, "before it is taken"


def test_the_official_client_leads_a_conversation(testbed: GatewayTestbed) -> None:
    with OpenAI(base_url=f"{testbed.url}/v1", api_key="sk-one", max_retries=0) as client:
        made = client.conversations.create(
            items=[{"type": "message", "role": "user", "content": "hi"}], metadata={"a": "b"}
        )
        assert client.conversations.retrieve(made.id) == made
        assert client.conversations.update(made.id, metadata={"c": "d"}).metadata == {"c": "d"}
        response = client.responses.create(model=MODEL, input="tokens=3", conversation=made.id)
        assert response.conversation is not None and response.conversation.id == made.id
        listed = list(client.conversations.items.list(made.id, order="asc", limit=2))
        assert [one.type for one in listed] == ["message"] * 3, "over two pages"
        added = client.conversations.items.create(
            made.id, items=[{"type": "message", "role": "user", "content": "more"}]
        )
        one: Any = client.conversations.items.retrieve(
            added.data[0].id, conversation_id=made.id, include=["reasoning.encrypted_content"]
        )
        assert one.content[0].text == "more"
        assert client.conversations.items.delete(one.id, conversation_id=made.id).id == made.id
        assert client.conversations.delete(made.id).deleted
        with pytest.raises(NotFoundError):
            client.conversations.retrieve(made.id)


# --- of another node -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def second(testbed: GatewayTestbed) -> Iterator[SecondGateway]:
    keys = [hashed("sk-one"), hashed("sk-two")]
    made = SecondGateway(testbed, keys=keys)
    try:
        name = begun(testbed.url)
        path = f"/{name}"
        eventually(
            lambda: call(made.url, "GET", path).status_code == 200, 15, "the nodes know each other"
        )
        yield made
    finally:
        made.close()


def test_a_conversation_is_used_at_another_nodes_gateway(
    testbed: GatewayTestbed, second: SecondGateway
) -> None:
    for _ in range(4):  # of both HTTP processes, by chance
        name = begun(testbed.url, "begun here", metadata={"a": "b"})
        assert call(second.url, "GET", f"/{name}").json()["metadata"] == {"a": "b"}
        more = {"items": [{"role": "user", "content": "added there"}]}
        assert call(second.url, "POST", f"/{name}/items", json=more).status_code == 200
        then = ask(testbed.url, name, "tokens=2").json()
        expected = [
            *(("user", "begun here"), ("user", "added there")),
            *(("user", "tokens=2"), ("assistant", words(then))),
        ]
        assert texts(testbed.url, name) == texts(second.url, name) == expected
        page = call(second.url, "GET", f"/{name}/items?limit=1").json()
        assert page["has_more"] and page["data"][0]["role"] == "assistant"
        dropped = call(second.url, "DELETE", f"/{name}/items/{page['last_id']}")
        assert dropped.json()["id"] == name
        assert texts(testbed.url, name) == expected[:-1]
        assert call(second.url, "DELETE", f"/{name}").status_code == 200
        assert call(testbed.url, "GET", f"/{name}").status_code == 404


def test_more_than_may_go_to_another_node_at_once_is_refused_before_it_is_answered(
    testbed: GatewayTestbed, second: SecondGateway
) -> None:
    name = begun(testbed.url)
    large = "x" * (1 << 20)
    for refused in (
        ask(second.url, name, large),
        call(
            second.url,
            "POST",
            f"/{name}/items",
            json={"items": [{"role": "user", "content": large}]},
        ),
    ):
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "body_too_large")
    assert ask(testbed.url, name, large).status_code == 200, "its own node takes it"
    assert len(items(second.url, name)) == 2


def test_a_node_that_is_down_or_silent_is_named(
    testbed: GatewayTestbed, second: SecondGateway
) -> None:
    name = begun(testbed.url, "hi")
    processes = psutil.Process(testbed.gateway.pid).children()
    for process in processes:
        process.suspend()
    try:
        silent = call(second.url, "GET", f"/{name}")
    finally:
        for process in processes:
            process.resume()
    assert (silent.status_code, silent.json()["error"]["code"]) == (504, "owner_silent")
    assert "node testbed" in silent.json()["error"]["message"]
    peer = PeerReading(node=NodeId("n1"), name="testbed", status="silent", why="silent for 9 s")
    told = PeersReading(node=ELSEWHERE, peers=(peer,))
    bus = testbed.holder.bus
    testbed.do(lambda: bus.publish(f"reading.peers.{ELSEWHERE}", told))

    def refusal() -> Any:
        """The error of an answer, or nothing: what is asked before the second gateway has heard
        of it is refused once the runner there has not answered."""
        error = ask(second.url, name).json().get("error", {})
        return error if error.get("code") == "owner_down" else None

    error = eventually(refusal, 30, "it is known that the owner is down")
    assert "node testbed is not connected" in error["message"]
    assert len(items(testbed.url, name)) == 1
