"""Kept answers over HTTP: what was acknowledged is there, whatever was killed, at every gateway."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from bus.wire.ids import NodeId
from bus.wire.messages.peers import PeerReading, PeersReading
from tests.harness.gateway_testbed import MODEL, GatewayTestbed, eventually, gateway_testbed
from tests.harness.http_clients import ready
from tests.harness.job_kills import kill_family
from tests.harness.second_gateway import ELSEWHERE, SecondGateway


@pytest.fixture(scope="module")
def testbed() -> Iterator[GatewayTestbed]:
    with gateway_testbed(processes=2) as made:
        made.runner()
        eventually(lambda: ready(made), 10, "the instance is ready")
        yield made


def ask(url: str, text: str = "tokens=3", **more: Any) -> httpx.Response:
    body = {"model": MODEL, "input": text, **more}
    return httpx.post(f"{url}/v1/responses", json=body, timeout=30)


def get(url: str, answer_id: str, below: str = "") -> httpx.Response:
    return httpx.get(f"{url}/v1/responses/{answer_id}{below}", timeout=30)


def streamed(url: str, text: str) -> tuple[str, dict[str, Any] | None]:
    """The id of a streamed response, and the response as its last event tells it, as far as it
    came: whoever serves it may be killed."""
    name, last = "", None
    body = {"model": MODEL, "input": text, "stream": True}
    try:
        with httpx.stream("POST", f"{url}/v1/responses", json=body, timeout=30) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    name = event.get("response", {}).get("id", name)
                    if event["type"] == "response.completed":
                        last = event["response"]
                        break
    except httpx.HTTPError:
        pass
    return name, last


def kill_processes(made: GatewayTestbed) -> None:
    for process in psutil.Process(made.gateway.pid).children():
        process.send_signal(signal.SIGKILL)


def kill_at_random_points(made: GatewayTestbed, points: int) -> None:
    """At each point all HTTP processes are killed: half of the times straight after the last event
    was read, else somewhere in the stream. What was acknowledged is there afterwards."""
    chance, kept = random.Random(7), 0
    for point in range(points):
        if point % 2:
            after_s = chance.uniform(0.0, 0.08)
            killer = subprocess.Popen(
                ["sh", "-c", f"sleep {after_s:.4f}; kill -9 $0 $@ 2>/dev/null", *children(made)]
            )
            name, last = streamed(made.url, "tokens=6 every_ms=8")
            killer.wait(10)
        else:
            name, last = streamed(made.url, "tokens=2")
            kill_processes(made)
        eventually(made.is_ready, 20, "new processes serve")
        eventually(lambda: ready(made), 10, "they know the instance")
        if last is not None:
            told = get(made.url, name)
            assert (told.status_code, told.json()) == (200, last), f"point {point}"
            kept += 1
    assert kept >= points // 2


def children(made: GatewayTestbed) -> list[str]:
    return [str(one.pid) for one in psutil.Process(made.gateway.pid).children()]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_what_was_acknowledged_outlives_http_processes_killed_at_eight_points(
    testbed: GatewayTestbed,
) -> None:
    kill_at_random_points(testbed, 8)


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_what_was_acknowledged_outlives_http_processes_killed_at_200_points(
    testbed: GatewayTestbed,
) -> None:
    kill_at_random_points(testbed, 200)


@pytest.mark.slow
def test_what_was_acknowledged_outlives_the_gateway() -> None:
    with gateway_testbed() as made:
        made.runner()
        eventually(lambda: ready(made), 10, "the instance is ready")
        first = ask(made.url).json()
        kill_family(made.gateway.pid, 1.0)
        made.gateway.wait(10)
        made.log.close()
        made.gateway = made.start_gateway()
        eventually(lambda: ready(made), 10, "the instance is ready again")
        assert get(made.url, first["id"]).json() == first
        then = ask(made.url, "tokens=2 more", previous_response_id=first["id"])
        assert then.status_code == 200, then.text
        items = get(made.url, then.json()["id"], "/input_items?order=asc").json()["data"]
        assert items[0]["content"][0]["text"] == "tokens=3"


@pytest.fixture(scope="module")
def second(testbed: GatewayTestbed) -> Iterator[SecondGateway]:
    made = SecondGateway(testbed)
    try:
        name = ask(testbed.url).json()["id"]
        eventually(lambda: get(made.url, name).status_code == 200, 15, "the nodes know each other")
        yield made
    finally:
        made.close()


def test_an_answer_is_told_with_its_items_and_removed_at_another_nodes_gateway(
    testbed: GatewayTestbed, second: SecondGateway
) -> None:
    for count in range(4):  # of both HTTP processes, by chance
        response = ask(testbed.url, f"tokens={count + 2}").json()
        name = response["id"]
        assert name.startswith("resp_req-n1-")
        assert get(second.url, name).json() == response
        items = get(second.url, name, "/input_items").json()["data"]
        assert [one["content"][0]["text"] for one in items] == [f"tokens={count + 2}"]
        gone = httpx.delete(f"{second.url}/v1/responses/{name}", timeout=30)
        assert gone.status_code == 200, gone.text
        for url in (testbed.url, second.url):
            assert get(url, name).status_code == 404
        then = ask(second.url, previous_response_id=name)
        assert then.json()["error"]["code"] == "previous_response_not_found"


def test_a_stored_chat_is_told_and_labelled_at_another_nodes_gateway(
    testbed: GatewayTestbed, second: SecondGateway
) -> None:
    body = {
        "model": MODEL,
        "store": True,
        "metadata": {"a": "1"},
        "messages": [{"role": "user", "content": "tokens=3"}],
    }
    chat = httpx.post(f"{testbed.url}/v1/chat/completions", json=body, timeout=30).json()
    path = f"/v1/chat/completions/{chat['id']}"
    labelled = httpx.post(f"{second.url}{path}", json={"metadata": {"b": "2"}}, timeout=30)
    assert labelled.json()["metadata"] == {"b": "2"}, labelled.text
    assert httpx.get(f"{testbed.url}{path}").json()["metadata"] == {"b": "2"}


def test_a_large_answer_is_told_at_another_nodes_gateway(
    testbed: GatewayTestbed, second: SecondGateway
) -> None:
    response = ask(testbed.url, "tokens=2 " + "x" * (3 << 20))
    assert response.status_code == 200, response.text
    name = response.json()["id"]
    assert "x-shoal-not-kept" not in response.headers
    found = get(second.url, name, "/input_items").json()["data"]
    assert len(found[0]["content"][0]["text"]) == (3 << 20) + 9


def test_an_answer_that_is_being_made_is_stopped_at_another_nodes_gateway(
    testbed: GatewayTestbed, second: SecondGateway
) -> None:
    body = {"model": MODEL, "input": "tokens=100000 every_ms=10", "stream": True}
    with httpx.stream("POST", f"{testbed.url}/v1/responses", json=body, timeout=30) as answer:
        lines = answer.iter_lines()
        data = next(line for line in lines if line.startswith("data: "))
        name = json.loads(data.removeprefix("data: "))["response"]["id"]
        stopped = httpx.post(f"{second.url}/v1/responses/{name}/cancel", timeout=30)
        assert stopped.status_code == 200, stopped.text
        assert stopped.json()["status"] == "cancelled"
        for _ in lines:
            pass


def test_a_node_that_does_not_answer_is_named_in_time_and_one_that_is_down_at_once(
    testbed: GatewayTestbed, second: SecondGateway
) -> None:
    response = ask(testbed.url).json()
    processes = psutil.Process(testbed.gateway.pid).children()
    for process in processes:
        process.suspend()
    try:
        begun = time.monotonic()
        silent = get(second.url, response["id"])
        took_s = time.monotonic() - begun
    finally:
        for process in processes:
            process.resume()
    error = silent.json()["error"]
    assert (silent.status_code, error["code"]) == (504, "owner_silent")
    assert "node testbed did not answer within 5 s" in error["message"]
    assert 5 <= took_s < 9

    peer = PeerReading(node=NodeId("n1"), name="testbed", status="silent", why="silent for 9 s")
    told = PeersReading(node=ELSEWHERE, peers=(peer,))
    bus = testbed.holder.bus
    testbed.do(lambda: bus.publish(f"reading.peers.{ELSEWHERE}", told))

    def down() -> httpx.Response | None:
        answer = get(second.url, response["id"])
        return answer if answer.status_code == 503 else None

    begun = time.monotonic()
    refused = eventually(down, 5, "the node is known to be down")
    error = refused.json()["error"]
    assert error["code"] == "owner_down" and "node testbed is not connected" in error["message"]
    refused = ask(second.url, previous_response_id=response["id"])
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "owner_down")
    assert get(testbed.url, response["id"]).status_code == 200


def not_kept_says_so(made: GatewayTestbed, why: str) -> None:
    whole = ask(made.url)
    assert whole.status_code == 200 and why in whole.headers["x-shoal-not-kept"]
    assert get(made.url, whole.json()["id"]).status_code in (404, 503)
    body = {"model": MODEL, "input": "tokens=3", "stream": True}
    lines = httpx.post(f"{made.url}/v1/responses", json=body, timeout=30).text.splitlines()
    events = [line for line in lines if line.startswith("event: ")]
    assert events[-1] == "event: response.completed"
    assert [line for line in lines if line.startswith(": not kept: ")], lines
    unkept = ask(made.url, store=False)
    assert "x-shoal-not-kept" not in unkept.headers, "that was not asked for"


@pytest.mark.slow
def test_what_cannot_be_kept_is_answered_says_so_and_heals(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere" / "records.sqlite"
    with gateway_testbed(records_file=str(nowhere)) as made:
        made.runner()
        eventually(lambda: ready(made), 10, "the instance is ready")
        not_kept_says_so(made, "")
        nowhere.parent.mkdir()
        eventually(lambda: "x-shoal-not-kept" not in ask(made.url).headers, 15, "it heals")
        kept = ask(made.url).json()
        assert get(made.url, kept["id"]).json() == kept


@pytest.mark.slow
def test_a_node_that_is_to_keep_none_says_so() -> None:
    with gateway_testbed(answer_rows=0) as made:
        made.runner()
        eventually(lambda: ready(made), 10, "the instance is ready")
        not_kept_says_so(made, "stores no answers")


@pytest.mark.slow
def test_a_file_that_breaks_while_it_serves_costs_what_was_kept_and_nothing_else() -> None:
    with gateway_testbed() as made:
        made.runner()
        eventually(lambda: ready(made), 10, "the instance is ready")
        lost = ask(made.url).json()
        path = Path(made.folder) / "records.sqlite"
        for beside in path.parent.glob("records.sqlite*"):
            if not beside.name.endswith(".lock"):
                beside.unlink()
        path.write_bytes(b"\0" * 100 + b"no database" * 1000)
        kept = ask(made.url)
        assert kept.status_code == 200 and "x-shoal-not-kept" not in kept.headers
        assert get(made.url, kept.json()["id"]).json() == kept.json()
        assert get(made.url, lost["id"]).status_code == 404
        assert [one for one in made.log_lines() if "moved it aside" in one["message"]]
