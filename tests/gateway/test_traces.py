"""Traces over HTTP: of requests that ask for one, of a share of them, and no word of any."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.gateway_testbed import MODEL, GatewayTestbed, eventually, gateway_testbed
from tests.harness.http_clients import body, chat, ready
from tests.harness.traces import check_trace


@pytest.fixture(scope="module")
def made() -> Iterator[GatewayTestbed]:
    with gateway_testbed(processes=2, max_waiting=1) as found:
        found.runner()
        eventually(lambda: ready(found), 10, "the instance is ready")
        yield found


def get(made: GatewayTestbed, path: str, **query: Any) -> httpx.Response:
    return httpx.get(f"{made.url}{path}", params=query)


def raw_of(made: GatewayTestbed, answer_id: str) -> dict[str, Any]:
    """The trace of an answer, whichever process is asked: within some moments."""

    def found() -> dict[str, Any] | None:
        answer = get(made, f"/v1/traces/{answer_id}/raw")
        return answer.json() if answer.status_code == 200 else None

    return eventually(found, 5, f"a trace of {answer_id}")


def test_a_request_that_asks_for_it_is_traced_and_its_runner_with_it(made: GatewayTestbed) -> None:
    answer = chat(made, "tokens=20 every_ms=100", x_trace=True)
    raw = raw_of(made, answer.json()["id"])
    assert answer.json()["id"].endswith(raw["request"])
    assert {
        "model": MODEL, "kind": "generate", "dialect": "openai_chat", "streamed": False,
        "why": "asked", "status": 200, "error": None, "node": "n1",
    }.items() <= raw.items()  # fmt: skip
    lead = raw["lead"]
    assert (lead["instance"], lead["node"], lead["choices"]) == ("inst-1", "n1", 1)
    assert [one["tokens"] for one in lead["spans"] if one["name"] == "decode"] == [20]
    events = get(made, f"/v1/traces/{raw['request']}")
    check_trace(events.json(), sequential=True)
    assert abs(raw["began_at_s"] + raw["seconds"] - time.time()) < 600


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("/v1/completions", {"prompt": "tokens=3"}),
        ("/v1/responses", {"input": "tokens=3"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "tokens=3"}], "max_tokens": 9}),
        ("/api/chat", {"messages": [{"role": "user", "content": "tokens=3"}]}),
        ("/api/generate", {"prompt": "tokens=3"}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_each_dialect_can_ask(
    made: GatewayTestbed, path: str, sent: dict[str, Any], stream: bool
) -> None:
    asked = {"model": MODEL, "stream": stream, "x_trace": True, **sent}
    answer = httpx.post(f"{made.url}{path}", json=asked, timeout=10)
    assert answer.status_code == 200, answer.text
    raw = raw_of(made, answer.headers["x-request-id"])
    assert raw["streamed"] is stream and raw["lead"] is not None
    check_trace(get(made, f"/v1/traces/{raw['request']}").json())


def test_a_request_that_does_not_ask_is_not_traced(made: GatewayTestbed) -> None:
    name = chat(made, "tokens=2").json()["id"]
    later = chat(made, "tokens=2", x_trace=True).json()["id"]
    raw_of(made, later)
    assert get(made, f"/v1/traces/{name}").status_code == 404
    no = chat(made, "tokens=2", x_trace="yes")
    assert no.status_code == 400 and no.json()["error"]["param"] == "x_trace"


def test_every_choice_of_several_has_a_lane(made: GatewayTestbed) -> None:
    raw = raw_of(made, chat(made, "tokens=4", n=3, x_trace=True).json()["id"])
    assert raw["lead"]["choices"] == 3
    assert {one["choice"] for one in raw["lead"]["spans"]} == {0, 1, 2}
    check_trace(get(made, f"/v1/traces/{raw['request']}").json())


def test_one_whose_runner_tells_nothing_fails_or_is_hung_up_on_is_traced_here(
    made: GatewayTestbed,
) -> None:
    untold = raw_of(made, chat(made, "tokens=4 untold=1", x_trace=True).json()["id"])
    assert untold["lead"] is None and untold["error"] is None
    failed = chat(made, "tokens=2 every_ms=5 fail=runner_lost", x_trace=True)
    raw = raw_of(made, failed.headers["x-request-id"])
    assert (raw["status"], raw["error"]) == (failed.status_code, "runner_lost")
    url = f"{made.url}/v1/chat/completions"
    asked = body("tokens=1000000 every_ms=10", stream=True, x_trace=True)
    with httpx.stream("POST", url, json=asked, timeout=10) as stream:
        next(stream.iter_lines())
    gone = raw_of(made, stream.headers["x-request-id"])
    assert gone["error"] == "client_closed"
    for one in (untold, raw, gone):
        check_trace(get(made, f"/v1/traces/{one['request']}").json())


def test_the_ranks_of_a_group_are_told_of_after_the_end_and_one_that_is_silent_is_named(
    made: GatewayTestbed,
) -> None:
    whole = raw_of(made, chat(made, "tokens=4 ranks=2", x_trace=True).json()["id"])
    assert [(one["rank"], one["node"], one["told"]) for one in whole["ranks"]] == [
        (0, "n1", True),
        (1, "n2", True),
    ]
    part = raw_of(made, chat(made, "tokens=4 ranks=3 quiet=1", x_trace=True).json()["id"])
    assert [one["told"] for one in part["ranks"]] == [True, False, True]
    assert "no data in time" in part["ranks"][1]["why"]
    for raw in (whole, part):
        check_trace(get(made, f"/v1/traces/{raw['request']}").json())
    alone = raw_of(made, chat(made, "tokens=4", x_trace=True).json()["id"])
    assert alone["ranks"] == [] and alone["links"] == []


def test_a_trace_can_be_listed_and_removed(made: GatewayTestbed) -> None:
    raw = raw_of(made, chat(made, "tokens=2", x_trace=True).json()["id"])
    found = get(made, "/v1/traces", limit=1, model=MODEL).json()
    assert found["node"] == "n1" and found["kept"] >= 1
    (row,) = found["traces"]
    assert (row["request"], row["why"]) == (raw["request"], "asked")
    of_all = get(made, "/v1/traces/cluster", limit=1).json()
    assert of_all == {"traces": [{"node": "n1", **row}], "missing": []}
    assert get(made, "/v1/traces", model="no-such").json()["traces"] == []
    assert get(made, "/v1/traces", limit=0).status_code == 400
    gone = httpx.delete(f"{made.url}/v1/traces/chatcmpl-{raw['request']}")
    assert gone.json() == {"request": raw["request"], "removed": True}
    again = httpx.delete(f"{made.url}/v1/traces/{raw['request']}")
    assert (again.status_code, again.json()["error"]["code"]) == (404, "trace_not_found")


@pytest.mark.parametrize("name", ["req-nfar-h0-b1-1", "req-n1-h0-b1-77777", "nonsense"])
def test_what_no_node_keeps_is_not_found(made: GatewayTestbed, name: str) -> None:
    for path in (f"/v1/traces/{name}", f"/v1/traces/{name}/raw"):
        answer = get(made, path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "trace_not_found")


def test_statistics_tell_of_the_parts(made: GatewayTestbed) -> None:
    raw_of(made, chat(made, "tokens=2", x_trace=True).json()["id"])
    found = get(made, "/v1/traces/stats", window_s=600).json()
    assert found["traces"] >= 1 and found["window_s"] == 600
    assert {"gateway.read", "gateway.answer", "lead.decode"} <= set(found["parts"])
    assert get(made, "/v1/traces/stats", window_s="x").status_code == 400


def put(made: GatewayTestbed, sent: dict[str, Any]) -> httpx.Response:
    return httpx.put(f"{made.url}/v1/tracing", json=sent, timeout=20)


def test_a_share_is_traced_as_the_cluster_says_from_now_on(made: GatewayTestbed) -> None:
    def told(on: bool) -> bool:
        """Ask on fresh connections, which any process may take."""
        return all(get(made, "/v1/tracing").json()["on"] is on for _ in range(12))

    answer = put(made, {"on": True})
    assert answer.status_code == 200, answer.text
    assert answer.json().items() >= {"on": True, "ratio": 1.0, "cluster": 1.0}.items()
    eventually(lambda: told(True), 10, "each process traces")
    assert raw_of(made, chat(made, "tokens=2").json()["id"])["why"] == "sampled"
    assert put(made, {"on": False}).json()["ratio"] == 0.0
    eventually(lambda: told(False), 10, "no process traces")
    name = chat(made, "tokens=2").json()["id"]
    raw_of(made, chat(made, "tokens=2", x_trace=True).json()["id"])
    assert get(made, f"/v1/traces/{name}").status_code == 404
    assert put(made, {"ratio": 0.25}).json()["ratio"] == 0.25
    assert put(made, {"ratio": None}).json().items() >= {"on": False, "cluster": None}.items()


@pytest.mark.parametrize(
    "sent", [{}, {"on": True, "ratio": 0.5}, {"ratio": 2}, {"on": None}, {"of": 1}]
)
def test_what_says_no_share_is_refused(made: GatewayTestbed, sent: dict[str, Any]) -> None:
    answer = put(made, sent)
    assert answer.status_code == 400, answer.text


def test_no_word_of_a_request_is_in_its_trace(made: GatewayTestbed) -> None:
    secret = "geheimnis-7f3"
    tool = {"type": "function", "function": {"name": f"f_{secret[-3:]}", "description": secret}}
    answer = chat(made, f"tokens=3 calls=1 {secret}", tools=[tool], stop=[secret], x_trace=True)
    raw = raw_of(made, answer.json()["id"])
    for text in (json.dumps(raw), get(made, f"/v1/traces/{raw['request']}").text):
        assert secret not in text and "two three" not in text and "f_7f3" not in text


def test_a_share_is_traced_where_the_setting_says_so() -> None:
    with gateway_testbed(trace_sample=1.0) as made:
        made.runner()
        eventually(lambda: ready(made), 10, "the instance is ready")
        raw = raw_of(made, chat(made, "tokens=2").json()["id"])
        assert raw["why"] == "sampled"
        told = get(made, "/v1/tracing").json()
        assert told == {"on": True, "ratio": 1.0, "cluster": None, "setting": 1.0, "keeps": True}


def test_where_no_traces_are_kept_none_is_made_and_that_is_said(tmp_path: Path) -> None:
    with gateway_testbed(trace_rows=0, trace_sample=1.0) as made:
        made.runner()
        eventually(lambda: ready(made), 10, "the instance is ready")
        answer = chat(made, "tokens=2", x_trace=True)
        assert answer.status_code == 200
        assert answer.headers["x-shoal-ignored"] == "x_trace"
        assert "x-shoal-ignored" not in chat(made, "tokens=2").headers
        assert get(made, "/v1/traces").json()["traces"] == []
        assert get(made, "/v1/tracing").json()["on"] is False


def test_a_runner_of_an_earlier_build_is_not_asked_for_a_trace() -> None:
    with gateway_testbed() as made:
        runner = made.runner(protocol=8)
        eventually(lambda: ready(made), 10, "the instance is ready")
        url, asked = f"{made.url}/v1/chat/completions", body("tokens=2", x_trace=True)
        answer = httpx.post(url, json=asked, timeout=10)
        assert answer.status_code == 200, answer.text
        assert raw_of(made, answer.json()["id"])["lead"] is None
        assert runner.heard("bad") == []
