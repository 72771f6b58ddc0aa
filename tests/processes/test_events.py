"""The log's events and the last hour's measures over HTTP, on a real node: in their order, and what
is left of them when its gateway was killed."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.harness.nodes import MODEL, Node, eventually, kill
from tests.harness.shared_nodes import unload_all

LOADED = ["instance_placed", "runner_ready"]
UNLOADED = ["instance_draining", "runner_unloaded", "instance_removed"]


@pytest.fixture(scope="module")
def node(shared_empty: Node) -> Iterator[Node]:
    yield shared_empty
    unload_all(shared_empty)


@dataclass
class Reader:
    """One who reads the stream, over a connection of its own, until it hangs up."""

    node: Node
    query: str = ""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    events: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    ids: list[str] = field(default_factory=list[str])
    over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def wait(self, kind: str, about: str = "") -> Reader:
        """Read on until such an event has come."""

        def has_come() -> bool:
            return any(
                one["kind"] == kind and about in ("", *map(str, one["about"].values()))
                for one in list(self.events)
            )

        eventually(has_come, 60, f"{kind} {about} comes: {self.events[-3:]}")
        return self

    def hang_up(self) -> Reader:
        """Be gone; what has come until then stays."""
        self.over.set()
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self

    def _read(self) -> None:
        headers = {"Accept": "text/event-stream", **self.headers}
        url = f"{self.node.url}/events{self.query}"
        with httpx.stream("GET", url, headers=headers, timeout=20) as answer:
            assert answer.status_code == 200, answer.read()
            for line in answer.iter_lines():
                if self.over.is_set():
                    return
                if line.startswith("id: "):
                    self.ids.append(line[4:])
                if line.startswith("data: "):
                    self.events.append(json.loads(line[6:]))


def listed(node: Node, **query: Any) -> list[dict[str, Any]]:
    answer = httpx.get(f"{node.url}/events", params=query, timeout=20)
    assert answer.status_code == 200, answer.text
    return answer.json()["events"]


def last(node: Node) -> str:
    """Return the place up to which a gateway's process knows the log."""
    found = eventually(lambda: node.http.get("/events").json()["last"], 20, "the log is known")
    return str(found)


def of(events: list[dict[str, Any]], instance: str, kinds: list[str]) -> list[str]:
    """Return the kinds of an instance's events, in their order, of those that are asked for."""
    mine = [one for one in events if one["about"].get("instance") == instance]
    return [one["kind"] for one in mine if one["kind"] in kinds]


def loaded(node: Node) -> str:
    """Load the model, and return its instance."""
    done = node.shoal("load", MODEL)
    assert done.returncode == 0, done.stdout + done.stderr
    [instance] = eventually(
        lambda: [k for k, v in node.state()["instances"].items() if v["status"] == "ready"],
        60,
        "it is ready",
    )
    return instance


def unloaded(node: Node, instance: str) -> None:
    node.http.delete(f"/instance/{instance}")
    eventually(lambda: instance not in node.state()["instances"], 60, "it is gone")


def test_a_load_is_told_in_its_order_by_list_and_by_stream(node: Node) -> None:
    start = last(node)
    reader = Reader(node, f"?after={start}")
    instance = loaded(node)
    unloaded(node, instance)
    reader.wait("instance_removed", instance).hang_up()
    indexes = [one["index"] for one in reader.events]
    first = int(start.partition(":")[2]) + 1
    assert indexes == list(range(first, first + len(indexes))), "each once, in order, none missing"
    assert [f"{one['term']}:{one['index']}" for one in reader.events] == reader.ids
    assert of(reader.events, instance, LOADED + UNLOADED) == LOADED + UNLOADED
    placed = next(one for one in reader.events if one["kind"] == "instance_placed")
    assert placed["about"] == {"instance": instance, "model": MODEL, "nodes": [node.node_id()]}
    removed = next(one for one in reader.events if one["kind"] == "instance_removed")
    assert removed["about"]["model"] == MODEL
    draining = next(one for one in reader.events if one["kind"] == "instance_draining")
    assert draining["why"]
    # either process, once it has heard of them, lists what the stream has told
    for _ in range(4):
        eventually(
            lambda: listed(node, after=start)[: len(indexes)] == reader.events, 20, "it is listed"
        )
    assert listed(node, after=start, limit=2) == reader.events[:2]


@pytest.mark.proof
def test_a_reader_that_was_cut_off_goes_on_behind_what_it_has(node: Node) -> None:
    reader = Reader(node, "?limit=5")
    node.http.post("/pin", json={"model": MODEL, "by": "first"})
    reader.wait("model_pinned", "first").hang_up()
    had = reader.events[-1]
    place = f"{had['term']}:{had['index']}"
    node.http.post("/unpin", json={"model": MODEL})
    for _ in range(6):  # either process has heard of it, however slow the machine is
        eventually(lambda: listed(node, after=had["index"] - 1)[0] == had, 30, "it is known")
    for turn in range(3):
        # over a connection of its own, so that either process may be the one
        again = Reader(node, "?limit=3", {"Last-Event-ID": place}).wait("model_unpinned").hang_up()
        indexes = [one["index"] for one in again.events]
        assert indexes[0] == had["index"] + 1, f"turn {turn}: nothing twice, no gap"
        assert all(one["kind"] != "gap" for one in again.events)
    for instance in node.state()["instances"]:
        unloaded(node, instance)


