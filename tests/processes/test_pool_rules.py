"""Who is in memory, and who has to wait for it: what the rules before the pool did wrong, each on
real nodes (`python -m tests.harness.against` runs the same against those rules).

Models are copies of the bundled one: some 307 MB of memory each, and `LONG` takes nearly three
times as much, for its context is longer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest

from tests.harness.closed_loops import Loop, ask, held, loads, looping, tiny_models
from tests.harness.clusters import Cluster
from tests.harness.nodes import ROOT, TREE, Node, Stream, eventually, running_node

pytestmark = [pytest.mark.proof, pytest.mark.nodes, pytest.mark.slow, pytest.mark.timeout(400)]

TURN_S = 6.0
SHORT_TURNS = (
    {"SHOAL_POOL__TURN_S": f"{TURN_S:g}", "SHOAL_POOL__TURN_LOADS": "0"} if TREE == ROOT else {}
)
"""What older trees do not know: they have no turns."""
ROOM_BYTES = 930_000_000
"""What a node gives: three models, or `LONG` alone."""
OF_THREE = {
    "SHOAL_MEMORY_BYTES": str(int(ROOM_BYTES / 0.75)),
    "SHOAL_RUNNER__MAX_ROWS": "1",
    "SHOAL_RUNNER__PREFIX_CACHE_BYTES": "0",
}
LONG, LONG_TOKENS = "long", 65_536
SMALL = ("first", "second", "third", "fourth", "fifth", "sixth")
PATIENCE_S = 40.0
"""Far more than a turn and a load take; the rules before let some wait for 45 s, and for ever."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = tmp_path_factory.mktemp("models")
    tiny_models(made, SMALL)
    return tiny_models(made, (LONG,), LONG_TOKENS)


@pytest.fixture(scope="module")
def shared(folder: str) -> Iterator[Node]:
    """Start a node with memory for one model at a time."""
    with running_node(
        SHOAL_MODEL_FOLDERS=folder,
        SHOAL_SLOTS="1",
        SHOAL_PRELOAD="",
        SHOAL_HTTP_PROCESSES="1",
        **SHORT_TURNS,
    ) as made:
        yield made


@pytest.fixture
def node(shared: Node) -> Node:
    """The node, with nothing in memory."""
    clear(shared)
    return shared


@contextmanager
def two_nodes(folder: str, **settings: str) -> Iterator[Cluster]:
    """Two nodes of one cluster, the one with the smaller id first."""
    pair = Cluster(2, SHOAL_MODEL_FOLDERS=folder, **SHORT_TURNS)
    for one in pair.nodes:
        one.env |= settings
    try:
        pair.up()
        pair.nodes.sort(key=lambda one: one.node_id())
        yield pair
    finally:
        pair.close()


class Leaving(threading.Thread):
    """Looks which copies make way for others, as long as it is not `over`; each does for some
    tenths of a second at least. `gone` are their ids."""

    def __init__(self, node: Node) -> None:
        super().__init__(daemon=True)
        self.node, self.over = node, threading.Event()
        self.gone: set[str] = set()

    def run(self) -> None:
        with httpx.Client(base_url=self.node.url, timeout=10.0) as http:
            while not self.over.wait(0.03):
                for name, one in http.get("/state").json()["state"]["instances"].items():
                    if one["status"] == "draining" and one["why"].startswith("makes way"):
                        self.gone.add(name)


def clear(node: Node) -> None:
    """Have nothing in memory."""

    def empty() -> bool:
        for name in loads(node):
            node.http.delete(f"/instance/{name}?drain_s=1")
        return not loads(node)

    eventually(empty, 60, "nothing is in memory")


def answer(node: Node, model: str, seconds: float = PATIENCE_S, **fields: Any) -> httpx.Response:
    """Ask; fails where no answer comes in that time."""
    try:
        return ask(node, model, seconds, **fields)
    except httpx.TimeoutException:
        pytest.fail(f"{model} has no answer after {seconds:g} s")


