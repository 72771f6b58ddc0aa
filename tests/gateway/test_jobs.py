"""Jobs over HTTP: submitted, told, read, stopped, removed; by whom, and by which process."""

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
CHAT = "/v1/chat/completions"
ENDED = ("done", "failed", "cancelled")


@pytest.fixture(scope="module")
def testbed() -> Iterator[GatewayTestbed]:
    keys = [hashed("sk-one"), hashed("sk-two")]
    with gateway_testbed(keys=keys, processes=PROCESSES) as made:
        made.runner()
        yield made


def chat(text: str = "tokens=3", **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **more}


def call(
    testbed: GatewayTestbed,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] = ONE,
) -> httpx.Response:
    """Each call has a connection of its own, so that any of the processes may take it."""
    url = f"{testbed.url}{path}"
    return httpx.request(method, url, json=body, headers=headers, timeout=30)


def submit(testbed: GatewayTestbed, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    asked = {"path": CHAT, "body": body, **more}
    answer = call(testbed, "POST", "/v1/jobs", asked)
    assert answer.status_code == 202, answer.text
    return answer.json()


def job_of(testbed: GatewayTestbed, name: str) -> dict[str, Any]:
    answer = call(testbed, "GET", f"/v1/jobs/{name}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def ended(testbed: GatewayTestbed, name: str, timeout_s: float = 20) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        job = job_of(testbed, name)
        return job if job["status"] in ENDED else None

    return eventually(found, timeout_s, f"{name} ends")


def events_of(testbed: GatewayTestbed, path: str) -> list[tuple[int | None, str, Any]]:
    """The events of a stream: id, name, data as JSON or text."""
    found: list[tuple[int | None, str, Any]] = []
    text = call(testbed, "GET", path).text
    for frame in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in frame.splitlines() if line[:1] != ":")
        if fields:
            data: Any = fields["data"]
            number = int(fields["id"]) if "id" in fields else None
            found.append(
                (number, fields.get("event", ""), json.loads(data) if data[0] == "{" else data)
            )
    return found


def test_a_job_is_acknowledged_at_once_and_has_its_answer_later(testbed: GatewayTestbed) -> None:
    job = submit(testbed, chat("tokens=3"), metadata={"a": "b"})
    assert job["object"] == "job" and job["status"] in ("queued", "loading")
    assert job["metadata"] == {"a": "b"} and job["priority"] == 50
    done = ended(testbed, job["id"])
    assert (done["status"], done["attempts"], done["error"]) == ("done", 1, None)
    assert done["result"]["choices"][0]["message"]["content"] == "one two three "
    assert done["progress"]["tokens"] == 3
    assert done["created_at"] <= done["started_at"] <= done["ended_at"] < done["expires_at"]


def test_a_job_is_told_the_same_by_every_process(testbed: GatewayTestbed) -> None:
    job = ended(testbed, submit(testbed, chat())["id"])
    for _ in range(4 * PROCESSES):
        assert job_of(testbed, job["id"]) == job


def test_a_job_has_as_many_tokens_as_its_usage(testbed: GatewayTestbed) -> None:
    done = ended(testbed, submit(testbed, chat("tokens=3 unsaid=1"))["id"])
    assert done["progress"]["tokens"] == done["result"]["usage"]["completion_tokens"] == 4
    cut = ended(testbed, submit(testbed, chat("tokens=2 every_ms=10 fail=internal"))["id"])
    assert cut["progress"]["tokens"] == 2


def test_another_key_finds_no_job_but_an_admin_key_that_asks_for_all(
    testbed: GatewayTestbed,
) -> None:
    job = ended(testbed, submit(testbed, chat())["id"])
    everybodys = call(testbed, "GET", "/v1/jobs?all=true", headers=TWO).json()["data"]
    assert everybodys[0]["id"] == job["id"] and everybodys[0]["key"] == hashed("sk-one")[-16:]
    path = f"/v1/jobs/{job['id']}"
    assert call(testbed, "GET", f"{path}?all=true", headers=TWO).json() == job
    assert call(testbed, "GET", f"{path}?all=false", headers=TWO).status_code == 404
    refused = call(testbed, "GET", "/v1/jobs?all=some", headers=TWO)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "all")
    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/events"),
        ("POST", "/cancel"),
    ):
        refused = call(testbed, method, f"/v1/jobs/{job['id']}{path}", headers=TWO)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found")
    assert call(testbed, "GET", "/v1/jobs", headers=TWO).json()["data"] == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": MODEL, "prompt": "tokens=2"}),
        ("/v1/responses", {"model": MODEL, "input": "tokens=2"}),
        ("/v1/messages", {**chat("tokens=2"), "max_tokens": 9}),
        ("/api/chat", {**chat("tokens=2"), "stream": False}),
        ("/ollama/api/generate", {"model": MODEL, "prompt": "tokens=2", "stream": False}),
    ],
)
def test_a_job_may_be_in_any_dialect(
    testbed: GatewayTestbed, path: str, body: dict[str, Any]
) -> None:
    job = call(testbed, "POST", "/v1/jobs", {"path": path, "body": body}).json()
    done = ended(testbed, job["id"])
    assert done["status"] == "done" and "one two" in json.dumps(done["result"])