def test_none_of_the_past_is_told_where_none_is_wanted(node: Node) -> None:
    reader = Reader(node, "?stream=true&limit=0")
    # it reads from when it is answered; until it has heard of one, further ones are made
    made = 0

    def has_heard() -> bool:
        nonlocal made
        made += 1
        node.http.post("/node/" + node.node_id() + "/rename", json={"name": f"n{made}"})
        return bool(reader.events)

    eventually(has_heard, 30, "a new one is told")
    reader.hang_up()
    kinds = {one["kind"] for one in reader.events}
    assert "node_renamed" in kinds and "instance_placed" not in kinds, "what was before is not told"


@pytest.mark.parametrize(
    ("query", "headers", "field"),
    [
        ("?limit=-1", {}, "limit"),
        ("?limit=1001", {}, "limit"),
        ("?after=x", {}, "after"),
        ("?after=1:2:3", {}, "after"),
        ("?stream=maybe", {}, "stream"),
        ("?stream=true", {"Last-Event-ID": "x"}, "Last-Event-ID"),
    ],
)
def test_what_cannot_be_honoured_is_refused_and_named(
    node: Node, query: str, headers: dict[str, str], field: str
) -> None:
    answer = httpx.get(f"{node.url}/events{query}", headers=headers, timeout=20)
    assert answer.status_code == 400
    assert field in answer.json()["error"]["message"]


def test_a_page_of_another_site_may_not_read(node: Node) -> None:
    answer = httpx.get(f"{node.url}/events", headers={"Origin": "https://evil.example"})
    assert answer.status_code == 403


def test_the_log_of_each_process_is_told_to_its_end(node: Node) -> None:
    root = "/v1/diagnostics/node/processes"
    found = node.http.get(f"{root}/gateway/log?lines=3").json()
    assert found["process"] == "gateway" and 1 <= len(found["lines"]) <= 3
    assert {"bus", "master", "worker", "telemetry", "gateway"} <= set(found["processes"])
    whole = [one["message"] for one in node.log_lines("worker")]
    lines = node.http.get(f"{root}/worker/log?lines=1000").json()["lines"]
    told = [json.loads(line)["message"] for line in lines if line.startswith("{")]
    assert whole and told[: len(whole)] == whole
    for name in ("nothing", "..%2fnode-id", "gateway.log"):
        answer = node.http.get(f"{root}/{name}/log")
        assert answer.status_code == 404, name
    assert "gateway" in node.http.get(f"{root}/nothing/log").json()["error"]["message"]
    refused = node.http.get(f"{root}/gateway/log?lines=0")
    assert refused.status_code == 400 and "lines" in refused.json()["error"]["message"]


@pytest.mark.proof
def test_a_gateway_that_began_anew_says_what_it_does_not_know(node: Node) -> None:
    instance = loaded(node)
    place = next(
        f"{one['term']}:{one['index']}"
        for one in eventually(
            lambda: [
                one
                for one in listed(node)
                if one["kind"] == "instance_placed" and one["about"]["instance"] == instance
            ],
            20,
            "its placement is told",
        )
    )
    before = node.pid("gateway")
    kill(before)
    eventually(lambda: node.processes().get("gateway", before) != before, 60, "it is started again")
    eventually(node.ready, 60, "it serves")

    def gap() -> dict[str, Any] | None:
        with contextlib.suppress(httpx.HTTPError):  # it is starting
            answer = httpx.get(f"{node.url}/events", params={"after": place}, timeout=20)
            found: list[Any] = answer.json()["events"] if answer.status_code == 200 else []
            return found[0] if found and found[0]["kind"] == "gap" else None
        return None

    for _ in range(4):
        told = eventually(gap, 60, "it says that it does not know what was")
        assert told["about"] == {"after": None} and told["why"]
        assert told["index"] > int(place.partition(":")[2])


def points(node: Node) -> list[dict[str, Any]]:
    """Return the points, none while the gateway does not answer."""
    try:
        found = httpx.get(f"{node.url}/metrics/history", timeout=10.0)
    except httpx.HTTPError:
        return []
    return found.json()["points"] if found.status_code == 200 else []


@pytest.mark.proof
def test_points_go_on_behind_those_of_a_gateway_that_was_killed(node: Node) -> None:
    before = eventually(lambda: found if len(found := points(node)) > 1 else None, 60, "two points")
    own = node.node_id()
    assert all(one["nodes"][own]["memory"] > 0 for one in before)
    times = [one["at_s"] for one in before]
    assert times == sorted(set(times)), "one process notes them"
    kill(node.pid("gateway"))
    after = eventually(
        lambda: found if len(found := points(node)) > len(before) else None, 90, "points go on"
    )
    assert after[: len(before)] == before