@contextmanager
def kept_busy(node: Node, model: str, **fields: Any) -> Iterator[list[Loop]]:
    """Have two clients ask for a model without end, so that it is never idle."""
    with (
        looping(node, model, max_tokens=60, **fields) as one,
        looping(node, model, max_tokens=60, **fields) as other,
    ):
        yield [one, other]


# --- turns ------------------------------------------------------------------------------------


@pytest.mark.parametrize("priority", ["normal", "urgent"])
def test_pool_rules_a_busy_model_makes_way_for_one_that_waits(node: Node, priority: str) -> None:
    with kept_busy(node, "first"):
        began = time.monotonic()
        found = answer(node, "second", x_priority=priority)
        print(f"{priority}: answered after {time.monotonic() - began:.1f} s")
        assert found.status_code == 200, found.text


def test_pool_rules_an_urgent_request_finds_a_place_beside_forty_batch_ones(node: Node) -> None:
    assert answer(node, "first").status_code == 200
    batch: list[Stream] = [
        node.stream("hi", model="first", max_tokens=600, ignore_eos=True, x_priority="batch")
        for _ in range(40)
    ]
    eventually(lambda: sum(len(one.at) > 0 for one in batch) >= 30, 60, "the rows are taken")
    urgent = answer(node, "first", x_priority="urgent", max_tokens=4)
    for one in node.http.get("/queue").json()["requests"]:
        node.http.post(f"/v1/cancel/{one['request']}")
    for stream in batch:
        stream.wait(90)
    assert urgent.status_code == 200, urgent.text


def test_pool_rules_what_was_loaded_urgently_holds_nothing_off_when_it_is_idle(node: Node) -> None:
    assert answer(node, "first", x_priority="urgent").status_code == 200
    began = time.monotonic()
    found = answer(node, "second")
    print(f"answered after {time.monotonic() - began:.1f} s")
    assert found.status_code == 200, found.text


