"""A model made of another is known on every node, and after a restart of all of them; so is a name
that `shoal cp` made."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.harness.clusters import running_cluster
from tests.harness.nodes import MODEL, Node, answered, eventually, everywhere


def names(node: Node) -> set[str]:
    return {one["id"] for one in node.http.get("/v1/models").json()["data"]}


@pytest.mark.proof
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


def ask(node: Node, path: str, **body: Any) -> httpx.Response:
    """Ask the helper, over a connection of its own."""
    messages = [{"role": "user", "content": "Count to 30."}]
    asked = {"model": "helper", "messages": messages, "stream": False, **body}
    return httpx.post(node.url + path, json=asked, timeout=90)


def test_a_name_of_a_real_node_answers_in_two_dialects_until_it_is_taken_away(
    node: Node,
) -> None:
    made = node.shoal("cp", MODEL, "helper")
    assert made.returncode == 0, made.stderr
    everywhere(
        lambda: httpx.get(node.url + "/v1/models").json()["data"],
        lambda found: "helper" in {one["id"] for one in found},
        "each HTTP process knows the name",
    )
    chat = ask(node, "/v1/chat/completions", max_tokens=3).json()
    assert (chat["model"], chat["usage"]["completion_tokens"]) == ("helper", 3)
    ollama = ask(node, "/api/chat", options={"num_predict": 3}).json()
    assert (ollama["model"], ollama["eval_count"]) == ("helper", 3)
    assert f"an alias of {MODEL}" in node.shoal("ls").stdout
    placed = node.shoal("place", "helper", "--json")
    assert placed.returncode == 0 and json.loads(placed.stdout)["model"] == MODEL
    gone = node.shoal("rm", "helper")
    assert gone.returncode == 0 and f"{MODEL} stays" in gone.stdout
    everywhere(
        lambda: ask(node, "/api/chat", options={"num_predict": 1}).status_code,
        lambda status: status == 404,
        "the name is no model's",
    )
    answered(
        lambda: node.shoal("ls").stdout,
        lambda said: "helper" not in said and MODEL in said,
        "the model is listed, and the name is not",
    )
