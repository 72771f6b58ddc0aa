"""The cluster's API keys over HTTP: made, asked for, limited, rotated, removed, in each dialect."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from bus.process.clock import now
from bus.wire.api_keys import LOST_KEYS
from bus.wire.messages.events import ApiKeyAdded
from gateway.access import hashed
from gateway.http.routes import ROUTES
from tests.harness.gateway_testbed import MODEL, GatewayTestbed, eventually, gateway_testbed
from tests.harness.http_clients import body

OWNER, IN_SETTINGS = "sk-of-the-owner", "sk-of-the-settings"
CHAT, MESSAGES, OLLAMA = "/v1/chat/completions", "/v1/messages", "/api/chat"
PROCESSES = 2
CLIENT = httpx.Client(timeout=20, limits=httpx.Limits(max_keepalive_connections=0))
"""Every request has a connection of its own: which process takes it is the kernel's choice."""
WITHIN_S = 1.0
"""A change is acted by everywhere within this; the tests bear three times as much."""


@pytest.fixture(scope="module")
def testbed() -> Iterator[GatewayTestbed]:
    with gateway_testbed(owner_key=hashed(OWNER), processes=PROCESSES) as made:
        made.runner()
        yield made


def headers_of(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def ask(made: GatewayTestbed, method: str, path: str, key: str | None = OWNER, **more: Any) -> Any:
    return CLIENT.request(method, made.url + path, headers=headers_of(key), **more)


def chat(made: GatewayTestbed, key: str | None, orders: str = "tokens=1", **more: Any) -> Any:
    return ask(made, "POST", CHAT, key, json=body(orders, **more))


def add(made: GatewayTestbed, name: str, **fields: Any) -> dict[str, Any]:
    answer = ask(made, "POST", "/apikeys", json={"name": name, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()


def remove(made: GatewayTestbed, *names: str) -> None:
    for name in names:
        assert ask(made, "DELETE", f"/apikeys/{name}").status_code == 200


def told(made: GatewayTestbed, name: str) -> dict[str, Any]:
    keys = ask(made, "GET", "/apikeys").json()["keys"]
    return next(one for one in keys if one["name"] == name)


def everywhere(made: GatewayTestbed, key: str, status: int) -> float:
    """Return the seconds until a key has that status at every HTTP process, asked a dozen times in
    a row."""
    began_at = now()
    eventually(
        lambda: all(ask(made, "GET", "/v1/models", key).status_code == status for _ in range(12)),
        3 * WITHIN_S,
        f"{status} everywhere",
    )
    return now() - began_at


def test_where_keys_may_be_lost_only_the_owner_may_ask_until_a_person_says_otherwise(
    testbed: GatewayTestbed,
) -> None:
    assert ask(testbed, "GET", "/health").json()["status"] == "ok"
    testbed.happen(ApiKeyAdded(key=LOST_KEYS))
    eventually(
        lambda: all(chat(testbed, None).status_code == 401 for _ in range(12)), 3, "it is closed"
    )
    assert chat(testbed, OWNER).status_code == 200
    health = ask(testbed, "GET", "/health").json()
    assert health["status"] == "degraded"
    assert any("API keys may be lost" in one for one in health["problems"])
    assert ask(testbed, "GET", "/health", None).json() == {"status": "degraded"}
    remove(testbed, LOST_KEYS.name)
    eventually(lambda: chat(testbed, None).status_code == 200, 3, "it is open")
    assert ask(testbed, "GET", "/health").json()["problems"] == []


def test_a_key_asks_from_its_first_moment_and_not_after_its_removal(
    testbed: GatewayTestbed,
) -> None:
    assert chat(testbed, None).status_code == 200, "without keys none is asked for"
    made = add(testbed, "first")
    assert made["key"].startswith("sk-shoal-") and len(made["key"]) >= 9 + 43
    assert made["was_asked_for"] is False
    assert (made["scope"], made["durability"]) == ("inference", "local")
    taken_s = everywhere(testbed, made["key"], 200)
    eventually(
        lambda: all(chat(testbed, None).status_code == 401 for _ in range(12)), 3, "keys are asked"
    )
    by_header = httpx.get(f"{testbed.url}/v1/models", headers={"x-api-key": made["key"]})
    assert by_header.status_code == 200
    assert made["key"] not in ask(testbed, "GET", "/apikeys").text
    assert hashed(made["key"]) not in ask(testbed, "GET", "/apikeys").text
    assert hashed(made["key"]) not in ask(testbed, "GET", "/state").text
    assert add(testbed, "second")["was_asked_for"] is True
    remove(testbed, "first")
    refused_s = everywhere(testbed, made["key"], 401)
    print(f"taken by all processes after {taken_s:.3f} s, refused after {refused_s:.3f} s")
    remove(testbed, "second")
    assert chat(testbed, None).status_code == 200
    assert ask(testbed, "DELETE", "/apikeys/first").json()["error"]["code"] == "key_not_found"


KEPT = ((1_000, True), (3_000_000, False))
"""The bodies that each test run sends; `make prove-properties` sends all."""


@pytest.mark.parametrize(
    ("size", "chunked"),
    [
        pytest.param(size, chunked, marks=() if (size, chunked) in KEPT else pytest.mark.proof)
        for size in (1_000, 100_000, 1_000_000, 3_000_000)
        for chunked in (False, True)
    ],
)
def test_who_is_refused_before_the_body_was_read_is_told_that_the_connection_ends(
    testbed: GatewayTestbed, size: int, chunked: bool
) -> None:
    content = b"x" * size
    with httpx.Client(timeout=20, headers=headers_of("sk-of-nobody")) as client:
        add(testbed, "closed")
        everywhere(testbed, "sk-of-nobody", 401)
        for _ in range(30):
            sent = iter([content]) if chunked else content
            answer = client.post(testbed.url + CHAT, content=sent)
            assert answer.status_code == 401
    remove(testbed, "closed")


def test_a_name_is_one_keys_and_a_body_is_read_strictly(testbed: GatewayTestbed) -> None:
    add(testbed, "one")
    for fields, status, field in (
        ({"name": "ONE"}, 409, "name"),
        ({"name": "key-01234567"}, 400, "name"),
        ({"name": "b", "scope": "root"}, 400, "scope"),
        ({"name": "b", "concurrent": 0}, 400, "concurrent"),
        ({"name": "b", "key": "sk-mine"}, 400, "key"),
        ({"name": "b", "expires_in_s": -1}, 400, "expires_in_s"),
    ):
        answer = ask(testbed, "POST", "/apikeys", json=fields)
        assert answer.status_code == status, answer.text
        assert answer.json()["error"]["param"] == field, answer.text
    remove(testbed, "one")


def test_inference_opens_what_asks_models_and_nothing_else(testbed: GatewayTestbed) -> None:
    key, admin = add(testbed, "asks")["key"], add(testbed, "runs", scope="admin")["key"]
    everywhere(testbed, key, 200), everywhere(testbed, admin, 200)
    for route in ROUTES:
        path = route.path.replace("{name:path}", "x").replace("{name}", "x")
        path = path.replace("{answer_id}", "resp_x").replace("{part}", "1")
        for word in ("request_id", "instance", "node", "act", "key"):
            path = path.replace(f"{{{word}}}", "x")
        answer = ask(testbed, route.method, path, key, content=b"{")
        refused = route.scope == "admin"
        assert (answer.status_code == 403) == refused, (route.method, route.path, answer.text)
        if refused:
            assert "scope 'admin'" in answer.text
    for method, path in (("GET", "/state"), ("GET", "/queue"), ("GET", "/apikeys")):
        assert ask(testbed, method, path, admin).status_code == 200
        assert ask(testbed, "HEAD", path, key).status_code == 403
    for path in ("/state/", "/ollama/api/delete", "/place_instance"):
        method = "DELETE" if "delete" in path else "POST" if "place" in path else "GET"
        assert ask(testbed, method, path, key, content=b"{}").status_code == 403, path
    assert ask(testbed, "GET", "/ollama/api/tags", key).status_code == 200
    remove(testbed, "asks", "runs")


def test_a_403_and_a_429_are_in_the_words_of_each_dialect(testbed: GatewayTestbed) -> None:
    key = add(testbed, "words", requests_per_minute=1)["key"]
    everywhere(testbed, key, 200)
    ollama = ask(testbed, "DELETE", "/api/delete", key, json={"model": MODEL})
    assert ollama.status_code == 403 and "scope 'admin'" in ollama.json()["error"]
    openai = ask(testbed, "GET", "/state", key).json()["error"]
    assert (openai["code"], openai["needed_scope"]) == ("insufficient_scope", "admin")
    assert chat(testbed, key).status_code == 200
    settled(testbed, "words", requests=1)
    over = chat(testbed, key)
    assert over.status_code == 429 and 1 <= int(over.headers["retry-after"]) <= 61
    error = over.json()["error"]
    assert (error["code"], error["limit"]) == ("rate_limit_exceeded", 1)
    asked = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "tokens=1"}]}
    anthropic = ask(testbed, "POST", MESSAGES, key, json=asked)
    assert anthropic.status_code == 429 and anthropic.headers["retry-after"]
    assert anthropic.json()["error"]["type"] == "rate_limit_error"
    said = ask(testbed, "POST", OLLAMA, key, json=asked)
    assert said.status_code == 429 and "in a minute" in said.json()["error"]
    assert ask(testbed, "GET", "/v1/models", key).status_code == 200, "lists are not counted"
    assert chat(testbed, OWNER).status_code == 200, "the owner has no limits"
    remove(testbed, "words")


