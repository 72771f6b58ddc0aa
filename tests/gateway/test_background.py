"""Responses in the background: polled, streamed and gone on with, stopped, gone on from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.harness.gateway_testbed import MODEL, GatewayTestbed, eventually, gateway_testbed

PROCESSES = 2


@pytest.fixture(scope="module")
def testbed() -> Iterator[GatewayTestbed]:
    with gateway_testbed(processes=PROCESSES) as made:
        made.runner()
        yield made


@pytest.fixture(scope="module")
def queueing() -> Iterator[GatewayTestbed]:
    """A gateway that begins no job."""
    with gateway_testbed(jobs_running=0) as made:
        yield made


def call(testbed: GatewayTestbed, method: str, path: str = "", body: Any = None) -> httpx.Response:
    url = f"{testbed.url}/v1/responses{path}"
    return httpx.request(method, url, json=body, timeout=30)


def ask(testbed: GatewayTestbed, text: str, **more: Any) -> dict[str, Any]:
    body = {"model": MODEL, "input": text, "background": True, **more}
    answer = call(testbed, "POST", "", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def response_of(testbed: GatewayTestbed, name: str) -> dict[str, Any]:
    answer = call(testbed, "GET", f"/{name}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def ended(testbed: GatewayTestbed, name: str) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        response = response_of(testbed, name)
        return None if response["status"] in ("queued", "in_progress") else response

    return eventually(found, 30, f"{name} ends")


def data_of(text: str) -> list[dict[str, Any]]:
    lines = [line for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_a_response_is_queued_then_in_progress_then_there(testbed: GatewayTestbed) -> None:
    queued = ask(testbed, "tokens=40 every_ms=30", metadata={"a": "b"})
    assert (queued["status"], queued["background"], queued["output"]) == ("queued", True, [])
    eventually(
        lambda: response_of(testbed, queued["id"])["status"] == "in_progress", 20, "it is made"
    )
    done = ended(testbed, queued["id"])
    assert done["status"] == "completed" and done["background"] is True
    assert done["output"][0]["content"][0]["text"].startswith("one two three")
    assert done["metadata"] == {"a": "b"} and done["usage"]["output_tokens"] == 40
    for name in ("id", "created_at", "instructions", "model"):
        assert done[name] == queued[name]
    for _ in range(2 * PROCESSES):
        assert response_of(testbed, queued["id"]) == done


def test_a_response_made_in_the_background_is_gone_on_from(testbed: GatewayTestbed) -> None:
    done = ended(testbed, ask(testbed, "tokens=3")["id"])
    body = {"model": MODEL, "input": "tokens=2", "previous_response_id": done["id"]}
    then = call(testbed, "POST", "", body)
    assert then.status_code == 200, then.text
    items = call(testbed, "GET", f"/{then.json()['id']}/input_items?order=asc").json()["data"]
    texts = [one["content"][0]["text"] for one in items]
    assert texts == ["tokens=3", "one two three ", "tokens=2"]
    named = {"type": "item_reference", "id": done["output"][0]["id"]}
    turn = {"role": "user", "content": "tokens=1"}
    third = call(testbed, "POST", "", {"model": MODEL, "input": [named, turn]})
    assert third.status_code == 200, third.text
    later = ended(testbed, ask(testbed, "tokens=2", previous_response_id=done["id"])["id"])
    assert later["status"] == "completed" and later["previous_response_id"] == done["id"]


def test_what_one_is_made_from_is_told_before_it_is_made(testbed: GatewayTestbed) -> None:
    first = ended(testbed, ask(testbed, "tokens=3")["id"])
    text = "tokens=100000 every_ms=10"
    name = ask(testbed, text, previous_response_id=first["id"], instructions="i")["id"]
    for _ in range(2 * PROCESSES):
        told = call(testbed, "GET", f"/{name}/input_items?order=asc").json()
        texts = [one["content"][0]["text"] for one in told["data"]]
        assert texts == ["tokens=3", "one two three ", text]
    page = call(testbed, "GET", f"/{name}/input_items?limit=1").json()
    assert [one["id"] for one in page["data"]] == [told["last_id"]] and page["has_more"]
    refused = call(testbed, "GET", f"/{name}/input_items?limit=0")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "limit")
    call(testbed, "POST", f"/{name}/cancel")
    after = call(testbed, "GET", f"/{name}/input_items?order=asc").json()
    assert after == told


def test_what_one_that_is_stopped_in_the_queue_was_to_be_made_from_is_told(
    queueing: GatewayTestbed,
) -> None:
    name = ask(queueing, "tokens=2")["id"]
    for state in ("queued", "cancelled"):
        assert response_of(queueing, name)["status"] == state
        [item] = call(queueing, "GET", f"/{name}/input_items").json()["data"]
        assert item["content"][0]["text"] == "tokens=2"
        body = {"model": MODEL, "input": "x", "previous_response_id": name}
        refused = call(queueing, "POST", "", body)
        error = refused.json()["error"]
        assert (refused.status_code, error["param"]) == (400, "previous_response_id")
        assert error["code"] == "previous_response_not_completed"
        assert f"is '{state}'" in error["message"]
        call(queueing, "POST", f"/{name}/cancel")


def test_a_stream_that_was_cut_is_gone_on_with_from_the_very_event(testbed: GatewayTestbed) -> None:
    body = {
        "model": MODEL,
        "input": "tokens=40 every_ms=30",
        "background": True,
        "stream": True,
    }
    first: list[dict[str, Any]] = []
    with httpx.stream("POST", f"{testbed.url}/v1/responses", json=body, timeout=30) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                first.append(json.loads(line.removeprefix("data: ")))
            if len(first) == 9:
                break
    name, at = first[0]["response"]["id"], first[-1]["sequence_number"]
    assert [one["sequence_number"] for one in first] == list(range(9))
    rest = data_of(call(testbed, "GET", f"/{name}?stream=true&starting_after={at}").text)
    numbers = [one["sequence_number"] for one in first + rest]
    assert numbers == list(range(len(numbers)))
    assert rest[-1]["type"] == "response.completed"
    assert rest[-1]["response"] == response_of(testbed, name)
    said = [one["delta"] for one in first + rest if one["type"] == "response.output_text.delta"]
    assert "".join(said) == rest[-1]["response"]["output"][0]["content"][0]["text"]
    for _ in range(2 * PROCESSES):
        whole = data_of(call(testbed, "GET", f"/{name}?stream=true").text)
        assert whole == first + rest
    refused = call(testbed, "GET", f"/{name}?stream=true&starting_after=x")
    assert refused.json()["error"]["param"] == "starting_after"


def test_a_response_is_stopped(testbed: GatewayTestbed) -> None:
    name = ask(testbed, "tokens=100000 every_ms=10")["id"]
    eventually(lambda: response_of(testbed, name)["status"] == "in_progress", 20, "it is made")
    stopped = call(testbed, "POST", f"/{name}/cancel").json()
    assert stopped["status"] == "cancelled"
    assert response_of(testbed, name) == stopped
    assert call(testbed, "POST", f"/{name}/cancel").json() == stopped
    events = data_of(call(testbed, "GET", f"/{name}?stream=true").text)
    assert events[-1]["response"]["status"] == "cancelled"


def test_one_that_has_ended_is_not_stopped_and_can_be_deleted(testbed: GatewayTestbed) -> None:
    name = ended(testbed, ask(testbed, "tokens=2")["id"])["id"]
    refused = call(testbed, "POST", f"/{name}/cancel")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_value")
    gone = call(testbed, "DELETE", f"/{name}").json()
    assert gone == {"id": name, "object": "response", "deleted": True}
    for _ in range(2 * PROCESSES):
        assert call(testbed, "GET", f"/{name}").status_code == 404
    body = {"model": MODEL, "input": "x", "previous_response_id": name}
    assert call(testbed, "POST", "", body).status_code == 400


def test_one_that_is_being_made_is_deleted(testbed: GatewayTestbed) -> None:
    name = ask(testbed, "tokens=100000 every_ms=10")["id"]
    assert call(testbed, "DELETE", f"/{name}").json()["deleted"] is True
    assert call(testbed, "GET", f"/{name}").status_code == 404


def test_a_response_that_fails_is_told_as_failed(testbed: GatewayTestbed) -> None:
    for orders in (
        "tokens=2 every_ms=10 fail=internal",
        "fail=internal tokens=0",
        "refuse=conflict",
    ):
        failed = ended(testbed, ask(testbed, orders)["id"])
        assert failed["status"] == "failed", failed
        assert failed["error"]["code"] == "server_error" and failed["error"]["message"]
        events = data_of(call(testbed, "GET", f"/{failed['id']}?stream=true").text)
        assert events[-1]["type"] == "response.failed"
        assert events[-1]["response"] == failed
        numbers = [one["sequence_number"] for one in events]
        assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize(
    ("more", "status", "param"),
    [
        ({"store": False}, 400, "background"),
        ({"model": "none"}, 404, "model"),
        ({"temperature": 9}, 400, "temperature"),
        ({"previous_response_id": "resp_none"}, 400, "previous_response_id"),
    ],
)
def test_what_cannot_be_made_is_refused_at_once(
    testbed: GatewayTestbed, more: dict[str, Any], status: int, param: str
) -> None:
    body = {"model": MODEL, "input": "x", "background": True, **more}
    refused = call(testbed, "POST", "", body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (status, param)


def test_one_that_waits_in_the_queue_is_stopped_there_and_its_stream_ends(
    queueing: GatewayTestbed,
) -> None:
    name = ask(queueing, "tokens=2")["id"]
    assert response_of(queueing, name)["status"] == "queued"
    stopped = call(queueing, "POST", f"/{name}/cancel").json()
    assert (stopped["status"], stopped["output"]) == ("cancelled", [])
    [event] = data_of(call(queueing, "GET", f"/{name}?stream=true").text)
    assert event["response"] == stopped and event["sequence_number"] == 0
    assert call(queueing, "GET", f"/{name}?stream=true&starting_after=0").text == ""