def test_pool_rules_two_models_by_turns_keep_their_turns(node: Node) -> None:
    """Each has clients that ask as soon as they were answered: what is loaded answers for a turn,
    and then the other is."""
    ready: dict[str, tuple[float, float]] = {}
    with kept_busy(node, "first") as ones, kept_busy(node, "second") as others:
        known, clients = set(loads(node)), [*ones, *others]
        before = sum(len(one.answers) for one in clients)
        end = time.monotonic() + 6 * TURN_S
        while time.monotonic() < end:
            now = time.monotonic()
            found = node.state()["instances"]
            serving = {name for name, copy in found.items() if copy["status"] == "ready"} - known
            ready |= {name: (ready.get(name, (now, now))[0], now) for name in serving}
            time.sleep(0.05)
        count = sum(len(one.answers) for one in clients) - before
    stays = [last - first for name, (first, last) in ready.items() if name not in serving]
    print(f"{count} answers; copies stayed for {', '.join(f'{one:.1f}' for one in stays)} s")
    assert stays, "none made way for the other"
    # one whose clients pause on a machine with other work is idle, and makes way at once
    usual = sorted(stays)[len(stays) // 2]
    assert usual > TURN_S - 1.0, f"they stayed for {stays} s"


def test_pool_rules_a_pin_on_a_loaded_model_keeps_it_in_memory(node: Node) -> None:
    assert answer(node, "first").status_code == 200
    asked = node.http.post("/place_instance", json={"model": "first", "pinned": True})
    assert asked.status_code == 200, asked.text
    try:
        refused = answer(node, "second")
        assert set(held(node)) == {"first"}, "it was pinned, and was unloaded"
        assert refused.status_code in (503, 507) and "first" in refused.text, refused.text
    finally:
        with suppress(httpx.HTTPError):
            node.http.post("/unpin", json={"model": "first"})


# --- waits ------------------------------------------------------------------------------------


def test_pool_rules_a_timeout_covers_the_wait_for_memory(node: Node) -> None:
    with kept_busy(node, "first", x_priority="high"):
        began = time.monotonic()
        found = answer(node, "second", seconds=20.0, x_timeout_s=2.0, x_priority="low")
        assert found.status_code == 504, found.text
        assert "x_timeout_s" in found.text
        print(f"it ended after {time.monotonic() - began:.1f} s")


def test_pool_rules_who_waits_is_told_for_what(node: Node) -> None:
    with kept_busy(node, "first"):
        waits = node.stream("hi", model="second", max_tokens=4)
        with suppress(AssertionError):
            eventually(lambda: any("first" in one for one in waits.comments), TURN_S, "it is told")
        told = list(waits.comments)
        for one in node.http.get("/queue").json()["requests"]:
            if one["model"] == "second":
                node.http.post(f"/v1/cancel/{one['request']}")
    waits.wait(90)
    assert any("first" in one for one in told), f"it was told {told}"


# --- places -----------------------------------------------------------------------------------


def test_pool_rules_the_node_is_chosen_with_who_leaves(folder: str) -> None:
    """One node's model is in use, the other's is idle: that one makes way."""
    with two_nodes(folder, SHOAL_SLOTS="1") as pair:
        for node, model in zip(pair.nodes, ("first", "second"), strict=True):
            others = [one.node_id() for one in pair.nodes if one is not node]
            pair.place(model, excluded_nodes=others)
        with kept_busy(pair.nodes[0], "first", x_priority="high"):
            found = answer(pair.nodes[1], "third")
            assert found.status_code == 200, found.text
            assert set(held(pair.nodes[1])) == {"first", "third"}


def test_pool_rules_an_idle_copy_leaves_before_a_model_is_split(folder: str) -> None:
    with two_nodes(folder, **OF_THREE) as pair:
        for node, model in zip(pair.nodes, ("first", "second"), strict=True):
            others = [one.node_id() for one in pair.nodes if one is not node]
            pair.place(model, excluded_nodes=others)
        eventually(lambda: _is_idle(pair.nodes[0], ("first", "second")), 60, "both are idle")
        placed = pair.place(LONG, context_tokens=LONG_TOKENS)
        assert len(placed["shards"]) == 1, f"it is split: {placed['shards']}"


def _is_idle(node: Node, models: tuple[str, ...]) -> bool:
    runners = node.http.get("/state").json()["telemetry"]["runners"]
    idle = {one["model"] for one in runners if one["running"] == 0 and one["last_used_ago_s"] > 2}
    return idle >= set(models)


def test_pool_rules_what_leaves_for_one_model_is_given_to_no_other(folder: str) -> None:
    """Three small models leave for a large one, while three more small ones are asked for."""
    with running_node(
        SHOAL_MODEL_FOLDERS=folder,
        SHOAL_PRELOAD="",
        SHOAL_HTTP_PROCESSES="1",
        **OF_THREE,
        **SHORT_TURNS,
    ) as node:
        for model in SMALL[:3]:
            assert answer(node, model).status_code == 200
        eventually(lambda: _is_idle(node, SMALL[:3]), 60, "all are idle")
        assert set(held(node)) == set(SMALL[:3])
        leaving = Leaving(node)
        leaving.start()
        with ThreadPoolExecutor(4) as clients:
            large = {"model": LONG, "context_tokens": LONG_TOKENS}
            wish = clients.submit(node.http.post, "/place_instance", json=large, timeout=90)
            eventually(lambda: leaving.gone, 60, "the first leaves")
            small = [clients.submit(ask, node, model) for model in SMALL[3:]]
            eventually(lambda: LONG in held(node), 90, "it is placed")
            left = len(leaving.gone)
            leaving.over.set()
            leaving.join(10)
            assert [one.result().status_code for one in small] == [200] * 3
            assert wish.result().status_code == 200, wish.result().text
        print(f"{left} copies made way for the large model")
        assert left == 3, f"{left} copies made way, where three are in the way"
