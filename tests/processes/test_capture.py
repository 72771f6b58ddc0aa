"""Captures of two nodes: what was killed, frozen or is not there is told in them, no secret is."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bus.links.cluster_key import ClusterKeys
from bus.links.keyring import new_key, write_keys
from conf.settings import load_settings
from tests.harness.clusters import Cluster
from tests.harness.nodes import Node, eventually, kill

pytestmark = [pytest.mark.proof, pytest.mark.nodes, pytest.mark.slow, pytest.mark.timeout(600)]

API_KEY = "sk-planted-api-key-5d1c9e"
PROVIDER_KEY = "sk-planted-provider-key-77b0a4"
HEADER = "planted-header-9a4411f0"
PROMPT = "planted-prompt-c3d2e1f0 and its cat"
CAPTURE_S = 180.0


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    key_file = tmp_path_factory.mktemp("keys") / "cluster-key"
    write_keys(key_file, ClusterKeys(new_key()), replace=False)
    cluster = Cluster(
        2,
        SHOAL_CLUSTER_KEY_FILE=str(key_file),
        SHOAL_API_KEYS=API_KEY,
        SHOAL_API_KEY=API_KEY,
        OPENAI_API_KEY=PROVIDER_KEY,
    )
    try:
        for count, node in enumerate(cluster.nodes):
            node.headers = {"Authorization": f"Bearer {API_KEY}", "X-Planted": HEADER}
            node.http.headers.update(node.headers)
            # several HTTP processes share a node's captures
            node.env |= {"SHOAL_HTTP_PROCESSES": "2", "SHOAL_NODE_NAME": f"box{count}"}
        cluster.up()
        yield cluster
    finally:
        cluster.close()


def captured(node: Node, *names: str) -> dict[str, bytes]:
    """The files of a capture that a node was asked for."""
    asked = {"nodes": list(names)}
    answer = node.http.post("/v1/diagnostics/capture", json=asked, timeout=CAPTURE_S)
    assert answer.status_code == 200, answer.text
    with tarfile.open(fileobj=io.BytesIO(answer.content), mode="r:gz") as tar:
        files = {one.name.removeprefix("shoal-capture/"): tar.extractfile(one) for one in tar}
        return {name: file.read() for name, file in files.items() if file is not None}


def told_of(files: dict[str, bytes], name: str) -> dict[str, Any]:
    """What the manifest says of a node."""
    nodes = json.loads(files["manifest.json"])["nodes"]
    return next(one for one in nodes if one["name"] == name)


def stacks_of(files: dict[str, bytes], box: str) -> set[str]:
    """The processes of a node whose stacks are in the capture."""
    begin = f"{box}/stacks/"
    return {name.removeprefix(begin)[:-4] for name in files if name.startswith(begin)}


def forms_of(secret: str) -> list[bytes]:
    """A secret plain, and the middle of it in base64 at each place where it may begin."""
    plain = secret.encode()
    found = [plain]
    for skipped in range(3):
        part = plain[skipped : skipped + (len(plain) - skipped) // 3 * 3]
        found += [base64.b64encode(part), base64.urlsafe_b64encode(part)]
    return found


def runs_at(cluster: Cluster) -> tuple[Node, str, int]:
    """The node with a runner of the model, the runner's name and pid."""
    node_id = cluster.place()["shards"][0]["node"]
    node = cluster.by_id(node_id)
    name, pid = node.runner()
    return node, name, pid


def key_text(cluster: Cluster) -> str:
    return Path(cluster.nodes[0].env["SHOAL_CLUSTER_KEY_FILE"]).read_text()


def box_of(cluster: Cluster, node: Node) -> str:
    return f"box{cluster.nodes.index(node)}"


