"""Memory for another program, on a real node: models make way for it, are told why they wait, and
come back when it is given back, or when its owner was killed."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from tests.harness.nodes import MODEL, Node, answered, typed
from tests.harness.shared_nodes import unload_all

HELD = "import sys, time; print('begun', flush=True); time.sleep(float(sys.argv[1]))"
HUGE = 1 << 49


@pytest.fixture(scope="module")
def node(shared_empty: Node) -> Iterator[Node]:
    yield shared_empty
    unload_all(shared_empty)


def loaded(node: Node) -> bool:
    return any(one["status"] == "ready" for one in node.state()["instances"].values())


def leases(node: Node) -> dict[str, dict[str, Any]]:
    return {one["owner"]: one for one in node.http.get("/leases").json()["leases"]}


def beside_no_model(node: Node) -> int:
    """More bytes than there are beside the loaded model, and no more than there are without it: it
    has to leave, and does not fit again, in whatever size."""
    (copy,) = node.state()["instances"].values()
    reserved = sum(shard["bytes_reserved"] for shard in copy["shards"])
    refusal = node.http.post("/leases", json={"size_bytes": HUGE})
    assert refusal.status_code == 507, refusal.text
    most = re.search(r"the largest limit is ([0-9.]+) GB", refusal.json()["error"]["message"])
    assert most is not None, refusal.text
    free = psutil.virtual_memory().available
    return int(min(float(most[1]) * 1e9 - 1e7, free + reserved - 2e8))


def run_under_lease(node: Node, *more: str, seconds: float = 300.0) -> Any:
    size = str(beside_no_model(node))
    program = (sys.executable, "-c", HELD, f"{seconds:g}")
    return typed(node, "lease", "run", "--size", size, *more, "--", *program)


def test_models_make_way_and_come_back(node: Node) -> None:
    assert node.chat("hi").status_code == 200 and loaded(node)
    owner = run_under_lease(node, "--owner", "training", "--priority", "20")
    assert owner.stdout.readline() == "begun\n", owner.stderr.read() if owner.poll() else ""
    assert not loaded(node), "the model has made way"
    held = answered(lambda: leases(node), lambda found: "training" in found, "it is told")
    assert held["training"]["size_bytes"] > 0 and held["training"]["priority"] == 20
    reply = node.chat("hi", x_timeout_s=6)
    assert reply.status_code in (503, 504), reply.text
    assert "leased: " in reply.text and "to training (lease-" in reply.text
    asked = answered(
        lambda: leases(node).get("training"),
        lambda one: one and one["yields_to"],
        "it is asked back",
    )
    assert asked["yields_to"] == MODEL, "a request of class 10 is more urgent than 20"
    shown = node.shoal("pool")
    assert "leased to training" in shown.stdout
    owner.send_signal(signal.SIGTERM)
    _, said = owner.communicate(timeout=30)
    assert owner.returncode == 128 + signal.SIGTERM
    assert f"release the memory: {MODEL} needs it" in said
    answered(lambda: leases(node), lambda found: not found, "it is given back at once")
    reply = node.chat("hi")
    assert reply.status_code == 200, reply.text


@pytest.mark.proof
def test_what_an_owner_that_was_killed_had_comes_back(node: Node) -> None:
    assert node.chat("hi").status_code == 200
    owner = run_under_lease(node, "--owner", "doomed")
    assert owner.stdout.readline() == "begun\n"
    child = psutil.Process(owner.pid).children()[0]
    owner.kill()
    killed_at = time.monotonic()
    try:
        answered(lambda: leases(node), lambda found: not found, "its time is over", 3 * 30.0)
        print(f"reclaimed {time.monotonic() - killed_at:.1f} s after kill -9 (bound: 31)")
        assert child.is_running(), "the program itself goes on"
    finally:
        child.kill()
        owner.communicate(timeout=10)
    assert node.chat("hi").status_code == 200


def test_the_program_s_end_is_ours_and_so_is_ctrl_c(node: Node) -> None:
    done = node.shoal(
        "lease", "run", "--size", "1MB", "--", sys.executable, "-c", "raise SystemExit(7)"
    )
    assert done.returncode == 7, done.stderr
    assert "reserved 1.0 MB on " in done.stderr and ": lease lease-" in done.stderr
    program = "import os; print(os.environ['SHOAL_LEASE'])"
    done = node.shoal("lease", "run", "--size", "1MB", "--", sys.executable, "-c", program)
    assert re.fullmatch(r"lease-[0-9a-f]+\n", done.stdout)
    answered(lambda: leases(node), lambda found: not found, "both are given back")


@pytest.mark.proof
def test_the_signal_that_was_asked_for_is_sent_once(node: Node) -> None:
    program = (
        "import signal, time; n = [0]\n"
        "def told(*_): n[0] += 1\n"
        "signal.signal(signal.SIGUSR1, told)\n"
        "print('begun', flush=True)\n"
        "t = time.monotonic()\n"
        "while time.monotonic() - t < 60 and not n[0]: time.sleep(0.1)\n"
        "time.sleep(7); print(n[0], flush=True)"
    )
    words = ("lease", "run", "--size", "1MB", "--owner", "job", "--on-ask-back", "usr1", "--")
    owner = typed(node, *words, sys.executable, "-c", program)
    assert owner.stdout is not None and owner.stdout.readline() == "begun\n"
    held = answered(lambda: leases(node).get("job"), bool, "it is held")
    asked = node.shoal("lease", "ask-back", held["lease"])
    assert asked.stdout == f"job is asked for {held['lease']} at its next renewal\n", asked.stderr
    out, said = owner.communicate(timeout=90)
    assert out == "1\n" and owner.returncode == 0
    assert "release the memory: an operator needs it" in said


@pytest.mark.proof
def test_what_an_operator_ends_is_not_taken_anew(node: Node) -> None:
    words = ("lease", "run", "--size", "1MB", "--owner", "job", "--")
    owner = typed(node, *words, sys.executable, "-c", HELD, "12")
    assert owner.stdout is not None and owner.stdout.readline() == "begun\n"
    held = answered(lambda: leases(node).get("job"), bool, "it is held")
    listed = node.shoal("lease", "ls")
    assert held["lease"] in listed.stdout and "job" in listed.stdout
    assert node.shoal("lease", "rm", held["lease"]).returncode == 0
    _, said = owner.communicate(timeout=60)
    assert f"another user ended {held['lease']}" in said
    answered(lambda: leases(node), lambda found: not found, "it stays ended")


@pytest.mark.proof
def test_a_client_that_hangs_up_while_it_waits_gets_none(node: Node) -> None:
    assert node.chat("hi").status_code == 200
    size = beside_no_model(node)
    busy = node.stream("Tell me a long story.", max_tokens=1500, ignore_eos=True).flowing()
    body = {"size_bytes": size, "owner": "gone", "wait_s": 60}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{node.url}/leases", json=body, headers=node.headers, timeout=1.5)
    busy.wait(120)
    time.sleep(8.0)  # what it asked of the holder is over by then
    assert not leases(node)


def test_mistakes_are_named(node: Node) -> None:
    for words, said in (
        (["--size", "much"], "--size: 'much' is not a size; use for example 8GB or 512MiB"),
        (["--size", "1MB", "--wait", "2h"], "--wait 2h is too long"),
        (["--size", "1MB", "--on-ask-back", "nosuch"], "unknown signal 'nosuch'"),
    ):
        done = node.shoal("lease", "run", *words, "--", "true")
        assert done.returncode == 2 and said in done.stderr, done.stderr
    done = node.shoal("lease", "run", "--size", "1MB", "--", "no-such-program")
    assert done.returncode == 4 and "cannot run no-such-program" in done.stderr
    done = node.shoal("lease", "rm", "lease-none")
    assert done.returncode == 4 and "there is no lease 'lease-none'" in done.stderr
    done = node.shoal("lease", "run", "--size", "500TB", "--", "true")
    assert done.returncode != 0 and "too much memory" in done.stderr
    assert not leases(node)
