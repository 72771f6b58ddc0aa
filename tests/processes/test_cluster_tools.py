"""What tells of a cluster and its links: `cluster-info`, `hostfile`, `rdma-test`, `verify`."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.cli.node.test_likeness import cluster
from tests.harness.clusters import Cluster
from tests.harness.node_server import NODE, instance, serving
from tests.harness.nodes import eventually, shoal

SMALL_MB = "260"
"""Room for arrays of 256 KB and none of 4 MB."""
PROBES = 6
PROBE_S = 2.0
COMMAND_S = 7.0
"""What a command may take beside what it waits for, on a busy machine."""


# --- cluster-info ---


def _info(body: dict[str, Any]) -> dict[str, Any]:
    with serving(lambda *_: (200, body)) as url:
        return json.loads(shoal("cluster-info", "--json", "--url", url).stdout)


@pytest.mark.parametrize(
    "differs", [{"python_version": "3.13.9"}, {"mlx_version": "unknown"}, {"chip": ""}]
)
def test_nodes_are_aligned_only_where_their_fingerprints_are_the_same(
    differs: dict[str, str],
) -> None:
    found = _info(cluster(**differs))
    prints = {node["fingerprint"] for node in found["nodes"]}
    assert (found["verdict"] == "aligned") == (len(prints) == 1), (found["verdict"], prints)


def test_a_failed_collective_test_is_no_model_that_is_served() -> None:
    body = cluster()
    order = {
        "mode": "quick", "sizes": [1024], "latency_warm_ups": 0, "latency_rounds": 1,
        "warm_ups": 0, "rounds": 1, "cap_bytes": 4096, "deadline_s": 9.0,
    }  # fmt: skip
    test = instance("collective-test", "failed").model_dump(mode="json") | {"test": order}
    body["state"]["instances"] = {test["instance"]: test}
    (asked,) = [node for node in _info(body)["nodes"] if node["node"] == NODE]
    assert asked["serves"] == []


# --- hostfile ---


def _hosts(*hosts: tuple[str, list[str], list[Any]]) -> str:
    return json.dumps([{"ssh": ssh, "ips": ips, "rdma": rdma} for ssh, ips, rdma in hosts])


def _checked(folder: Path, text: str, *words: str, path: str = "") -> Any:
    file = folder / "hosts.json"
    file.write_text(text)
    env = {"PATH": f"{path}:{os.environ['PATH']}"} if path else {}
    return shoal("hostfile", str(file), *words, env=env)


@pytest.mark.parametrize(
    ("hosts", "why"),
    [
        (
            _hosts(
                ("a", ["10.0.0.1"], [None, "en1", "en1"]),
                ("b", ["10.0.0.2"], ["en1", None, "en2"]),
                ("c", ["10.0.0.3"], ["en1", "en2", None]),
            ),
            "rank 0 (a) lists en1",
        ),
        (_hosts(("a", ["10.0.0.1"], []), ("b", ["10.0.0.1"], [])), "10.0.0.1"),
    ],
    ids=["one device for two peers", "one address for two ranks"],
)
def test_a_hostfile_gives_each_peer_its_device_and_each_rank_its_address(
    tmp_path: Path, hosts: str, why: str
) -> None:
    done = _checked(tmp_path, hosts)
    assert done.returncode == 1, done.stdout
    assert why in done.stderr


def test_several_devices_may_join_two_machines(tmp_path: Path) -> None:
    rows: list[Any] = [[None, ["en1", "en2"]], [["en3", "en4"], None]]
    text = _hosts(("a", ["10.0.0.1"], rows[0]), ("b", ["10.0.0.2"], rows[1]))
    done = _checked(tmp_path, text, "--emit", str(tmp_path / "out"), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["cables"] == 2
    assert found["pairs"] == [["a", "en1", "b", "en3"], ["a", "en2", "b", "en4"]]
    assert json.loads(Path(found["written"][0]).read_text()) == rows


def test_a_machine_under_two_names_is_one(tmp_path: Path) -> None:
    done = _checked(tmp_path, _hosts(("me@a", ["10.0.0.1"], []), ("A", ["10.0.0.2"], [])))
    assert done.returncode == 1, done.stdout
    assert "me@a" in done.stderr and "the same machine" in done.stderr


def test_machines_are_probed_side_by_side(tmp_path: Path) -> None:
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f"#!/bin/sh\nsleep {PROBE_S:g}\n")
    ssh.chmod(stat.S_IRWXU)
    hosts = [(f"m{number}", [f"10.0.0.{number + 1}"], []) for number in range(PROBES)]
    began = time.monotonic()
    done = _checked(tmp_path, _hosts(*hosts), "--probe", path=str(ssh.parent))
    seconds = time.monotonic() - began
    assert done.returncode == 0, done.stdout + done.stderr
    assert seconds < PROBE_S + COMMAND_S, f"{PROBES} machines took {seconds:.1f} s"


# --- rdma-test and verify ---


@pytest.fixture(scope="module")
def pair(shared_pair: Cluster) -> Iterator[Cluster]:
    """Two nodes that are joined."""
    yield shared_pair
    shared_pair.clear()


def asked(pair: Cluster, number: int, *words: str) -> Any:
    """Ask a node once the ranks of an earlier test are gone: there is one test at a time."""
    node = pair.nodes[number]
    eventually(lambda: not node.state()["instances"], 30, "an earlier test has left")
    return node.shoal(*words)


@pytest.mark.proof
def test_arrays_that_are_too_small_give_no_verdict_on_a_link(pair: Cluster) -> None:
    words = ("rdma-test", "--quick", "--memory", SMALL_MB)
    done = asked(pair, 0, *words, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)["report"]
    assert [one["skipped"] for one in report["sizes"]] == [False, False, True, True]
    assert report["bandwidth_verdict"] is None, "larger arrays were skipped"
    again = asked(pair, 0, *words)
    assert again.returncode == 0, again.stdout + again.stderr
    said = again.stdout
    assert "too small to judge" in said and "2 larger sizes were skipped" in said


def test_one_verb_verifies_the_nodes_and_what_joins_them(pair: Cluster) -> None:
    done = asked(pair, 1, "verify", "--quick", "--memory", "320", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["well"] and found["cluster"]["verdict"] == "aligned"
    assert found["collectives"]["passed"]
    ranks = {one["node"] for one in found["collectives"]["report"]["ranks"]}
    assert ranks == {node.node_id() for node in pair.nodes}


def test_an_error_of_a_test_has_a_word(pair: Cluster) -> None:
    alone = pair.nodes[0].node_id()
    done = asked(pair, 0, "rdma-test", "--nodes", alone, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"].get("reason") == "failed", done.stdout


def test_how_long_ranks_may_take_to_connect_is_a_setting(tmp_path: Path) -> None:
    done = shoal("config", "show", "--json", "--home", str(tmp_path))
    assert '"runner.group_connect_s"' in done.stdout, "its name is not among the settings"
