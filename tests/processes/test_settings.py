"""The settings of a real node over HTTP: told, changed, and in force at once or after a restart."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from conf.sections import hash_key
from tests.harness.nodes import SERVICES, Node, answered, eventually
from tests.harness.shared_nodes import KEYS

SECRET = KEYS[0]


@pytest.fixture(scope="module")
def node(shared_keyed: Node) -> Node:
    return shared_keyed


def rows(node: Node) -> dict[str, dict[str, Any]]:
    found = node.http.get("/settings")
    assert found.status_code == 200, found.text
    assert SECRET not in found.text and hash_key(SECRET) not in found.text
    return {row["key"]: row for row in found.json()["settings"]}


def put(node: Node, **body: Any) -> Any:
    return node.http.put("/settings", json=body)


def written(node: Node) -> dict[str, Any]:
    return tomllib.loads((node.home / "config" / "shoal.toml").read_text())


def test_the_first_start_writes_a_file_that_says_every_setting_and_sets_none(node: Node) -> None:
    text = (node.home / "config" / "shoal.toml").read_text()
    assert "#keep_alive_s = 300.0\n" in text and "#max_rows = 32\n" in text
    found = rows(node)
    assert found["keep_alive_s"]["source"] == "default"
    assert found["node_name"]["source"] == "environment SHOAL_NODE_NAME"


def test_a_change_is_written_at_once_and_waits_for_a_restart(node: Node) -> None:
    done = put(node, set={"keep_alive_s": 61, "runner.max_rows": 9})
    assert done.status_code == 200, done.text
    assert (written(node)["keep_alive_s"], written(node)["runner"]["max_rows"]) == (61.0, 9)
    row = rows(node)["keep_alive_s"]
    assert (row["value"], row["running"], row["differs"]) == (61.0, 300.0, True)
    shown = node.shoal("config", "show")
    assert "keep_alive_s: the node runs with 300.0" in shown.stderr
    done = put(node, unset=["keep_alive_s", "runner.max_rows"])
    assert done.status_code == 200 and "keep_alive_s" not in written(node)
    assert not any(row["differs"] for row in rows(node).values())


def test_what_is_wrong_is_refused_by_name_and_not_written(node: Node) -> None:
    before = (node.home / "config" / "shoal.toml").read_bytes()
    for body, status, said in (
        ({"set": {"slots": 0, "keep_alive_s": 5}}, 400, "slots = 0"),
        ({"set": {"slot": 3}}, 400, "did you mean slots?"),
        ({"set": {"slots": "many"}}, 400, "must be a whole number"),
        ({"set": {"slots": None}}, 400, "slots"),
        ({}, 400, "name settings"),
        ({"set": {"slots": 3}, "unset": ["slots"]}, 400, "each once"),
        ({"set": {"http_host": "0.0.0.0"}}, 403, "only be changed on the machine"),
        ({"unset": ["api_keys"]}, 403, "only be changed on the machine"),
    ):
        found = put(node, **body)
        assert found.status_code == status and said in found.text, (body, found.text)
    assert (node.home / "config" / "shoal.toml").read_bytes() == before


def test_every_process_takes_another_log_level_while_it_runs(node: Node) -> None:
    def told(process: str) -> int:
        """Return how often a process has said that its level was changed."""
        said = [line.get("message") for line in node.log_lines(process)]
        return said.count("log level changed")

    pids = node.processes()
    before = {process: told(process) for process in SERVICES}
    assert put(node, set={"log_level": "debug"}).status_code == 200
    for process in SERVICES:
        times = 2 if process == "gateway" else 1  # it has two HTTP processes
        eventually(
            lambda process=process, times=times: told(process) >= before[process] + times,
            30,
            f"{process} logs from debug on",
        )
    assert rows(node)["log_level"]["running"] == "debug"
    node.shoal("config", "unset", "log_level")
    answered(lambda: rows(node)["log_level"], lambda row: row["running"] == "info", "it is told")
    assert node.processes() == pids, "none was restarted"
