"""Lines of the logs of a real node reach a collector that refuses, hangs and comes back, while the
node serves."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bus.process.logs import process_of
from bus.process.supervisor import Supervisor
from conf.settings import load_settings
from tests.harness.line_collector import LineCollector, collecting_lines
from tests.harness.nodes import Node, eventually, kill

pytestmark = pytest.mark.nodes
TOKEN = "in-no-file-4f1c"


@pytest.fixture
def collector() -> Iterator[LineCollector]:
    with collecting_lines() as made:
        yield made


@pytest.fixture
def node(collector: LineCollector) -> Iterator[Node]:
    made = Node(
        SHOAL_HTTP_PROCESSES="2",
        SHOAL_LOG__INGEST_URL=collector.url,
        SHOAL_LOG__INGEST_TOKEN_ENV="INGEST_TOKEN",
        INGEST_TOKEN=TOKEN,
    )
    try:
        yield made
    finally:
        made.close()


def logs_of(node: Node) -> Path:
    return load_settings(home=node.home).paths.logs


def written(node: Node) -> Counter[tuple[str, str]]:
    """What all files have: process and message of each whole line."""
    found: Counter[tuple[str, str]] = Counter()
    for path in sorted(logs_of(node).glob("*.log*")):
        for line in path.read_text().split("\n")[:-1]:
            if line.strip():
                found[told(line, process_of(path.name.removesuffix(".1")))] += 1
    return found


def told(line: str, process: str) -> tuple[str, str]:
    try:
        said: dict[str, Any] = json.loads(line)
        return said["process"], f"{said['time']} {said['message']}"
    except ValueError:
        return process, line.strip()


def taken(collector: LineCollector) -> Counter[tuple[str, str]]:
    """The same of what came; a line that was none of ours has the time at which it was read."""
    found: Counter[tuple[str, str]] = Counter()
    for line in collector.lines:
        said = f"{line['time']} {line['message']}"
        found[line["process"], said] += 1
        found[line["process"], line["message"]] += 1
    return found


def have_come(node: Node, collector: LineCollector) -> None:
    """Wait until each line that the files have now has come."""
    wanted = written(node)
    eventually(lambda: wanted <= taken(collector), 60, "each line has come")


def serves(node: Node) -> None:
    answer = node.chat("Count to 3.", max_tokens=3)
    assert answer.status_code == 200, answer.text


@pytest.mark.proof
def test_each_line_comes_whatever_the_collector_does_and_the_node_serves(
    node: Node, collector: LineCollector
) -> None:
    collector.refuses = lambda _: 503
    node.up()
    eventually(lambda: collector.asked >= 2, 60, "it is asked, and asked again")
    serves(node)
    assert not collector.lines
    collector.refuses = lambda _: 0
    have_come(node, collector)
    assert {one["node"] for one in collector.lines} == {node.node_id()}
    assert {"bus", "master", "worker", "telemetry", "supervisord"} <= {
        one["process"] for one in collector.lines
    }
    assert all(head["authorization"] == f"Bearer {TOKEN}" for head in collector.heads)

    collector.answers.clear()
    asked = collector.asked
    serves(node)
    kill(node.pid("telemetry"))  # which logs its next start
    eventually(lambda: collector.asked > asked, 60, "a request hangs")
    logs = logs_of(node)
    (logs / "gateway.log").rename(logs / "gateway.log.1")
    pid = Supervisor(load_settings(home=node.home).endpoints.supervisor).pid()
    os.kill(pid, signal.SIGUSR2)  # it opens its files anew
    eventually((logs / "gateway.log").exists, 30, "a new file has begun")
    node.http.post("/api/copy", json={"source": "shoal-tiny", "destination": "helper"})
    eventually(lambda: (logs / "gateway.log").stat().st_size, 30, "the gateway logs there")
    serves(node)
    collector.answers.set()
    have_come(node, collector)

    counted = httpx.get(node.url + "/metrics").text
    sent, dropped = (
        float(line.split()[-1])
        for outcome in ("sent", "dropped")
        for line in counted.splitlines()
        if line.startswith(f'shoal_log_lines_total{{outcome="{outcome}"}}')
    )
    assert sent > 10 and dropped == 0
    for path in node.home.rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes(), path
    for process in node.all_processes():
        assert TOKEN not in " ".join(process.cmdline())


@pytest.mark.proof
def test_a_token_that_is_not_there_is_said_and_nothing_goes(
    node: Node, collector: LineCollector
) -> None:
    del node.env["INGEST_TOKEN"]
    node.up()
    said = [line["message"] for line in node.log_lines("telemetry") if line["level"] == "error"]
    assert len(said) == 1 and "INGEST_TOKEN, which holds no token" in said[0]
    serves(node)
    assert not collector.asked and "shoal_log_lines_total{" not in node.http.get("/metrics").text