def test_a_runner_that_was_killed_has_its_last_phases_in_a_capture_without_secrets(
    two: Cluster,
) -> None:
    where, name, pid = runs_at(two)
    other = next(node for node in two.nodes if node is not where)
    assert where.chat(PROMPT, max_tokens=3).status_code == 200
    log = load_settings(home=where.home).paths.logs / "master.log"
    encoded = base64.b64encode(f"Bearer {PROVIDER_KEY}".encode()).decode()
    with log.open("a") as file:
        file.write(f"a library says {PROVIDER_KEY}, {encoded}\n")
    kill(pid, signal.SIGKILL)

    def ended() -> bool:
        nodes = other.http.get("/v1/diagnostics/cluster").json()["nodes"]
        reached = [one["diagnostics"] for one in nodes if one["reached"]]
        return any(one["pid"] == pid for each in reached for one in each["ended"])

    eventually(ended, 120, "the worker tells of the runner that was killed")
    files = captured(other)
    document = json.loads(files[f"{box_of(two, where)}/node.json"])
    report = next(one for one in document["ended"] if one["pid"] == pid)
    phases = {entry["phase"] for entry in report["recorder"]}
    assert (report["process"], report["exit_code"]) == (name, -1)
    assert {"load_model", "warmup", "completion"} <= phases, phases
    memory = report["recorder"][-1]["memory"]
    assert min(memory[f"{name}_bytes"] for name in ("active", "peak", "limit")) > 0, memory

    for box in ("box0", "box1"):
        told = told_of(files, box)
        assert told["reached"] and told["stopped"] == []
        assert {f"{box}/{one}" for one in ("config.json", "versions.json", "logs/bus.log")} <= (
            set(files)
        )
        missing = {one["what"] for one in told["missing"] if one["what"].startswith("stacks/")}
        there = {f"stacks/{one}.txt" for one in stacks_of(files, box)}
        assert {f"stacks/{one}.txt" for one in ("bus", "gateway-1", "gateway-2")} <= there | missing
    whole = b"\0".join(files.values())
    log_lines = files[f"{box_of(two, where)}/logs/master.log"].splitlines()
    said = [one for one in log_lines if one.startswith(b"a library says")]
    assert said and said[0].startswith(b"a library says [removed], "), said
    cluster_key = [one for one in key_text(two).split() if len(one) > 30]
    assert cluster_key
    for secret in (API_KEY, PROVIDER_KEY, HEADER, PROMPT, *cluster_key):
        for form in forms_of(secret):
            assert form not in whole, secret
    kept = load_settings(home=where.home).paths.runtime / "captures"
    assert list(kept.glob("*.capture")) == []


def test_a_frozen_process_is_named_and_keeps_nothing_else_out(two: Cluster) -> None:
    first, second = two.nodes
    frozen = {"worker": second.pid("worker"), "telemetry": second.pid("telemetry")}
    can = second.http.get("/v1/diagnostics/node").json()["diagnosis"]
    for process, pid in frozen.items():
        os.kill(pid, signal.SIGSTOP)
        try:
            files = captured(first, "box1")
        finally:
            os.kill(pid, signal.SIGCONT)
        (told,) = json.loads(files["manifest.json"])["nodes"]
        assert told["stopped"] == [f"{process} (pid {pid})"]
        assert "box1/logs/worker.log" in files and "box1/node.json" in files
        stacks = stacks_of(files, "box1")
        if process == "telemetry":
            silent = [one for one in told["missing"] if "telemetry" in one["why"]]
            assert silent and stacks == set()
        elif can["py_spy"]:
            assert {"worker", "bus"} <= stacks


def test_a_node_that_is_not_there_is_named_with_the_reason(two: Cluster) -> None:
    first, second = two.nodes
    whole = first.http.get("/v1/diagnostics/cluster").json()["nodes"]
    assert [one["reached"] for one in whole] == [True, True]
    second.kill()

    def named() -> httpx.Response | None:
        answer = first.http.get("/v1/diagnostics/cluster")
        assert answer.status_code == 200, answer.text
        found = {one["name"]: one for one in answer.json()["nodes"]}
        return answer if found["box1"].get("why") == "down" else None

    answer = eventually(named, 60, "the node that was killed is named as down")
    assert answer.headers["x-shoal-missing-nodes"] == "box1 (down)"
    found = {one["name"]: one for one in answer.json()["nodes"]}
    assert "diagnostics" in found["box0"] and "box1 is not connected" in found["box1"]["message"]

    def missing() -> dict[str, Any] | None:
        files = captured(first)
        told = told_of(files, "box1")
        assert told_of(files, "box0")["reached"] and not told["reached"]
        return told if told["why"] == "down" else None

    told = eventually(missing, 120, "the capture names it as down")
    assert "box1 is not connected" in told["message"]
