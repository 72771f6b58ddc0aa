"""The settings of two real nodes: asked for together, changed together, and who could not named."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from conf.sections import hash_key
from tests.harness.clusters import Cluster
from tests.harness.nodes import Node, eventually

pytestmark = pytest.mark.proof

SECRET = "sk-never-to-be-told-9876543210"
PASSWORD = "planted-password"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes with two HTTP processes each; the second has secrets among its settings."""
    made = Cluster(2)
    for node, name in zip(made.nodes, ("reef", "kelp"), strict=True):
        node.env |= {"SHOAL_NODE_NAME": name, "SHOAL_HTTP_PROCESSES": "2"}
    made.nodes[1].env |= {
        "SHOAL_TOOLS__SEARCH": "searxng",
        "SHOAL_TOOLS__SEARCH_URL": f"http://127.0.0.1:9/search?key={PASSWORD}",
    }
    try:
        made.up()
        file = made.nodes[1].home / "config" / "shoal.toml"
        file.write_text(f'api_keys = ["{SECRET}"]\n' + file.read_text())
        file.chmod(0o600)
        yield made
    finally:
        made.close()


def told(node: Node) -> dict[str, Any]:
    found = node.http.get("/settings?nodes=all")
    assert found.status_code == 200, found.text
    for secret in (SECRET, hash_key(SECRET), PASSWORD):
        assert secret not in found.text
    return found.json()


def elsewhere(node: Node, key: str) -> dict[str, Any]:
    (row,) = (row for row in told(node)["settings"] if row["key"] == key)
    return {one["name"]: one["value"] for one in row["elsewhere"]}


def written(node: Node) -> dict[str, Any]:
    return tomllib.loads((node.home / "config" / "shoal.toml").read_text())


def put(node: Node, nodes: str = "all", **body: Any) -> Any:
    return node.http.put(f"/settings?nodes={nodes}", json=body, timeout=60.0)


def test_what_other_nodes_have_is_told_where_it_differs_and_no_secret(cluster: Cluster) -> None:
    asked, other = cluster.nodes
    found = told(asked)
    assert [(one["name"], one["why"]) for one in found["nodes"]] == [("kelp", "")]
    assert elsewhere(asked, "api_keys") == {"kelp": "(1 hashed)"}
    assert elsewhere(asked, "tools.search_url") == {"kelp": "http://127.0.0.1:9/search"}
    assert elsewhere(asked, "keep_alive_s") == {}
    assert elsewhere(asked, "node_name") == {}, "each node has its own"
    alone = asked.http.get("/settings").json()
    assert "nodes" not in alone and "elsewhere" not in alone["settings"][0]
    assert elsewhere(other, "api_keys") == {"reef": []}


def test_a_change_of_all_is_written_on_each_node(cluster: Cluster) -> None:
    asked, other = cluster.nodes
    done = put(asked, set={"keep_alive_s": 61, "runner.max_rows": 9})
    assert done.status_code == 200, done.text
    assert [(one["name"], one["why"]) for one in done.json()["nodes"]] == [("kelp", "")]
    for node in cluster.nodes:
        assert (written(node)["keep_alive_s"], written(node)["runner"]["max_rows"]) == (61.0, 9)
    assert other.shoal("config", "set", "keep_alive_s", "62").returncode == 0
    assert elsewhere(asked, "keep_alive_s") == {"kelp": 62.0}
    done = asked.shoal("config", "unset", "runner.max_rows", "--all", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["settings"]["runner.max_rows"]["value"] == 32
    done = asked.shoal("config", "unset", "keep_alive_s", "--all")
    assert "keep_alive_s is 300.0 on reef, kelp" in done.stdout
    assert not any("keep_alive_s" in written(node) for node in cluster.nodes)


def test_what_is_wrong_or_not_over_http_is_refused_and_written_nowhere(cluster: Cluster) -> None:
    asked = cluster.nodes[0]
    before = [written(node) for node in cluster.nodes]
    for nodes, body, status, said in (
        ("all", {"set": {"slots": 0}}, 400, "slots = 0"),
        ("all", {"set": {"http_host": "0.0.0.0"}}, 403, "only be changed on the machine"),
        ("all", {"set": {"node_name": "same"}}, 400, "every node has its own"),
        ("kelp", {"set": {"slots": 4}}, 400, "nodes: 'all'"),
    ):
        found = put(asked, nodes, **body)
        assert found.status_code == status and said in found.text, (body, found.text)
    done = asked.shoal("config", "set", "voters", "a,b,c", "--all")
    assert done.returncode != 0 and "only be changed on the machine" in done.stderr
    assert [written(node) for node in cluster.nodes] == before


def test_a_node_that_refuses_or_is_gone_is_named_and_the_others_have_it(cluster: Cluster) -> None:
    asked, other = cluster.nodes
    file = other.home / "config" / "shoal.toml"
    kept = file.read_text()
    file.write_text("slots = \n")
    done = put(asked, set={"log_level": "warning"})
    assert done.status_code == 200, done.text
    (kelp,) = done.json()["nodes"]
    assert kelp["name"] == "kelp" and "line 1" in kelp["why"]
    assert written(asked)["log_level"] == "warning" and file.read_text() == "slots = \n"
    file.write_text(kept)
    other.kill()
    eventually(lambda: told(asked)["nodes"][0]["why"], 30, "it is known to be gone")
    typed = asked.shoal("config", "set", "log_level", "info", "--all")
    assert typed.returncode == 1 and "not on kelp: node kelp" in typed.stderr
    assert "log_level is info on reef\n" in typed.stdout
    assert written(asked)["log_level"] == "info"
