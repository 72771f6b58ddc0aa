"""Clients on a real node with two HTTP processes: a profile is taken while it runs, a
client that is to rest is refused by all of it, and counts survive a restart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from conf.settings import load_settings
from tests.harness.nodes import MODEL, Node, answered, everywhere
from tests.harness.shared_nodes import unload_all

pytestmark = pytest.mark.nodes
FILE = """
[clients.calm]
cooldown_s = 3000

[clients.short]
keep_alive_most_s = 45
model = "shoal-tiny"
"""


@pytest.fixture(scope="module")
def node(shared_empty: Node) -> Iterator[Node]:
    yield shared_empty
    load_settings(home=shared_empty.home).paths.clients_file.unlink()
    unload_all(shared_empty)


def ask(node: Node, client: str, **more: Any) -> httpx.Response:
    turns = [{"role": "user", "content": "hello"}]
    asked = {"messages": turns, "max_tokens": 5, "x_client_id": client, **more}
    return httpx.post(f"{node.url}/v1/chat/completions", json=asked, timeout=120)


def clients(node: Node) -> dict[str, dict[str, Any]]:
    answer = httpx.get(f"{node.url}/clients", timeout=30)
    return {one["client"]: one for one in answer.json().get("clients", [])}


def profiled(node: Node) -> None:
    """Write the file, and wait until each HTTP process has taken it."""
    load_settings(home=node.home).paths.clients_file.write_text(FILE)
    everywhere(lambda: clients(node).get("calm"), bool, "the profiles are known")
    # the file may be there before the bundled model is
    answered(lambda: ask(node, "early", model=MODEL), lambda one: one.is_success, "it serves")


def test_a_client_rests_at_every_process_and_its_counts_survive_a_restart(node: Node) -> None:
    assert ask(node, "ann").status_code == 400, "it names no model, and no profile does"
    profiled(node)
    assert ask(node, "calm", model=MODEL).status_code == 200
    for _ in range(6):
        refused = ask(node, "calm", model=MODEL)
        assert refused.status_code == 429, refused.text
        assert refused.json()["error"]["code"] == "client_cooldown"
        assert 2900 < int(refused.headers["retry-after"]) <= 3000
    assert ask(node, "ann", model=MODEL).status_code == 200
    told = json.loads(node.shoal("clients", "--json").stdout)["clients"]
    calm = next(one for one in told if one["client"] == "calm")
    assert (calm["requests"], calm["refused"], calm["completion_tokens"]) == (1, 6, 5)
    node.down()
    node.up()
    again = answered(
        lambda: clients(node).get("calm"), lambda one: one and one["requests"], "they are back"
    )
    assert (again["requests"], again["refused"], again["completion_tokens"]) == (1, 6, 5)
    assert again["first_seen_at_s"] == calm["first_seen_at_s"]


def test_a_wish_keeps_a_model_no_longer_than_its_client_may(node: Node) -> None:
    profiled(node)
    answer = ask(node, "short", x_stay_warm=4000)
    assert answer.status_code == 200 and answer.json()["model"] == MODEL, answer.text

    def kept() -> set[float]:
        found = node.state()["instances"].values()
        return {one["keep_alive_s"] for one in found if one["model"] == MODEL}

    answered(kept, lambda found: found == {45.0}, "the wish is told, and no more", 60)