def settled(made: GatewayTestbed, name: str, **use: int) -> None:
    """Wait until every process tells this use of a key."""

    def is_told() -> bool:
        return all(told(made, name)["use"].items() >= use.items() for _ in range(12))

    eventually(is_told, 5, f"{name} has used {use}")


class Stream:
    """A stream with a key, read in a thread; `words` are what has come of its answer."""

    def __init__(self, made: GatewayTestbed, key: str, orders: str) -> None:
        self.status, self.text = 0, ""
        self._connection = httpx.Client(timeout=60)
        self._asked = (made.url + CHAT, body(orders, stream=True), headers_of(key))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        url, asked, headers = self._asked
        with self._connection.stream("POST", url, json=asked, headers=headers) as answer:
            self.status = answer.status_code
            for line in answer.iter_lines():
                self.text += line

    def wait(self, until: Callable[[], bool]) -> None:
        eventually(until, 15, "the stream goes on")

    def join(self) -> None:
        self._thread.join(20)
        self._connection.close()


def test_as_many_run_at_once_as_may_and_a_place_is_free_when_one_ends(
    testbed: GatewayTestbed,
) -> None:
    key = add(testbed, "few", concurrent=2)["key"]
    everywhere(testbed, key, 200)
    streams = [Stream(testbed, key, "tokens=500 every_ms=10") for _ in range(2)]
    for stream in streams:
        stream.wait(lambda stream=stream: stream.status == 200)
    settled(testbed, "few", running=2)
    over = chat(testbed, key)
    assert over.status_code == 429 and over.headers["retry-after"] == "1"
    assert over.json()["error"]["code"] == "concurrency_limit_exceeded"
    assert chat(testbed, OWNER).status_code == 200
    for stream in streams:
        stream.join()
        assert "[DONE]" in stream.text
    settled(testbed, "few", running=0)
    assert chat(testbed, key).status_code == 200
    # one whose client hangs up, and one that cannot be read, leave no place behind
    with (
        httpx.Client() as client,
        client.stream(
            "POST",
            testbed.url + CHAT,
            json=body("tokens=100000 every_ms=10", stream=True),
            headers=headers_of(key),
        ) as answer,
    ):
        next(answer.iter_lines())
    assert ask(testbed, "POST", CHAT, key, content=b"{").status_code == 400
    settled(testbed, "few", running=0)
    remove(testbed, "few")


