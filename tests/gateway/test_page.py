"""The page and what it is made from, over a real gateway: negotiation, caching, keys, snapshots."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from gateway.access import hashed
from gateway.http.page.files import POLICY
from tests.harness.gateway_testbed import MODEL, GatewayTestbed, eventually, gateway_testbed
from tests.harness.http_clients import Reader, chat, ready

pytestmark = pytest.mark.slow
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
FILES = ("/dashboard", "/dashboard/main.js", "/dashboard/page.css", "/dashboard/icon.svg")


@pytest.fixture(scope="module")
def testbed() -> Iterator[GatewayTestbed]:
    with gateway_testbed(processes=2) as made:
        made.runner()
        eventually(lambda: ready(made), 20, "the instance is ready")
        yield made


@contextmanager
def snapshots(made: GatewayTestbed, **headers: str) -> Iterator[Iterator[dict[str, Any]]]:
    with (
        httpx.Client(timeout=20, headers=headers) as client,
        client.stream("GET", f"{made.url}/metrics/stream") as answer,
    ):
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        yield (json.loads(line[6:]) for line in lines if line.startswith("data: "))


def test_browsers_are_given_the_page_and_all_others_a_line(testbed: GatewayTestbed) -> None:
    page = httpx.get(f"{testbed.url}/", headers=BROWSER)
    assert page.headers["content-type"].startswith("text/html") and "<!doctype html>" in page.text
    for headers in ({}, {"Accept": "*/*"}, {"Accept": "application/json"}):
        line = httpx.get(f"{testbed.url}/", headers=headers)
        assert line.headers["content-type"].startswith("text/plain")
        assert "is running" in line.text and "accept" in line.headers["vary"]
    assert httpx.get(f"{testbed.url}/ollama", headers=BROWSER).text.startswith("shoal")
    assert httpx.get(f"{testbed.url}/dashboard").text == page.text


@pytest.mark.parametrize("path", FILES)
def test_a_file_has_its_policy_and_is_not_sent_again_unchanged(
    testbed: GatewayTestbed, path: str
) -> None:
    first = httpx.get(f"{testbed.url}{path}")
    assert first.status_code == 200
    assert first.headers["content-security-policy"] == POLICY
    assert first.headers["x-content-type-options"] == "nosniff"
    assert first.headers["cache-control"] == "no-cache"
    mark = first.headers["etag"]
    again = httpx.get(f"{testbed.url}{path}", headers={"If-None-Match": f'"other", {mark}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == mark
    other = httpx.get(f"{testbed.url}{path}", headers={"If-None-Match": '"other"'})
    assert other.status_code == 200
    assert httpx.head(f"{testbed.url}{path}").headers["etag"] == mark


@pytest.mark.parametrize("name", ["nothing.js", "%2e%2e%2ffiles.py", "..%2f__init__.py", "x/y"])
def test_what_is_no_file_of_the_page_is_not_found(testbed: GatewayTestbed, name: str) -> None:
    assert httpx.get(f"{testbed.url}/dashboard/{name}").status_code == 404


def test_a_page_of_another_site_may_not_call(testbed: GatewayTestbed) -> None:
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = httpx.get(f"{testbed.url}/metrics/stream", headers=headers)
        assert answer.status_code == 403


def test_the_page_can_be_switched_off() -> None:
    with gateway_testbed(dashboard=False) as made:
        for path in FILES:
            answer = httpx.get(f"{made.url}{path}")
            assert answer.status_code == 404
            assert "dashboard = false" in answer.json()["error"]["message"]
        root = httpx.get(f"{made.url}/", headers=BROWSER)
        assert root.headers["content-type"].startswith("text/plain")
        assert httpx.get(f"{made.url}/metrics/snapshot").status_code == 200


def test_files_are_open_and_what_they_show_needs_a_key() -> None:
    with gateway_testbed(keys=[hashed("sk-1")]) as made:
        assert httpx.get(f"{made.url}/", headers=BROWSER).status_code == 200
        for path in FILES:
            assert httpx.get(f"{made.url}{path}").status_code == 200
        for path in ("/metrics/snapshot", "/metrics/stream", "/state"):
            assert httpx.get(f"{made.url}{path}").status_code == 401
        with snapshots(made, Authorization="Bearer sk-1") as told:
            assert next(told)["node"] == "n1"


def test_a_snapshot_sums_what_all_http_processes_have_counted(testbed: GatewayTestbed) -> None:
    def counters() -> dict[str, Any]:
        return httpx.get(f"{testbed.url}/metrics/snapshot").json()["counters"]

    before = counters()
    asked = 12
    for _ in range(asked):  # each over a connection of its own, so that both processes have some
        assert chat(testbed, "tokens=5").status_code == 200
    assert httpx.get(f"{testbed.url}/nothing").status_code == 404

    def counted() -> bool:
        now = counters()
        return (
            sum(now["requests"].values()) - sum(before["requests"].values()) == asked
            and now["generation_tokens"] - before["generation_tokens"] == 5 * asked
            and sum(now["ttft_s"]["counts"]) - sum(before["ttft_s"]["counts"]) == asked
            and now["http_errors"] - before["http_errors"] == 1
        )

    eventually(counted, 10, f"the counts of {asked} requests: {before}, {counters()}")
    scraped = httpx.get(f"{testbed.url}/metrics").text
    total = sum(
        float(line.rpartition(" ")[2])
        for line in scraped.splitlines()
        if line.startswith("shoal_generation_tokens_total{")
    )
    eventually(lambda: counters()["generation_tokens"] == total, 5, "it is what is scraped")


def test_a_stream_tells_each_second_what_is_so_then(testbed: GatewayTestbed) -> None:
    with snapshots(testbed) as told:
        first = next(told)
        assert [one["model"] for one in first["instances"]] == [MODEL]
        began = time.monotonic()
        times = [next(told)["at_s"] for _ in range(3)]
        assert times == sorted(set(times))
        print(f"3 snapshots in {time.monotonic() - began:.2f} s")


def test_a_stream_ends_with_its_gateway_and_holds_up_nothing() -> None:
    with gateway_testbed(drain_s=5.0) as made:
        made.runner()
        eventually(lambda: ready(made), 20, "the instance is ready")
        reader = Reader(made, "tokens=20 every_ms=50")
        reader.wait_lines(2)
        with snapshots(made) as told:
            next(told)
            began = time.monotonic()
            made.gateway.terminate()
            for _ in told:
                pass
            print(f"the stream ended {time.monotonic() - began:.2f} s after SIGTERM")
            reader.wait_end(15)
        assert reader.error is None and len(reader.text.split()) == 20
        assert made.gateway.wait(15) == 0


def test_memory_is_told_once_and_each_second(testbed: GatewayTestbed) -> None:
    told = httpx.get(f"{testbed.url}/memory")
    assert told.status_code == 200
    ranks = [rank for node in told.json()["nodes"] for rank in node["ranks"]]
    assert ranks and all(rank["promised_bytes"] > 0 for rank in ranks)
    with (
        httpx.Client(timeout=20) as client,
        client.stream("GET", f"{testbed.url}/memory/live") as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        events = [next(line for line in lines if line.startswith("event: ")) for _ in range(2)]
        assert events == ["event: memory"] * 2
        said = json.loads(next(line for line in lines if line.startswith("data: "))[6:])
        assert {node["node"] for node in said["nodes"]} == {
            node["node"] for node in told.json()["nodes"]
        }
