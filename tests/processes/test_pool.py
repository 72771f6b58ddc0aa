"""Two models and memory for one, on a real node: who waits, how long, and what is said of it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.closed_loops import ask, held, loads, looping, models_of_engines
from tests.harness.llama_site import needs_program
from tests.harness.nodes import Node, answered, eventually, running_node, shoal

TURN_S = 6.0


ENGINES = [
    ("mlx", "mlx"),
    *(
        pytest.param(pair, marks=[pytest.mark.proof, needs_program])
        for pair in (("mlx", "gguf"), ("gguf", "mlx"), ("gguf", "gguf"))
    ),
]
"""The engines of the two models. The rules are the same for each pair."""


@pytest.fixture(scope="module", params=ENGINES, ids="-".join)
def node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    engines = dict(zip(("first", "second"), request.param, strict=True))
    folder = models_of_engines(tmp_path_factory.mktemp("models"), engines)
    with running_node(
        SHOAL_MODEL_FOLDERS=folder,
        SHOAL_SLOTS="1",
        SHOAL_PRELOAD="",
        SHOAL_HTTP_PROCESSES="1",
        SHOAL_POOL__TURN_S=f"{TURN_S:g}",
        SHOAL_POOL__TURN_LOADS="0",
        SHOAL_POOL__AGEING_PER_S="4",
    ) as made:
        yield made


def pool(node: Node) -> dict[str, Any]:
    return node.http.get("/pool").json()


def wait_of(node: Node, model: str) -> dict[str, Any] | None:
    return next((one for one in pool(node)["waits"] if one["model"] == model), None)


@pytest.mark.proof
def test_a_model_that_nobody_uses_makes_way_at_once(node: Node) -> None:
    assert (found := ask(node, "first")).status_code == 200, found.text
    began = time.monotonic()
    assert (found := ask(node, "second")).status_code == 200, found.text
    print(f"second took {time.monotonic() - began:.1f} s, load and all")
    assert set(held(node)) == {"second"}


def test_a_busy_model_yields_when_its_turn_is_over_and_who_waits_is_told_why(node: Node) -> None:
    with looping(node, "first", max_tokens=40) as busy:
        before = len(busy.answers)
        began = time.monotonic()
        body = {
            "model": "second", "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 4, "stream": True,
        }  # fmt: skip
        with httpx.stream(
            "POST", f"{node.url}/v1/chat/completions", json=body, timeout=90
        ) as answer:
            waits = answered(
                lambda: wait_of(node, "second"),
                lambda told: told and "first" in told["why"] and told["within_s"] is not None,
                "the pool tells what it waits for",
            )
            said = list(answer.iter_lines())
        waited_s = time.monotonic() - began
        assert len(busy.answers) > before, "the busy one went on meanwhile"
    told = [line for line in said if line.startswith(": ")]
    print(f"waited {waited_s:.1f} s; {told[:3]}; {waits}")
    assert any("first is in use; its minimum residency ends" in line for line in told), told
    assert waited_s < TURN_S + 30
    assert any(line.startswith("data: ") and "content" in line for line in said)


@pytest.mark.proof
def test_two_that_are_asked_by_turns_are_not_loaded_for_each_request(node: Node) -> None:
    seen: set[str] = set()
    with looping(node, "first") as one, looping(node, "second") as other:
        before = len(one.answers) + len(other.answers)
        end = time.monotonic() + 3.5 * TURN_S
        while time.monotonic() < end:
            seen |= loads(node)
            time.sleep(0.1)
        answered = len(one.answers) + len(other.answers) - before
    print(f"{answered} requests, {len(seen)} copies")
    assert len(seen) <= 6
    assert answered > 10 * len(seen)


@pytest.mark.proof
def test_an_urgent_request_does_not_wait_for_the_turn_of_another(node: Node) -> None:
    with looping(node, "first", x_priority="batch", max_tokens=40):
        eventually(lambda: "first" in held(node), 30, "first is in memory")
        began = time.monotonic()
        assert ask(node, "second", x_priority="urgent").status_code == 200
        print(f"urgent waited {time.monotonic() - began:.1f} s")
        assert set(held(node)) == {"second"}


def test_a_timeout_covers_the_wait_and_says_what_it_was_for(node: Node) -> None:
    with looping(node, "first", x_priority="high", max_tokens=40):
        eventually(lambda: "first" in held(node), 60, "first is in memory")
        began = time.monotonic()
        answer = ask(node, "second", x_timeout_s=1.5, x_priority="low")
        assert time.monotonic() - began < 5.0
        assert answer.status_code == 504, answer.text
        assert "x_timeout_s" in answer.text and "first" in answer.text, answer.text


def test_what_is_pinned_stays_whoever_asks(node: Node) -> None:
    assert (found := ask(node, "first")).status_code == 200, found.text
    pinned = shoal("pin", "first", "--by", "ann", env=node.env)
    assert pinned.returncode == 0, pinned.stderr
    try:
        began = time.monotonic()
        refused = ask(node, "second")
        assert refused.status_code == 507, refused.text
        assert "pinned" in refused.text and "first" in refused.text
        assert time.monotonic() - began < 10.0, "a hopeless wait ends at once"
        empty = node.http.post("/api/generate", json={"model": "first", "keep_alive": 0})
        assert empty.status_code == 200, empty.text
        time.sleep(1.0)
        assert held(node)["first"]["status"] == "ready"
        stopped = shoal("stop", "first", env=node.env)
        assert stopped.returncode == 5 and "shoal unpin first" in stopped.stderr, stopped.stderr
        assert "in a moment" not in stopped.stderr, stopped.stderr
        ps = shoal("ps", env=node.env).stdout
        assert "pinned by ann" in ps, ps
        told = json.loads(shoal("pool", "--json", env=node.env).stdout)
        assert [one["by"] for one in told["pins"]] == ["ann"]
    finally:
        assert shoal("unpin", "first", env=node.env).returncode == 0
    assert (found := ask(node, "second")).status_code == 200, found.text


@pytest.mark.proof
def test_a_pin_loads_what_is_not_in_memory_and_outlives_its_copy(node: Node) -> None:
    assert (found := ask(node, "second")).status_code == 200, found.text
    assert node.http.post("/pin", json={"model": "first"}).status_code == 200
    try:
        eventually(lambda: held(node).get("first", {}).get("status") == "ready", 60, "it is loaded")
        pid = held(node)["first"]["ready"][0]["pid"]
        os.kill(pid, signal.SIGKILL)
        eventually(
            lambda: (
                (one := held(node).get("first")) is not None
                and one["status"] == "ready"
                and one["ready"][0]["pid"] != pid
            ),
            90,
            "it is loaded again",
        )
    finally:
        assert node.http.post("/unpin", json={"model": "first"}).status_code == 200
    assert node.http.post("/pin", json={"model": "first", "bye": 1}).status_code == 400
    assert node.http.post("/pin", json={"model": "nobody"}).status_code == 404


@pytest.mark.proof
def test_a_card_pins_until_its_line_is_gone(node: Node) -> None:
    card = Path(node.env["SHOAL_MODEL_FOLDERS"]) / "second" / "card.toml"
    said = card.read_text()
    card.write_text(f"pin = true\n{said}")
    try:
        eventually(
            lambda: held(node).get("second", {}).get("status") == "ready", 90, "it is loaded"
        )
        assert "pinned by its card.toml" in shoal("ps", env=node.env).stdout
        shown = shoal("show", "second", env=node.env).stdout
        assert "pin" in shown and "card.toml" in shown, shown
        unpinned = shoal("unpin", "second", env=node.env)
        assert unpinned.returncode and "remove `pin` from that file" in unpinned.stderr, (
            unpinned.stderr
        )
        assert ask(node, "first").status_code == 507
    finally:
        card.write_text(said)
    eventually(lambda: not node.http.get("/pool").json()["pins"], 60, "it is pinned no more")
    assert (found := ask(node, "first")).status_code == 200, found.text


@pytest.mark.parametrize("tokens", [1, pytest.param(9, marks=pytest.mark.proof)])
def test_a_copy_of_the_shortest_context_is_ready_and_says_what_does_not_fit(
    node: Node, tokens: int
) -> None:
    for name in loads(node):  # it may have been on its way out, and be gone by now
        assert node.http.delete(f"/instance/{name}").status_code in (200, 404)
    eventually(lambda: not loads(node), 60, "nothing is in memory")
    asked = {"model": "first", "context_tokens": tokens}
    assert node.http.post("/place_instance", json=asked).status_code == 200
    eventually(lambda: held(node).get("first", {}).get("status") == "ready", 60, "it is loaded")
    refused = ask(node, "first")
    assert (refused.status_code, refused.json()["error"]["code"]) == (
        400,
        "context_length_exceeded",
    ), refused.text
    assert node.http.delete(f"/instance/{next(iter(loads(node)))}").status_code == 200