def test_a_job_waits_for_its_keys_budget_and_what_it_takes_counts_for_the_key(
    testbed: GatewayTestbed,
) -> None:
    key = add(testbed, "patient", concurrent=1)["key"]
    everywhere(testbed, key, 200)
    stream = Stream(testbed, key, "tokens=600 every_ms=10")
    stream.wait(lambda: stream.status == 200)
    settled(testbed, "patient", running=1)
    before = told(testbed, "patient")["use"]["tokens"]
    asked = {"path": CHAT, "body": body("tokens=7")}
    job = ask(testbed, "POST", "/v1/jobs", key, json=asked).json()
    assert job["status"] == "queued"

    def state() -> str:
        """Return how the job is."""
        return ask(testbed, "GET", f"/v1/jobs/{job['id']}", key).json()["status"]

    assert state() in ("queued", "loading", "running")
    stream.join()
    assert "[DONE]" in stream.text, "a job takes no place from who waits for an answer"
    eventually(lambda: state() == "done", 20, "the job had its turn")
    settled(testbed, "patient", running=0)
    assert told(testbed, "patient")["use"]["tokens"] >= before + 7
    remove(testbed, "patient")


def test_a_response_in_the_background_counts_for_one_request_of_the_minute(
    testbed: GatewayTestbed,
) -> None:
    key = add(testbed, "calm", requests_per_minute=1)["key"]
    everywhere(testbed, key, 200)
    asked = {"model": MODEL, "input": "tokens=2", "background": True}
    path = f"/v1/responses/{ask(testbed, 'POST', '/v1/responses', key, json=asked).json()['id']}"
    eventually(
        lambda: ask(testbed, "GET", path, key).json()["status"] == "completed", 20, "it is made"
    )
    settled(testbed, "calm", requests=1, running=0)
    assert chat(testbed, key).status_code == 429
    remove(testbed, "calm")