def test_the_events_of_a_stream_are_told_by_numbers_and_from_any_of_them(
    testbed: GatewayTestbed,
) -> None:
    job = submit(testbed, chat("tokens=30 every_ms=30", stream=True))
    path = f"/v1/jobs/{job['id']}/events"
    live = events_of(testbed, path)
    assert [number for number, _, _ in live[:-1]] == list(range(len(live) - 1))
    assert live[-2][2] == "[DONE]" and live[-1][1] == "job.done"
    words = [
        data["choices"][0]["delta"].get("content", "")
        for _, _, data in live[:-2]
        if data["choices"]
    ]
    said = "".join(words).split()
    assert (said[:3], said[8], len(said)) == (["one", "two", "three"], "one", 30)
    for _ in range(2 * PROCESSES):
        assert events_of(testbed, path) == live
    assert events_of(testbed, f"{path}?starting_after=7") == live[8:]
    assert events_of(testbed, f"{path}?starting_after=9999") == live[-1:]
    refused = call(testbed, "GET", f"{path}?starting_after=x")
    assert refused.json()["error"]["param"] == "starting_after"


def test_lines_of_a_stream_are_events(testbed: GatewayTestbed) -> None:
    body = {"path": "/api/chat", "body": {**chat("tokens=3"), "stream": True}}
    job = call(testbed, "POST", "/v1/jobs", body).json()
    told = events_of(testbed, f"/v1/jobs/{job['id']}/events")
    assert [data["message"]["content"] for _, _, data in told[:3]] == ["one ", "two ", "three "]
    assert told[-2][2]["done"] is True and told[-1][1] == "job.done"


def test_a_job_is_counted_for_its_owner_and_is_in_the_request_log(testbed: GatewayTestbed) -> None:
    job = submit(testbed, chat("tokens=4", x_client_id="night", x_priority="low"))
    assert job["priority"] == 20
    ended(testbed, job["id"])
    request = job["id"].removeprefix("job_")
    [row] = eventually(
        lambda: [
            row
            for row in call(testbed, "GET", "/requests/recent?client=night").json()["requests"]
            if row["request"] == request
        ],
        5,
        "it is in the log",
    )
    assert (row["priority"], row["completion_tokens"]) == (20, 4)
    assert row["key"] == hashed("sk-one")[-16:]
    [heard] = eventually(lambda: submits(testbed, request), 5, "the runner tells of it")
    assert heard["sharer"][:3] == [hashed("sk-one")[-16:], "night", "127.0.0.1"]


