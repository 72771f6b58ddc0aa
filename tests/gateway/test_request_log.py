"""The request log over HTTP: a row for each request, however it ended, and no word of any."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from gateway.access import hashed
from tests.harness.gateway_testbed import MODEL, GatewayTestbed, eventually, gateway_testbed
from tests.harness.http_clients import Reader, body, chat, ready


@pytest.fixture(scope="module")
def made() -> Iterator[GatewayTestbed]:
    with gateway_testbed(processes=2, max_waiting=1) as found:
        found.runner()
        eventually(lambda: ready(found), 10, "the instance is ready")
        yield found


def recent(made: GatewayTestbed, **query: Any) -> list[dict[str, Any]]:
    answer = httpx.get(f"{made.url}/requests/recent", params={"limit": 1000, **query})
    assert answer.status_code == 200, answer.text
    assert answer.json()["node"] == "n1"
    return answer.json()["requests"]


def row_of(made: GatewayTestbed, client: str) -> dict[str, Any]:
    """The row of the one request of a client, whichever process answers: within a second."""

    def found() -> list[dict[str, Any]]:
        return recent(made, client=client)

    (row,) = eventually(found, 5, f"a row of {client}")
    return row


def test_a_request_that_finished_is_told_with_what_it_took(made: GatewayTestbed) -> None:
    answer = chat(made, "tokens=5", x_client_id="finished", x_priority="high", max_tokens=5)
    row = row_of(made, "finished")
    assert answer.json()["id"].endswith(row["request"])
    assert {
        "kind": "generate", "dialect": "openai_chat", "status": 200, "error": None,
        "model": MODEL, "client": "finished", "key": None, "priority": 5, "streamed": False,
        "instance": "inst-1", "node": "n1", "load_s": 0.0, "queue_s": 0.0, "decode_s": 0.01,
        "prompt_tokens": 7, "cached_tokens": 0, "completion_tokens": 5, "finish": "length",
    }.items() <= row.items()  # fmt: skip
    assert 0 < row["ttft_s"] <= row["seconds"] < 30


def test_a_request_begins_with_its_first_byte_also_after_another(made: GatewayTestbed) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
    with socket.create_connection(("127.0.0.1", made.port), timeout=10) as raw:
        for client, pause_s in (("slow to ask", 0.6), ("the next", 0.0)):
            sent = json.dumps(body("tokens=2", x_client_id=client, stream=False)).encode()
            raw.sendall(head)
            time.sleep(pause_s)
            raw.sendall(b"application/json\r\nContent-Length: %d\r\n\r\n" % len(sent))
            time.sleep(0.1)
            raw.sendall(sent)
            answer = http.client.HTTPResponse(raw)
            answer.begin()
            assert answer.status == 200 and answer.read()
            time.sleep(2.0)
    assert row_of(made, "slow to ask")["ttft_s"] >= 0.6
    assert row_of(made, "the next")["ttft_s"] < 2.0, "not what lay between them"


def test_a_stream_is_one_row_too(made: GatewayTestbed) -> None:
    reader = Reader(made, "tokens=4", x_client_id="streamed", n=2)
    reader.wait_end(10)
    row = row_of(made, "streamed")
    assert (row["streamed"], row["completion_tokens"], row["finish"]) == (True, 8, "stop")


def test_prompts_of_one_body_are_a_row_each(made: GatewayTestbed) -> None:
    asked = {"model": MODEL, "prompt": ["tokens=1", "tokens=2", "tokens=3"], "user": "three"}
    assert httpx.post(f"{made.url}/v1/completions", json=asked).status_code == 200
    rows = eventually(lambda: recent(made, client="three"), 5, "rows")
    assert sorted(row["completion_tokens"] for row in rows) == [1, 2, 3]
    assert {row["dialect"] for row in rows} == {"openai_completions"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_that_was_cut_to_fit_is_one_row(made: GatewayTestbed, stream: bool) -> None:
    client = f"cut, {stream}"
    said = {"role": "assistant", "content": "y" * 50}
    turns = [{"role": "user", "content": "x" * 50}, said] * 4
    orders = {"role": "user", "content": "tokens=2 fits=230"}
    asked = {"model": MODEL, "input": [*turns, orders], "truncation": "auto", "stream": stream}
    asked["store"] = False  # nothing of it is to be on the disk
    answer = httpx.post(f"{made.url}/v1/responses", json={**asked, "user": client}, timeout=10)
    assert answer.status_code == 200 and "one two" in answer.text, answer.text
    row = row_of(made, client)
    assert (row["status"], row["error"], row["completion_tokens"]) == (200, None, 2)


REFUSED = [
    ("refuse=queue_full", 429, "queue_full", "inst-1"),
    ("refuse=bad_request", 400, "invalid_value", "inst-1"),
    ("tokens=3 fail=memory_pressure", 507, "memory_pressure", "inst-1"),
    ("tokens=3 fail=deadline", 504, "deadline_exceeded", "inst-1"),
]


@pytest.mark.parametrize(("orders", "status", "code", "instance"), REFUSED)
def test_what_a_runner_refused_or_failed_is_told_by_its_code(
    made: GatewayTestbed, orders: str, status: int, code: str, instance: str
) -> None:
    assert chat(made, orders, x_client_id=code).status_code == status
    row = row_of(made, code)
    assert (row["status"], row["error"], row["finish"]) == (status, code, None)


def test_what_failed_in_its_stream_is_told_though_its_status_was_given(
    made: GatewayTestbed,
) -> None:
    reader = Reader(made, "tokens=20 every_ms=50 fail=runner_lost", x_client_id="late")
    reader.wait_end(20)
    row = row_of(made, "late")
    assert (row["status"], row["error"], row["streamed"]) == (200, "runner_lost", True)
    assert row["ttft_s"] is not None


def test_what_was_refused_before_any_runner_is_told_by_its_code(made: GatewayTestbed) -> None:
    unknown = {**body("hello"), "model": "no-such", "x_client_id": "unknown"}
    assert httpx.post(f"{made.url}/v1/chat/completions", json=unknown).status_code == 404
    row = row_of(made, "unknown")
    assert (row["status"], row["error"], row["model"]) == (404, "model_not_found", "no-such")
    wrong = httpx.post(f"{made.url}/api/chat", json={"model": MODEL, "messages": 7})
    assert wrong.status_code == 400
    rows = eventually(
        lambda: [one for one in recent(made, errors_only=True) if one["dialect"] == "ollama_chat"],
        5,
        "a row",
    )
    assert (rows[0]["status"], rows[0]["error"]) == (400, "invalid_value")
    assert rows[0]["request"] == wrong.headers["x-request-id"]


def test_a_queue_that_is_full_is_told(made: GatewayTestbed) -> None:
    waits = [send_raw_of(made, "org/other", f"waits-{number}") for number in range(6)]
    rows = eventually(
        lambda: [one for one in recent(made, model="org/other") if one["error"] == "queue_full"],
        10,
        "one is refused",
    )
    assert (rows[0]["status"], rows[0]["instance"]) == (429, None)
    for connection in waits:
        connection.close()
    gone = eventually(
        lambda: [one for one in recent(made, model="org/other") if one["status"] == 499], 10, "gone"
    )
    assert gone[0]["error"] == "client_closed" and gone[0]["load_s"] is not None


def send_raw_of(made: GatewayTestbed, model: str, client: str) -> Any:
    """Ask on a connection of one's own, and do not wait."""
    import json
    import socket

    data = json.dumps({**body("hello"), "model": model, "x_client_id": client}).encode()
    connection = socket.create_connection(("127.0.0.1", made.port))
    connection.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data)
    )
    return connection