def test_jobs_of_a_key_that_is_removed_are_left_to_admin_keys(testbed: GatewayTestbed) -> None:
    key, other = (add(testbed, name)["key"] for name in ("leaves", "stays"))
    everywhere(testbed, key, 200), everywhere(testbed, other, 200)
    asked = {"path": CHAT, "body": body("tokens=1")}
    name = ask(testbed, "POST", "/v1/jobs", key, json=asked).json()["id"]
    remove(testbed, "leaves")
    everywhere(testbed, key, 401)
    for path in ("/v1/jobs", f"/v1/jobs/{name}", f"/v1/jobs/{name}/events"):
        refused = ask(testbed, "GET", f"{path}?all=true", other)
        assert refused.json()["error"]["code"] == "insufficient_scope", path
    assert ask(testbed, "GET", "/v1/jobs").json()["data"] == []
    assert name in {one["id"] for one in ask(testbed, "GET", "/v1/jobs?all=true").json()["data"]}
    assert ask(testbed, "GET", f"/v1/jobs/{name}").status_code == 404
    assert ask(testbed, "GET", f"/v1/jobs/{name}?all=true").json()["id"] == name
    remove(testbed, "stays")


def test_tokens_of_a_day_are_counted_and_end_in_a_429_until_midnight(
    testbed: GatewayTestbed,
) -> None:
    key = add(testbed, "thrifty", tokens_per_day=20)["key"]
    everywhere(testbed, key, 200)
    first = chat(testbed, key, "tokens=5").json()["usage"]["total_tokens"]
    settled(testbed, "thrifty", tokens=first)
    second = chat(testbed, key, "tokens=10").json()["usage"]["total_tokens"]
    settled(testbed, "thrifty", tokens=first + second)
    assert first + second >= 20
    over = chat(testbed, key)
    assert over.status_code == 429
    assert over.json()["error"]["code"] == "token_quota_exceeded"
    assert 1 <= int(over.headers["retry-after"]) <= 86_400
    assert told(testbed, "thrifty")["used_at_s"] == pytest.approx(wall_of(over), abs=30)
    remove(testbed, "thrifty")


def wall_of(answer: httpx.Response) -> float:
    from email.utils import parsedate_to_datetime

    return parsedate_to_datetime(answer.headers["date"]).timestamp()


def test_a_key_expires_by_itself(testbed: GatewayTestbed) -> None:
    made = add(testbed, "brief", expires_in_s=1.5)
    assert ask(testbed, "GET", "/v1/models", made["key"]).status_code in (200, 401)
    eventually(
        lambda: ask(testbed, "GET", "/v1/models", made["key"]).status_code == 401, 5, "it expires"
    )
    assert told(testbed, "brief")["expired"] is True
    assert chat(testbed, None).status_code == 401, "an expired key leaves no door open"
    remove(testbed, "brief")


