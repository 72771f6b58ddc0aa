"""A model made of another is known on every node, and after a restart of all of them."""

from __future__ import annotations

from typing import Any

from tests.harness.clusters import running_cluster
from tests.harness.nodes import Node, eventually


def names(node: Node) -> set[str]:
    return {one["id"] for one in node.http.get("/v1/models").json()["data"]}


def test_a_derived_model_is_every_nodes_and_survives_a_restart() -> None:
    with running_cluster(2) as cluster:
        first, second = cluster.nodes
        made: dict[str, Any] = {
            "model": "brief", "from": "shoal-tiny", "stream": False,
            "parameters": {"num_predict": 3}, "system": "Be brief.",
        }  # fmt: skip
        created = first.http.post("/api/create", json=made)
        assert created.json() == {"status": "success"}
        assert "brief" in names(first)
        eventually(lambda: "brief" in names(second), 30, "the other node knows the name")
        for node in cluster.nodes:
            node.down()
        for node in cluster.nodes:
            node.up()
        eventually(cluster.formed, 60, "one cluster again")
        for node in cluster.nodes:
            eventually(lambda node=node: "brief" in names(node), 60, "the name is known again")
        asked = {"model": "brief", "messages": [{"role": "user", "content": "Count to 30."}]}
        answer = second.http.post("/v1/chat/completions", json=asked, timeout=90).json()
        assert (answer["model"], answer["usage"]["completion_tokens"]) == ("brief", 3)
        shown = second.http.post("/api/show", json={"model": "brief"}).json()
        assert shown["system"] == "Be brief."
        gone = second.http.request("DELETE", "/api/delete", json={"model": "brief"})
        assert gone.status_code == 200, gone.text
        eventually(lambda: "brief" not in names(first), 30, "the name is gone everywhere")