def test_counting_a_prompt_is_told_and_is_in_no_statistics(made: GatewayTestbed) -> None:
    httpx.post(f"{made.url}/tokenize", json={"model": "no-such", "prompt": "hello"})
    rows = eventually(
        lambda: [one for one in recent(made) if one["kind"] == "ask"], 5, "the question's row"
    )
    assert rows[0]["error"] == "model_not_found"

    def agree() -> bool:
        """Both are asked apart, and rows of other tests may still come."""
        others = [one for one in recent(made) if one["kind"] != "ask"]
        return httpx.get(f"{made.url}/requests/stats").json()["requests"] == len(others)

    eventually(agree, 10, "statistics have all but the question")


def test_statistics_are_of_models_and_clients_with_errors_apart(made: GatewayTestbed) -> None:
    for orders in ("tokens=3", "tokens=3", "refuse=queue_full"):
        chat(made, orders, x_client_id="statistics")
    eventually(lambda: len(recent(made, client="statistics")) == 3, 5, "all are logged")
    found = httpx.get(f"{made.url}/requests/stats", params={"window_s": 600}).json()
    (client,) = (one for one in found["clients"] if one["name"] == "statistics")
    assert (client["requests"], client["finished"]) == (3, 2)
    assert client["errors"] == {"queue_full": 1}
    assert client["completion_tokens"] == 6
    assert client["decode_tokens_per_s"] == {"p50": 200.0, "p95": 200.0}
    assert 0 < client["ttft_s"]["p50"] <= client["ttft_s"]["p95"]
    assert {one["name"] for one in found["models"]} >= {MODEL}
    assert found["requests"] >= found["finished"] + sum(found["errors"].values())


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/requests/recent?limit=0", "limit"),
        ("/requests/recent?limit=many", "limit"),
        ("/requests/recent?since=nan", "since"),
        ("/requests/recent?errors_only=perhaps", "errors_only"),
        ("/requests/stats?window_s=0", "window_s"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_by_its_field(
    made: GatewayTestbed, path: str, field: str
) -> None:
    answer = httpx.get(f"{made.url}{path}")
    assert answer.status_code == 400 and answer.json()["error"]["param"] == field


def test_no_word_of_a_request_is_in_the_file(made: GatewayTestbed) -> None:
    secret, key = "marzipan-under-the-stairs", "sk-this-is-my-secret-key"
    tool = {"type": "function", "function": {"name": f"open_{secret}"[:60], "description": secret}}
    answer = chat(
        made, f"tokens=3 calls=1 {secret}", tools=[tool], stop=[secret], x_client_id="careful"
    )
    assert answer.status_code == 200
    headers = {"Authorization": f"Bearer {key}"}
    for orders in (f"tokens=3 fail=internal {secret}", f"refuse=bad_request {secret}"):
        httpx.post(
            f"{made.url}/v1/chat/completions", json=body(orders, user="careful"), headers=headers
        )
    httpx.post(f"{made.url}/v1/chat/completions", json={secret: secret})
    httpx.post(f"{made.url}/v1/chat/completions", json={**body("x"), "model": secret + " cake"})
    words = ("one ", "two ", "call_1")  # what the runner answers
    eventually(lambda: len(recent(made, client="careful")) == 3, 5, "all are logged")
    data = b"".join(
        path.read_bytes() for path in Path(made.folder).glob("records.sqlite*") if path.is_file()
    )
    assert b"careful" in data
    for word in (secret, key, hashed(key), *words):
        assert word.encode() not in data


def test_http_processes_that_are_killed_lose_little_and_break_nothing(made: GatewayTestbed) -> None:
    for number in range(3):
        assert chat(made, "tokens=1", x_client_id=f"kept-{number}").status_code == 200
        row_of(made, f"kept-{number}")
        for process in psutil.Process(made.gateway.pid).children():
            process.send_signal(signal.SIGKILL)
        eventually(made.is_ready, 10, "new processes serve")
        eventually(lambda: ready(made), 10, "they know the instance")
    assert [row_of(made, f"kept-{number}")["status"] for number in range(3)] == [200] * 3
    assert not [one for one in made.log_lines() if "records" in one["message"]]


@pytest.mark.slow
def test_the_log_is_there_after_a_restart_and_asks_for_a_key_where_others_do() -> None:
    keys = [hashed("sk-one"), hashed("sk-two")]
    headers = {"Authorization": "Bearer sk-one"}
    with gateway_testbed(keys=keys) as made:
        made.runner()
        asked = {"json": body("tokens=3"), "headers": headers}
        answer = eventually(
            lambda: (
                (
                    got := httpx.post(f"{made.url}/v1/chat/completions", timeout=30, **asked)
                ).status_code
                == 200
                and got
            ),
            20,
            "it is answered",
        )
        name = answer.json()["id"].removeprefix("chatcmpl-")
        for path in ("/requests/recent", "/requests/stats"):
            assert httpx.get(f"{made.url}{path}").status_code == 401
        made.gateway.send_signal(signal.SIGTERM)
        made.gateway.wait(15)
        made.log.close()
        made.gateway = made.start_gateway(keys=keys)
        rows = httpx.get(f"{made.url}/requests/recent", headers=headers).json()["requests"]
        (row,) = (one for one in rows if one["request"] == name)
        assert row["key"] == hashed("sk-one")[-16:]
        # strangers are in no row: they could push all others out
        assert not [one for one in rows if one["status"] == 401]


@pytest.mark.slow
def test_without_rows_nothing_is_logged_and_the_node_serves() -> None:
    with gateway_testbed(request_rows=0) as made:
        made.runner()
        eventually(lambda: ready(made), 10, "the instance is ready")
        assert chat(made, "tokens=3").status_code == 200
        assert recent(made) == []


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_said_and_requests_are_answered(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere" / "records.sqlite"
    with gateway_testbed(records_file=str(nowhere)) as made:
        made.runner()
        eventually(lambda: ready(made), 10, "the instance is ready")
        assert chat(made, "tokens=3", x_client_id="early").status_code == 200
        answer = httpx.get(f"{made.url}/requests/recent")
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "records_unavailable"
        assert answer.headers["retry-after"]
        said = eventually(
            lambda: [one for one in made.log_lines() if one["level"] == "critical"], 5, "it is said"
        )
        assert len(said) == 1
        nowhere.parent.mkdir()
        row = eventually(
            lambda: (
                httpx.get(f"{made.url}/requests/recent").status_code == 200
                and recent(made, client="early")
            ),
            20,
            "it is healed, and what waited is there",
        )
        assert row[0]["status"] == 200
