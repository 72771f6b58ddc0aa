"""`shoal requests`, over a gateway with a log; every line of its page runs as printed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.verbs.models.requests import outcome_of, speed_of
from tests.harness.gateway_testbed import GatewayTestbed, eventually, gateway_testbed
from tests.harness.http_clients import chat, ready
from tests.harness.typed_lines import examples, typed


@pytest.fixture(scope="module")
def made() -> Iterator[GatewayTestbed]:
    with gateway_testbed() as testbed:
        testbed.runner()
        eventually(lambda: ready(testbed), 10, "the instance is ready")
        chat(testbed, "tokens=3", x_client_id="ann")
        chat(testbed, "tokens=4 refuse=queue_full", x_client_id="bob")
        chat(testbed, "tokens=5", x_client_id="ann")
        yield testbed


@pytest.mark.parametrize("line", examples("requests"))
def test_each_line_of_the_page_runs_as_printed(
    made: GatewayTestbed, tmp_path: Path, line: str
) -> None:
    done = typed(made, tmp_path, line)
    assert done.returncode == 0, done.stderr
    words = {"--errors": "bob", "--client": "ann", "--stats": "ann"}
    assert next((word for option, word in words.items() if option in line), "ann") in done.stdout
    if "--json" in line:
        assert json.loads(done.stdout)["requests"] == 3


def test_there_are_examples_of_each_way_to_ask() -> None:
    assert len(examples("requests")) >= 4
    assert all(
        any(option in line for line in examples("requests"))
        for option in ("-n", "--errors", "--stats")
    )


def test_the_latest_stands_last_and_says_how_it_ended(made: GatewayTestbed, tmp_path: Path) -> None:
    lines = typed(made, tmp_path, "shoal requests").stdout.splitlines()
    assert lines[0].split()[:3] == ["ended", "model", "client"]
    assert ["ann" in lines[1], "429 queue_full" in lines[2], "200.0" in lines[1]] == [True] * 3
    assert lines[3].split()[-3:] == ["5", "400.0", "n1"]
    (only,) = typed(made, tmp_path, "shoal requests --errors").stdout.splitlines()[1:]
    assert "bob" in only
    (last,) = typed(made, tmp_path, "shoal requests -n 1").stdout.splitlines()[1:]
    assert last.split()[-3:] == ["5", "400.0", "n1"]


def test_statistics_have_errors_apart(made: GatewayTestbed, tmp_path: Path) -> None:
    lines = typed(made, tmp_path, "shoal requests --stats").stdout.splitlines()
    assert lines[0] == (
        "3 requests in 60 min, 2 finished: 1 queue_full; waits and speeds are p50 / p95"
    )
    (ann,) = (line for line in lines if line.startswith("ann"))
    assert "200.0 / 400.0" in ann and ann.endswith("-")
    (bob,) = (line for line in lines if line.startswith("bob"))
    assert bob.endswith("1 queue_full")


def test_what_does_not_go_together_is_refused(made: GatewayTestbed, tmp_path: Path) -> None:
    done = typed(made, tmp_path, "shoal requests --stats --errors")
    assert done.returncode == 2 and "--stats" in done.stderr


ROW: dict[str, Any] = {
    "status": 200, "error": None, "finish": "stop", "completion_tokens": 5, "decode_s": 0.5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "outcome", "speed"),
    [
        ({}, "stop", "8.0"),
        ({"finish": None}, "finished", "8.0"),
        ({"error": "client_closed", "status": 499}, "499 client_closed", "8.0"),
        ({"completion_tokens": 1}, "stop", "-"),
        ({"decode_s": None}, "stop", "-"),
    ],
)
def test_an_outcome_and_a_speed_are_told_where_there_are_some(
    more: dict[str, Any], outcome: str, speed: str
) -> None:
    row = {**ROW, **more}
    assert (outcome_of(row), speed_of(row)) == (outcome, speed)
