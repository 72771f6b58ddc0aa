"""A client that left reads its stream again, also after the death of the HTTP process that served
it (decision 0101). Two processes serve, so the client may come to either."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from gateway.access import hashed
from tests.harness.gateway_testbed import MODEL, GatewayTestbed, Runner, eventually, gateway_testbed
from tests.harness.http_clients import body, ready
from tests.harness.job_kills import http_processes, killed
from tests.harness.read_again import SeenStream, read_to_the_end

pytestmark = pytest.mark.slow

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
OWNER = "sk-of-the-owner"
OPTIONS: dict[str, Any] = {"processes": 2, "owner_key": hashed(OWNER), "drain_s": 0.3}
WORDS = "one two three four five six seven eight "


@pytest.fixture(scope="module")
def testbed() -> Iterator[GatewayTestbed]:
    with gateway_testbed(**OPTIONS) as made:
        yield made


@pytest.fixture
def runner(testbed: GatewayTestbed) -> Runner:
    """A new generation of the instance, which serves."""
    made = testbed.runner(generation=len(testbed.runners) + 1)
    eventually(lambda: all(ready(testbed) for _ in range(8)), 10, "the instance is ready")
    return made


def sent(path: str, orders: str, **more: Any) -> dict[str, Any]:
    """The body of a stream that may be read again."""
    fields = {"stream": True, "x_reattach_s": 20, **more}
    if path == RESPONSES:
        return {"model": MODEL, "input": orders, **fields}
    return body(orders, **({"max_tokens": 500} if path == MESSAGES else {}), **fields)


def begun(testbed: GatewayTestbed, path: str, orders: str, most: int, **more: Any) -> SeenStream:
    """A stream whose client has left after so many events."""
    seen = SeenStream()
    seen.read("POST", f"{testbed.url}{path}", body=sent(path, orders, **more), most=most)
    assert seen.status == 200, seen.fault
    return seen


def files(testbed: GatewayTestbed) -> list[str]:
    return sorted(path.name for path in Path(testbed.folder, "streams").glob("*"))


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_a_client_that_left_reads_the_rest(
    testbed: GatewayTestbed, runner: Runner, path: str
) -> None:
    seen = begun(testbed, path, "keeps=1 tokens=16 every_ms=20", 6)
    assert sorted(seen.events) == list(range(6)) and not seen.is_whole
    read_to_the_end(seen, testbed.url, 20)
    assert seen.text == WORDS * 2
    assert not runner.heard("cancel") and len(runner.heard("submit")) == 1
    again = SeenStream(name=seen.name)
    read_to_the_end(again, testbed.url, 20)
    assert again.events == seen.events, "a complete stream can be read from its first event on"


def test_a_response_is_read_again_at_its_own_path(testbed: GatewayTestbed, runner: Runner) -> None:
    seen = begun(testbed, RESPONSES, "keeps=1 tokens=16 every_ms=20", 6)
    url = f"{testbed.url}{RESPONSES}/{seen.name}?stream=true&starting_after={seen.last}"
    seen.read("GET", url)
    assert seen.is_whole and seen.text == WORDS * 2


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_the_death_of_the_http_processes_costs_a_pause(
    testbed: GatewayTestbed, runner: Runner, path: str
) -> None:
    seen = begun(testbed, path, "keeps=1 tokens=32 every_ms=20", 8)
    killed(*http_processes(testbed))
    read_to_the_end(seen, testbed.url, 30)
    assert seen.text == WORDS * 4
    first, *again = runner.heard("submit")
    assert first["deaths"] == 0 and [each["deaths"] for each in again] == [4]
    assert again[0]["has"][0] > 0, "it has tokens, and so none comes twice"
    if path == RESPONSES:
        stored = httpx.get(f"{testbed.url}{path}/{seen.name}").json()
        assert stored["output"][0]["content"][0]["text"] == WORDS * 4, "it is stored"


def test_a_gateway_that_restarts_leaves_its_streams_to_the_next_one(
    testbed: GatewayTestbed, runner: Runner
) -> None:
    seen = begun(testbed, CHAT, "keeps=1 tokens=2000 every_ms=20", 4)
    testbed.gateway.send_signal(signal.SIGTERM)
    testbed.gateway.wait(20)
    testbed.log.close()
    assert files(testbed), "it waits for its client"
    testbed.gateway = testbed.start_gateway(**OPTIONS)
    again = SeenStream(name=seen.name)
    again.read("GET", f"{testbed.url}/v1/streams/{seen.name}", most=8)
    assert again.status == 200 and again.text.startswith(WORDS[:20])
    stopped = httpx.post(f"{testbed.url}/v1/cancel/{seen.name}", timeout=10)
    assert stopped.json()["cancelled"], "whichever process continues it"
    read_to_the_end(again, testbed.url, 20)


def test_an_answer_continues_though_its_client_is_still_away(
    testbed: GatewayTestbed, runner: Runner
) -> None:
    seen = begun(testbed, RESPONSES, "keeps=1 tokens=24 every_ms=20", 6)
    killed(*http_processes(testbed))
    eventually(lambda: len(runner.heard("submit")) == 2, 10, "a process takes it over")
    url = f"{testbed.url}{RESPONSES}/{seen.name}"
    eventually(lambda: httpx.get(url).status_code == 200, 10, "it is complete, and stored")
    read_to_the_end(seen, testbed.url, 10)
    assert seen.text == WORDS * 3 and len(runner.heard("submit")) == 2


def test_a_stream_without_a_token_begins_again_with_the_same_event(
    testbed: GatewayTestbed, runner: Runner
) -> None:
    seen = begun(testbed, MESSAGES, "keeps=1 tokens=4 every_ms=250", 1)
    killed(*http_processes(testbed))
    again = SeenStream(name=seen.name)
    read_to_the_end(again, testbed.url, 20)
    assert '"input_tokens":7' in seen.events[0][1] and again.events[0] == seen.events[0]
    assert again.text == "one two three four "


def test_a_client_at_another_process_sees_only_a_pause(
    testbed: GatewayTestbed, runner: Runner
) -> None:
    seen = begun(testbed, CHAT, "keeps=1 tokens=80 every_ms=20", 4)
    eventually(lambda: len(http_processes(testbed)) == 2, 10, "both processes serve")
    file = f"{testbed.folder}/streams/{seen.name.removeprefix('chatcmpl-')}.stream"
    processes = [psutil.Process(pid) for pid in http_processes(testbed)]
    (owner,) = [each for each in processes if file in {one.path for one in each.open_files()}]
    (other,) = [each for each in processes if each != owner]
    owner.suspend()  # so the other one takes the connection
    url, last = f"{testbed.url}/v1/streams/{seen.name}", {"Last-Event-ID": str(seen.last)}
    reading = threading.Thread(target=seen.read, args=("GET", url), kwargs={"headers": last})
    reading.start()
    eventually(lambda: _clients(other, testbed.port), 5, "the other one has the client")
    owner.resume()
    eventually(lambda: seen.last > 20, 10, "it passes events on")
    owner.kill()
    reading.join(20)
    assert seen.is_whole and seen.text == WORDS * 10, "on the same connection"


def _clients(process: psutil.Process, port: int) -> bool:
    """Whether a client is connected to a process."""
    return any(
        one.status == psutil.CONN_ESTABLISHED and one.laddr.port == port
        for one in process.net_connections()
    )


def test_a_stream_of_several_choices_survives_several_deaths(
    testbed: GatewayTestbed, runner: Runner
) -> None:
    seen = begun(testbed, CHAT, "keeps=1 tokens=24 every_ms=30", 8, n=2)
    for _ in range(2):
        count = len(runner.heard("submit"))
        killed(*http_processes(testbed))
        threading.Thread(target=read_to_the_end, args=(seen, testbed.url, 30), daemon=True).start()
        eventually(lambda: len(runner.heard("submit")) > count, 20, "it is submitted again")  # noqa: B023
    eventually(lambda: seen.is_whole, 20, "it ends")
    assert seen.text.split().count("eight") == 2 * 3


def test_a_complete_stream_outlives_its_process_too(
    testbed: GatewayTestbed, runner: Runner
) -> None:
    seen = begun(testbed, CHAT, "keeps=1 tokens=8", 100)
    assert seen.is_whole
    killed(*http_processes(testbed))
    again = SeenStream(name=seen.name)
    read_to_the_end(again, testbed.url, 20)
    assert again.events == seen.events
    assert len(runner.heard("submit")) == 1, "it is only rendered"


def test_an_answer_whose_tokens_are_not_reported_ends_with_its_process(
    testbed: GatewayTestbed, runner: Runner
) -> None:
    seen = begun(testbed, CHAT, "tokens=200 every_ms=20", 6)
    killed(*http_processes(testbed))
    read_to_the_end(seen, testbed.url, 20)
    (error,) = [data for _, data in seen.events.values() if '"error"' in data]
    assert "runner_lost" in error and "reports no tokens" in error


def test_a_stream_that_no_client_reads_is_cancelled_and_forgotten(
    testbed: GatewayTestbed, runner: Runner
) -> None:
    seen = begun(testbed, CHAT, "keeps=1 tokens=2000 every_ms=20", 4, x_reattach_s=1)
    eventually(lambda: runner.heard("cancel"), 10, "it is cancelled")
    seen.read("GET", f"{testbed.url}/v1/streams/{seen.name}")
    assert (seen.status, seen.fault["error"]["code"]) == (404, "stream_not_found")
    request = seen.name.removeprefix("chatcmpl-")
    eventually(lambda: f"{request}.stream" not in files(testbed), 5, "its file is deleted")


def test_the_later_of_two_clients_reads_on(testbed: GatewayTestbed, runner: Runner) -> None:
    first = begun(testbed, CHAT, "keeps=1 tokens=60 every_ms=30", 2)
    other = SeenStream(name=first.name)
    reading = threading.Thread(
        target=first.read, args=("GET", f"{testbed.url}/v1/streams/{first.name}"), daemon=True
    )
    reading.start()
    eventually(lambda: len(first.events) > 4, 10, "the first one reads")
    read_to_the_end(other, testbed.url, 20)
    reading.join(5)
    assert not reading.is_alive() and not first.is_whole
    assert "another client reads this stream now" in first.comments
    assert other.text.split().count("one") == 8


@pytest.mark.parametrize(
    ("path", "more", "why"),
    [
        (CHAT, {"stream": False}, "only a stream"),
        (CHAT, {"x_reattach_s": 301}, "at most 300"),
        (CHAT, {"x_reattach_s": 0}, "at most 300"),
        (RESPONSES, {"background": True}, "a job's events"),
        (RESPONSES, {"truncation": "auto"}, "may be cut"),
        ("/api/chat", {}, "Ollama's API has no event ids"),
    ],
)
def test_where_it_has_no_effect_the_field_is_refused(
    testbed: GatewayTestbed, path: str, more: dict[str, Any], why: str
) -> None:
    answer = httpx.post(f"{testbed.url}{path}", json={**sent(path, "tokens=1"), **more}, timeout=10)
    assert answer.status_code == 400 and why in answer.text and "x_reattach_s" in answer.text


def test_an_event_id_is_a_number(testbed: GatewayTestbed) -> None:
    url = f"{testbed.url}/v1/streams/req-n1-h0-1-1"
    answer = httpx.get(url, headers={"Last-Event-ID": "x"})
    assert answer.status_code == 400 and "Last-Event-ID" in answer.text
    assert httpx.get(url).json()["error"]["code"] == "stream_not_found"


def test_only_the_key_that_asked_reads_a_stream(testbed: GatewayTestbed, runner: Runner) -> None:
    owner = {"Authorization": f"Bearer {OWNER}"}
    keys: list[dict[str, str]] = []
    for name in ("first", "second"):
        made = httpx.post(f"{testbed.url}/apikeys", json={"name": name}, headers=owner).json()
        keys.append({"Authorization": f"Bearer {made['key']}"})
    seen, other = SeenStream(), SeenStream()
    url, orders = f"{testbed.url}{CHAT}", "keeps=1 tokens=16 every_ms=30"
    eventually(lambda: all(_knows(testbed, keys[1]) for _ in range(8)), 5, "the keys are known")
    seen.read("POST", url, body=sent(CHAT, orders), headers=keys[0], most=4)
    for headers in (keys[1], owner):
        other.read("GET", f"{testbed.url}/v1/streams/{seen.name}", headers=headers)
        assert other.status == 404, "not even the owner of the node"
    killed(*http_processes(testbed))
    eventually(lambda: _knows(testbed, keys[1]), 10, "it serves again")
    other.read("GET", f"{testbed.url}/v1/streams/{seen.name}", headers=keys[1])
    assert other.status == 404, "nor is it continued for another"
    read_to_the_end(seen, testbed.url, 20, **keys[0])
    assert seen.text == WORDS * 2
    for name in ("first", "second"):
        httpx.delete(f"{testbed.url}/apikeys/{name}", headers=owner)


def _knows(testbed: GatewayTestbed, headers: dict[str, str]) -> bool:
    try:
        return httpx.get(f"{testbed.url}/v1/models", headers=headers).status_code == 200
    except httpx.HTTPError:
        return False
