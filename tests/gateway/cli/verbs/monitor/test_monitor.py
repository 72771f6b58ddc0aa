"""`shoal monitor` as it is typed, against a server that answers as a gateway does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.app import app
from gateway.cli.node.node_api import NodeApi
from gateway.cli.verbs.monitor.verb import Watcher
from tests.gateway.cli.verbs.monitor.samples import cluster, copy, node, pool, queued
from tests.harness.node_server import serving


class Gateway:
    """What a gateway tells, and whether it does."""

    def __init__(self) -> None:
        self.cluster: dict[str, Any] = cluster([node("reef")], [copy("m")])
        self.pool: dict[str, Any] = pool(queue=[queued("m", 5, 2)])
        self.is_away = False

    def answer(self, method: str, path: str, body: dict[str, Any]) -> Any:
        assert method == "GET"
        if self.is_away:
            return 503, {"error": {"message": "it is starting"}}
        return 200, {"/metrics/snapshot": self.cluster, "/pool": self.pool}[path]


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


@pytest.fixture
def url(gateway: Gateway) -> Iterator[str]:
    with serving(gateway.answer) as found:
        yield found


def monitor(url: str, home: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["monitor", "--home", str(home), "--url", url, *words])


def test_once_is_one_line(url: str, tmp_path: Path) -> None:
    found = monitor(url, tmp_path, "--once")
    assert found.exit_code == 0, found.output
    (line,) = found.stdout.splitlines()
    at, _, said = line.partition("  ")
    assert at.endswith("Z") and said.startswith("1 node ok; 1 instance, 1 ready; 3 running")
    assert "m 2 at 5" in said


def test_in_json_it_is_an_object_in_one_line(url: str, tmp_path: Path, gateway: Gateway) -> None:
    found = monitor(url, tmp_path, "--once", "--json")
    (line,) = found.stdout.splitlines()
    told = json.loads(line)
    assert told["cluster"] == gateway.cluster and told["pool"] == gateway.pool
    assert told["remark"] == "" and told["last_minute"]["requests"] == {}


def test_what_another_version_tells_is_refused_with_the_field(
    url: str, tmp_path: Path, gateway: Gateway
) -> None:
    del gateway.pool["queue"]
    found = monitor(url, tmp_path, "--once")
    assert found.exit_code == 1 and "'queue'" in found.output and "next:" in found.output


def test_where_no_node_answers_it_ends(tmp_path: Path, url: str, gateway: Gateway) -> None:
    gateway.is_away = True
    assert monitor(url, tmp_path).exit_code == 5
    assert monitor("http://127.0.0.1:9", tmp_path).exit_code == 3


@pytest.mark.parametrize("interval", ["0", "-1", "0.01", "1e9", "soon"])
def test_an_interval_that_is_none_is_refused(url: str, tmp_path: Path, interval: str) -> None:
    found = monitor(url, tmp_path, "--once", "--interval", interval)
    assert found.exit_code == 2 and "--interval" in found.output


def test_a_node_that_goes_away_is_waited_for_and_both_is_said(url: str, gateway: Gateway) -> None:
    watcher = Watcher(NodeApi(url))
    first = watcher.look()
    assert first.remark == ""
    gateway.is_away = True
    lost = watcher.look_again()
    assert lost.is_lost and lost.cluster == first.cluster
    assert lost.remark.startswith("no connection for 0 s, retrying: it is starting")
    gateway.is_away = False
    back = watcher.look_again()
    assert not back.is_lost and back.remark.startswith("the node answers again after ")