def test_a_rotation_interrupts_no_stream_and_keeps_what_is_the_keys(
    testbed: GatewayTestbed,
) -> None:
    made = add(testbed, "turns")
    old = made["key"]
    everywhere(testbed, old, 200)
    stored = ask(
        testbed,
        "POST",
        "/v1/responses",
        old,
        json={"model": MODEL, "input": "tokens=2", "store": True},
    ).json()["id"]
    streams = [Stream(testbed, old, "tokens=600 every_ms=10") for _ in range(16)]
    for stream in streams:
        stream.wait(lambda stream=stream: "data:" in stream.text)
    turned = ask(testbed, "POST", "/apikeys/turns/rotate", json={}).json()
    assert turned["id"] == made["id"] and turned["key"] != old
    everywhere(testbed, old, 401), everywhere(testbed, turned["key"], 200)
    assert all("[DONE]" not in stream.text for stream in streams), "they still ran"
    for stream in streams:
        stream.join()
        assert stream.status == 200 and "[DONE]" in stream.text and '"error"' not in stream.text
    kept = ask(testbed, "GET", f"/v1/responses/{stored}", turned["key"])
    assert kept.status_code == 200, "answers are the key's, not the secret's"
    with_grace = ask(testbed, "POST", "/apikeys/turns/rotate", json={"grace_s": 2.0}).json()
    for key in (turned["key"], with_grace["key"]):
        everywhere(testbed, key, 200)
    eventually(
        lambda: ask(testbed, "GET", "/v1/models", turned["key"]).status_code == 401, 6, "it stops"
    )
    assert ask(testbed, "GET", "/v1/models", with_grace["key"]).status_code == 200
    remove(testbed, "turns")


def test_a_request_counts_for_its_key_by_id_and_no_file_has_a_secret(
    testbed: GatewayTestbed,
) -> None:
    made = add(testbed, "noted")
    everywhere(testbed, made["key"], 200)
    answer = chat(testbed, made["key"])
    name = answer.json()["id"].removeprefix("chatcmpl-")

    def row() -> dict[str, Any] | None:
        rows = ask(testbed, "GET", "/requests/recent").json()["requests"]
        return next((one for one in rows if one["request"] == name), None)

    assert eventually(row, 5, "its row")["key"] == made["id"]

    def submits() -> list[dict[str, Any]]:
        """Return what the runner says of it, which comes by a pipe of its own."""
        return [one for one in testbed.runners[0].heard("submit") if one["request"] == name]

    (submit,) = eventually(submits, 5, "the runner's word")
    assert submit["sharer"][0] == made["id"], "rows are shared between keys"
    for file in Path(testbed.folder).rglob("*"):
        if file.is_file():
            assert made["key"].encode() not in file.read_bytes(), file
    remove(testbed, "noted")


def test_keys_and_their_use_are_known_again_after_a_restart_before_anybody_is_let_in() -> None:
    with gateway_testbed(owner_key=hashed(OWNER), keys=[hashed(IN_SETTINGS)]) as made:
        made.runner()
        key = add(made, "lasting", tokens_per_day=9)["key"]
        eventually(lambda: chat(made, key).status_code == 200, 10, "it is taken")
        assert ask(made, "GET", "/state", IN_SETTINGS).status_code == 200
        eventually(lambda: told(made, "lasting")["use"]["tokens"] >= 8, 5, "it is counted")
        assert chat(made, key).status_code == 200
        eventually(lambda: chat(made, key).status_code == 429, 5, "the day is used up")
        those = [psutil.Process(made.gateway.pid), *psutil.Process(made.gateway.pid).children()]
        for process in those:
            process.send_signal(signal.SIGKILL)
        made.gateway.wait(10)
        psutil.wait_procs(those, timeout=10)
        made.log.close()
        made.gateway = made.start_gateway(owner_key=hashed(OWNER))
        assert ask(made, "GET", "/v1/models", None).status_code == 401
        assert ask(made, "GET", "/v1/models", IN_SETTINGS).status_code == 401
        assert ask(made, "GET", "/v1/models", key).status_code == 200
        eventually(lambda: chat(made, key).status_code == 429, 5, "the day is still used up")