def submits(testbed: GatewayTestbed, request: str) -> list[dict[str, Any]]:
    """The runs of a request that the runner has told of, by a pipe of its own, so that it may be
    after the answer."""
    heard = testbed.runners[0].heard("submit")
    return [one for one in heard if one["request"].startswith(request)]


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"path": "/v1/models", "body": {}}, 400, "path"),
        ({"path": CHAT, "body": {**chat(), "temperature": 9}}, 400, "body.temperature"),
        ({"path": CHAT, "body": {**chat(), "model": "none"}}, 404, "model"),
        ({"path": CHAT, "body": chat(), "ttl_s": 0}, 400, "ttl_s"),
        ({"path": CHAT, "body": chat(), "color": "red"}, 400, "color"),
        ({"path": CHAT}, 400, "body"),
        (
            {"path": "/v1/responses", "body": {"model": MODEL, "input": "x", "background": True}},
            400,
            "body.background",
        ),
    ],
)
def test_a_job_is_refused_as_its_request_would_be(
    testbed: GatewayTestbed, body: dict[str, Any], status: int, field: str
) -> None:
    refused = call(testbed, "POST", "/v1/jobs", body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (status, field)


def test_a_job_whose_request_fails_says_why(testbed: GatewayTestbed) -> None:
    for stream in (False, True):
        job = submit(testbed, chat("tokens=2 every_ms=10 fail=internal", stream=stream))
        failed = ended(testbed, job["id"])
        assert (failed["status"], failed["result"]) == ("failed", None)
        assert failed["error"]["code"] == "internal_error", failed


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_job_whose_runner_ends_is_begun_anew_and_after_three_runs_it_has_failed(
    testbed: GatewayTestbed, stream: bool
) -> None:
    job = submit(testbed, chat("tokens=40 every_ms=20 fail=model_unavailable", stream=stream))
    failed = ended(testbed, job["id"], 30)
    assert (failed["status"], failed["attempts"]) == ("failed", 3), failed
    assert failed["error"]["code"] == "model_unavailable", failed
    request = job["id"].removeprefix("job_")
    eventually(lambda: len(submits(testbed, request)) >= 3, 5, "the runner tells of three runs")
    mine = [one["request"] for one in submits(testbed, request)]
    assert len(mine) == len(set(mine)) == 3
    if stream:
        names = [name for _, name, _ in events_of(testbed, f"/v1/jobs/{job['id']}/events")]
        assert names.count("job.restarted") == 2 and names[-1] == "job.failed", names


def test_a_job_that_finds_the_queue_full_comes_again(testbed: GatewayTestbed) -> None:
    job = submit(testbed, chat("refuse=queue_full"))
    request = job["id"].removeprefix("job_")
    eventually(lambda: len(submits(testbed, request)) > 1, 20, "it came again")
    assert job_of(testbed, job["id"])["attempts"] > 1
    assert call(testbed, "POST", f"/v1/jobs/{job['id']}/cancel").json()["status"] == "cancelled"
    mine = [one["request"] for one in submits(testbed, request)]
    assert len(mine) == len(set(mine)) > 1


def test_a_job_is_stopped_while_it_runs_and_keeps_what_it_said(testbed: GatewayTestbed) -> None:
    job = submit(testbed, chat("tokens=100000 every_ms=10", stream=True))
    running = eventually(
        lambda: (told := job_of(testbed, job["id"]))["progress"]["tokens"] > 3 and told,
        20,
        "it runs",
    )
    assert running["status"] == "running" and running["result"] is None
    refused = call(testbed, "DELETE", f"/v1/jobs/{job['id']}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
    stopped = call(testbed, "POST", f"/v1/jobs/{job['id']}/cancel").json()
    assert stopped["status"] == "cancelled"
    told = events_of(testbed, f"/v1/jobs/{job['id']}/events")
    assert (
        told[0][2]["choices"][0]["delta"]["role"] == "assistant" and told[-1][1] == "job.cancelled"
    )
    request = job["id"].removeprefix("job_")
    eventually(
        lambda: any(one["request"] == request for one in testbed.runners[0].heard("cancel")),
        5,
        "the runner tells that it was stopped",
    )
    again = call(testbed, "POST", f"/v1/jobs/{job['id']}/cancel")
    assert (again.status_code, again.json()["status"]) == (200, "cancelled")


def test_another_admin_key_stops_a_job_and_removes_it(testbed: GatewayTestbed) -> None:
    job = submit(testbed, chat("tokens=100000 every_ms=10"))
    path = f"/v1/jobs/{job['id']}"
    stopped = call(testbed, "POST", f"{path}/cancel?all=true", headers=TWO).json()
    assert stopped["status"] == "cancelled"
    assert call(testbed, "DELETE", f"{path}?all=true", headers=TWO).json()["deleted"] is True
    assert call(testbed, "GET", path).status_code == 404


def test_a_job_that_has_ended_is_not_stopped_and_can_be_removed(testbed: GatewayTestbed) -> None:
    job = ended(testbed, submit(testbed, chat())["id"])
    path = f"/v1/jobs/{job['id']}"
    assert call(testbed, "POST", f"{path}/cancel").status_code == 409
    gone = call(testbed, "DELETE", path)
    assert gone.json() == {"id": job["id"], "object": "job", "deleted": True}
    assert call(testbed, "GET", path).status_code == 404


def test_jobs_are_listed_in_pages_the_latest_first(testbed: GatewayTestbed) -> None:
    names = [submit(testbed, chat())["id"] for _ in range(5)]
    first = call(testbed, "GET", "/v1/jobs?limit=2").json()
    assert [one["id"] for one in first["data"]] == names[:2:-1] and first["has_more"]
    after = call(testbed, "GET", f"/v1/jobs?limit=3&after={first['last_id']}").json()
    assert [one["id"] for one in after["data"]] == names[2::-1]
    assert call(testbed, "GET", "/v1/jobs?limit=0").json()["error"]["param"] == "limit"
    for name in names:
        ended(testbed, name)


def test_a_result_is_gone_after_its_time(testbed: GatewayTestbed) -> None:
    job = submit(testbed, chat(), ttl_s=1)
    path = f"/v1/jobs/{job['id']}"
    ended(testbed, job["id"])
    eventually(lambda: call(testbed, "GET", path).status_code == 404, 60, "its time is over")


def test_jobs_beyond_the_bounds_are_refused_and_those_of_others_are_not() -> None:
    with gateway_testbed(jobs_per_client=2, jobs_running=0) as made:
        for _ in range(2):
            assert call(made, "POST", "/v1/jobs", {"path": CHAT, "body": chat()}).status_code == 202
        refused = call(made, "POST", "/v1/jobs", {"path": CHAT, "body": chat()})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert "retry-after" in refused.headers
        other = {"path": CHAT, "body": chat(x_client_id="other", x_priority="urgent")}
        taken = call(made, "POST", "/v1/jobs", other)
        assert (taken.status_code, taken.json()["position"]) == (202, 0)
        jobs = call(made, "GET", "/v1/jobs").json()["data"]
        assert job_of(made, jobs[1]["id"])["position"] == 2
        stopped = call(made, "POST", f"/v1/jobs/{jobs[1]['id']}/cancel").json()
        assert (stopped["status"], stopped["attempts"]) == ("cancelled", 0)
        assert call(made, "POST", "/v1/jobs", {"path": CHAT, "body": chat()}).status_code == 202
