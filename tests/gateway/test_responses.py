"""Responses over HTTP: kept, told, gone on from, stopped; by whom, and by which process."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from bus.wire.ids import ModelId
from bus.wire.messages.derived import DerivedModel
from bus.wire.messages.events import DerivedForgotten, ModelDerived
from gateway.access import hashed
from tests.harness.gateway_testbed import MODEL, GatewayTestbed, eventually, gateway_testbed
from tests.harness.shared_testbeds import new_name, turn_at

ONE, TWO = {"Authorization": "Bearer sk-one"}, {"Authorization": "Bearer sk-two"}
PROCESSES = 3


@pytest.fixture(scope="module")
def testbed() -> Iterator[GatewayTestbed]:
    keys = [hashed("sk-one"), hashed("sk-two")]
    with gateway_testbed(keys=keys, processes=PROCESSES) as made:
        made.runner()
        yield made


def ask(testbed: GatewayTestbed, text: str | list[Any], **more: Any) -> httpx.Response:
    body = {"model": MODEL, "input": text, **more}
    return httpx.post(f"{testbed.url}/v1/responses", json=body, headers=ONE, timeout=30)


def made(
    testbed: GatewayTestbed, text: str | list[Any] = "tokens=3", **more: Any
) -> dict[str, Any]:
    answer = ask(testbed, text, **more)
    assert answer.status_code == 200, answer.text
    return answer.json()


def call(
    testbed: GatewayTestbed, method: str, path: str, headers: dict[str, str] = ONE
) -> httpx.Response:
    """Each call has a connection of its own, so that any of the processes may take it."""
    return httpx.request(method, f"{testbed.url}/v1/responses/{path}", headers=headers, timeout=30)


def owners(found: list[dict[str, Any]]) -> set[str]:
    return {one["id"].split("-")[2] for one in found}


def some(testbed: GatewayTestbed) -> list[dict[str, Any]]:
    """Responses made by at least two of the processes."""
    found: list[dict[str, Any]] = []

    def more() -> bool:
        found.append(made(testbed))
        return len(owners(found)) > 1

    eventually(more, 60, "two processes made a response each")
    return found


def test_a_response_is_told_again_by_every_process(testbed: GatewayTestbed) -> None:
    for response in some(testbed):
        for _ in range(4 * PROCESSES):
            told = call(testbed, "GET", response["id"])
            assert (told.status_code, told.json()) == (200, response)


def test_a_response_is_gone_on_from_at_every_process(testbed: GatewayTestbed) -> None:
    runner = testbed.runners[0]
    for response in some(testbed):
        for _ in range(2 * PROCESSES):
            then = made(testbed, "tokens=2 more", previous_response_id=response["id"])
            told = call(testbed, "GET", f"{then['id']}/input_items?order=asc").json()
            texts = [one["content"][0]["text"] for one in told["data"]]
            said = response["output"][0]["content"][0]["text"]
            assert texts == ["tokens=3", said, "tokens=2 more"]
            assert then["previous_response_id"] == response["id"]
    assert runner.heard("submit")


def test_items_that_are_named_by_their_ids_are_those_of_kept_responses(
    testbed: GatewayTestbed,
) -> None:
    for response in some(testbed):
        made_of = call(testbed, "GET", f"{response['id']}/input_items").json()["data"]
        named = [
            {"type": "item_reference", "id": made_of[0]["id"]},
            {"id": response["output"][0]["id"]},
        ]
        for store in (True, False):
            body = {"model": MODEL, "input": [*named, {"role": "user", "content": "tokens=2 b"}]}
            then = httpx.post(
                f"{testbed.url}/v1/responses", json={**body, "store": store}, headers=ONE
            )
            assert then.status_code == 200, then.text
        kept = made(testbed, [*named, {"role": "user", "content": "tokens=2 b"}])
        told = call(testbed, "GET", f"{kept['id']}/input_items?order=asc").json()["data"]
        assert told[:2] == [made_of[0], response["output"][0]]
        assert told[2]["content"][0]["text"] == "tokens=2 b"


def test_an_item_of_no_kept_response_is_not_found(testbed: GatewayTestbed) -> None:
    response = made(testbed)
    for item, headers in (("msg_req-n1-h0-b-1-0", ONE), (response["output"][0]["id"], TWO)):
        body = {"model": MODEL, "input": [{"type": "item_reference", "id": item}]}
        refused = httpx.post(f"{testbed.url}/v1/responses", json=body, headers=headers)
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (404, "item_not_found")
        assert error["param"] == "input" and item in error["message"]


def test_another_key_finds_removes_stops_and_goes_on_from_nothing(testbed: GatewayTestbed) -> None:
    response = made(testbed)
    for _ in range(2 * PROCESSES):
        for method, path in (
            ("GET", response["id"]),
            ("DELETE", response["id"]),
            ("GET", f"{response['id']}/input_items"),
            ("POST", f"{response['id']}/cancel"),
        ):
            refused = call(testbed, method, path, TWO)
            assert refused.status_code == 404, (method, path)
            assert refused.json()["error"]["code"] == "not_found"
    body = {"model": MODEL, "input": "x", "previous_response_id": response["id"]}
    refused = httpx.post(f"{testbed.url}/v1/responses", json=body, headers=TWO)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "previous_response_not_found"
    assert call(testbed, "GET", response["id"]).status_code == 200


def test_a_response_that_was_deleted_is_gone_everywhere(testbed: GatewayTestbed) -> None:
    for response in some(testbed):
        gone = call(testbed, "DELETE", response["id"])
        assert gone.json() == {"id": response["id"], "object": "response", "deleted": True}
        for _ in range(2 * PROCESSES):
            assert call(testbed, "GET", response["id"]).status_code == 404
        assert call(testbed, "DELETE", response["id"]).status_code == 404


def test_what_is_not_to_be_kept_is_not(testbed: GatewayTestbed) -> None:
    response = made(testbed, store=False)
    assert response["store"] is False
    assert call(testbed, "GET", response["id"]).status_code == 404


@pytest.mark.parametrize(
    "name", ["resp_1", "resp_req-n1-h²-b-1", "resp_req-n1-h99-b-1", "resp_req-n2-h0-b-1", "req-"]
)
def test_an_unknown_response_is_refused_in_words_that_name_the_field(
    testbed: GatewayTestbed, name: str
) -> None:
    told = call(testbed, "GET", name)
    assert told.status_code == 404 and name in told.json()["error"]["message"]
    refused = ask(testbed, "x", previous_response_id=name)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "previous_response_id")
    assert error["code"] == "previous_response_not_found" and name in error["message"]


def test_a_stream_is_kept_before_its_last_event_is_read(testbed: GatewayTestbed) -> None:
    body = {"model": MODEL, "input": "tokens=5", "stream": True}
    with httpx.stream("POST", f"{testbed.url}/v1/responses", json=body, headers=ONE) as stream:
        lines = [line for line in stream.iter_lines() if line.startswith("data: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    last = events[-1]
    assert last["type"] == "response.completed"
    assert call(testbed, "GET", last["response"]["id"]).json() == last["response"]


def test_a_response_that_is_being_made_is_stopped_and_kept_as_cancelled(
    testbed: GatewayTestbed,
) -> None:
    body = {"model": MODEL, "input": "tokens=100000 every_ms=10", "stream": True}
    ended: list[str] = []
    with httpx.stream(
        "POST", f"{testbed.url}/v1/responses", json=body, headers=ONE, timeout=30
    ) as stream:
        lines = stream.iter_lines()
        first = next(line for line in lines if line.startswith("data: "))
        name = json.loads(first.removeprefix("data: "))["response"]["id"]
        reader = threading.Thread(target=lambda: ended.extend(lines))
        reader.start()
        assert call(testbed, "POST", f"{name}/cancel", TWO).status_code == 404
        stopped = call(testbed, "POST", f"{name}/cancel")
        reader.join(20)
    assert stopped.status_code == 200, stopped.text
    assert stopped.json()["status"] == "cancelled"
    assert any('"response.incomplete"' in line for line in ended)
    assert call(testbed, "GET", name).json() == stopped.json()
    assert call(testbed, "POST", f"{name}/cancel").json() == stopped.json()


def test_a_response_that_has_ended_cannot_be_stopped(testbed: GatewayTestbed) -> None:
    refused = call(testbed, "POST", f"{made(testbed)['id']}/cancel")
    assert refused.status_code == 400 and "completed" in refused.json()["error"]["message"]


def test_a_kept_response_is_told_as_a_stream(testbed: GatewayTestbed) -> None:
    response = made(testbed)
    told = call(testbed, "GET", f"{response['id']}?stream=true")
    assert told.headers["content-type"].startswith("text/event-stream")
    frames = [frame for frame in told.text.split("\n\n") if frame]
    events = [json.loads(frame.split("data: ")[1]) for frame in frames]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["response"] == response
    rest = call(testbed, "GET", f"{response['id']}?stream=true&starting_after=3").text
    assert rest == "".join(f"{frame}\n\n" for frame in frames[4:])
    refused = call(testbed, "GET", f"{response['id']}?stream=true&starting_after=x")
    assert refused.json()["error"]["param"] == "starting_after"
    assert call(testbed, "GET", f"{response['id']}?stream=false").json() == response


def test_a_path_that_is_to_come_says_so_though_it_looks_like_a_response(
    testbed: GatewayTestbed,
) -> None:
    body = {"model": MODEL, "input": "x"}
    answer = httpx.post(f"{testbed.url}/v1/responses/compact", json=body, headers=ONE)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_there_yet")


def test_a_failure_in_the_middle_of_a_stream_ends_the_response_as_failed(
    testbed: GatewayTestbed,
) -> None:
    body = {"model": MODEL, "input": "tokens=2 every_ms=10 fail=internal", "stream": True}
    with httpx.stream("POST", f"{testbed.url}/v1/responses", json=body, headers=ONE) as stream:
        lines = [line for line in stream.iter_lines() if line.startswith("data: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert [one["type"] for one in events[-2:]] == ["error", "response.failed"]
    response = events[-1]["response"]
    assert response["output"][0]["content"][0]["text"] == "one two "
    assert call(testbed, "GET", response["id"]).json() == response


def test_a_body_that_is_compressed_is_refused_as_such(testbed: GatewayTestbed) -> None:
    body = gzip.compress(json.dumps({"model": MODEL, "input": "tokens=1"}).encode())
    headers = {**ONE, "Content-Encoding": "gzip"}
    refused = httpx.post(f"{testbed.url}/v1/responses", content=body, headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (415, "unsupported_encoding")
    assert refused.headers["accept-encoding"] == "identity"


@pytest.fixture(scope="module")
def without_runners() -> Iterator[GatewayTestbed]:
    with gateway_testbed(load_timeout_s=20.0) as made:
        yield made


@pytest.fixture
def waiting(without_runners: GatewayTestbed) -> Iterator[GatewayTestbed]:
    """A gateway whose requests wait until the test places an instance."""
    with turn_at(without_runners) as made:
        yield made


def test_a_stream_that_is_cut_says_that_it_waits_for_its_model(waiting: GatewayTestbed) -> None:
    said = {"role": "assistant", "content": "y" * 50}
    turns = [{"role": "user", "content": "x" * 50}, said] * 4
    orders = {"role": "user", "content": "tokens=2 fits=230"}
    body = {"model": MODEL, "stream": True, "truncation": "auto", "input": [*turns, orders]}
    lines: list[str] = []
    with httpx.stream("POST", f"{waiting.url}/v1/responses", json=body, timeout=20) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            lines.append(line)
            if len(lines) == 3:
                assert all(one.startswith(":") or not one for one in lines), lines
                waiting.runner(new_name())
    assert any('"one two' in line or "two" in line for line in lines)
    ends = [line for line in lines if line.startswith("event: response.completed")]
    assert len(ends) == 1 and "event: error" not in lines


def cut_while_waiting(
    testbed: GatewayTestbed, orders: str, begin: Callable[[], object], model: str = MODEL
) -> list[dict[str, Any]]:
    """The events of a conversation that may be cut, which waits until `begin` gives it a runner."""
    said = {"role": "assistant", "content": "y" * 50}
    turns = [{"role": "user", "content": "x" * 50}, said] * 4
    body = {"model": model, "stream": True, "truncation": "auto"}
    body["input"] = [*turns, {"role": "user", "content": orders}]
    lines: list[str] = []
    with httpx.stream("POST", f"{testbed.url}/v1/responses", json=body, timeout=20) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            lines.append(line)
            if len(lines) == 3:
                assert all(one.startswith(":") or not one for one in lines), lines
                begin()
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(line) for line in data]


def test_a_stream_whose_shorter_body_does_not_fit_either_ends_with_that_error(
    waiting: GatewayTestbed,
) -> None:
    events = cut_while_waiting(waiting, "tokens=2 fits=3", lambda: waiting.runner(new_name()))
    assert [one["type"] for one in events][-2:] == ["error", "response.failed"]
    assert events[-2]["code"] == "context_length_exceeded"
    assert events[-1]["response"]["error"]["code"] == "context_length_exceeded"
    assert not any(one["type"].startswith("response.output") for one in events)
    heard = waiting.runners[-1].heard
    eventually(lambda: len(heard("submit")) > 1, 10, "it was cut, and asked again")


def test_a_stream_whose_shorter_body_is_refused_before_it_is_asked_ends_with_that_error(
    waiting: GatewayTestbed,
) -> None:
    mine = ModelId("mine")
    waiting.happen(ModelDerived(derived=DerivedModel(name=mine, base=MODEL)))
    eventually(lambda: mine in httpx.get(f"{waiting.url}/v1/models").text, 10, "it is known")

    def begin() -> None:
        waiting.happen(DerivedForgotten(name=mine))
        waiting.runner(new_name())

    events = cut_while_waiting(waiting, "tokens=2 fits=230", begin, model=mine)
    assert [one["type"] for one in events][-2:] == ["error", "response.failed"]
    assert events[-2]["code"] == "model_not_found"
    assert "mine" in events[-2]["message"]
    response = events[-1]["response"]
    assert response["status"] == "failed"
    assert response["error"]["message"] == events[-2]["message"]
    numbers = [one["sequence_number"] for one in events]
    assert numbers == list(range(len(numbers)))
    heard = waiting.runners[-1].heard
    eventually(lambda: heard("submit"), 10, "the runner says what it heard")
    assert len(heard("submit")) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_the_oldest_turns_of_a_conversation_that_does_not_fit_go_where_that_is_asked_for(
    testbed: GatewayTestbed, stream: bool
) -> None:
    said = {"role": "assistant", "content": "y" * 50}
    turns = [{"role": "user", "content": "x" * 50}, said] * 4
    body = {"stream": stream, "truncation": "auto", "max_output_tokens": 5}
    orders = {"role": "user", "content": "tokens=2 fits=230"}
    answer = ask(testbed, [*turns, orders], **body)
    assert answer.status_code == 200, answer.text
    assert "one two" in answer.text and '"truncation":"auto"' in answer.text
    refused = ask(testbed, [*turns, orders], **{**body, "truncation": "disabled"})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    alone = ask(testbed, "tokens=2 fits=3", **body)
    assert (alone.status_code, alone.json()["error"]["prompt_tokens"]) == (400, 15)


@pytest.mark.parametrize("stream", [False, True])
def test_they_go_from_ollamas_clients_conversations_too(
    testbed: GatewayTestbed, stream: bool
) -> None:
    said = {"role": "assistant", "content": "y" * 50}
    turns = [{"role": "user", "content": "x" * 50}, said] * 4
    orders = {"role": "user", "content": "tokens=2 fits=230"}
    body = {"model": MODEL, "messages": [*turns, orders], "stream": stream, "truncate": True}
    answer = httpx.post(f"{testbed.url}/api/chat", json=body, headers=ONE, timeout=10)
    assert answer.status_code == 200, answer.text
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == "one two "
    whole = {**body, "truncate": False}
    refused = httpx.post(f"{testbed.url}/api/chat", json=whole, headers=ONE, timeout=10)
    assert refused.status_code == 400 and "error" in refused.json()
