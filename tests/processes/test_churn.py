"""Three real nodes that are started, stopped and killed while models come and go and are asked.

`SHOAL_TEST_CHURN=<seed>` tells one story again (the choices are the same; the times are the
machine's). Three rounds as a rule, twenty when proving, or as many as fit into
`SHOAL_TEST_CHURN_S` seconds; beside `SHOAL_TEST_BESIDE` processes that want a core all the while.
The same with 200 rounds in simulated time is in tests/sim.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
import psutil
import pytest

from conf.settings import load_settings
from tests.harness.cluster_invariants import assert_invariants, listening, remains
from tests.harness.clusters import Cluster, running_cluster, view_of
from tests.harness.nodes import MODEL, SERVICES, Node, Stream
from tests.processes.conftest import PROVING, Ledger

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

ROUNDS = 20 if PROVING else 3
GIVEN = os.environ.get("SHOAL_TEST_CHURN", "")
SEED = int(GIVEN or (random.SystemRandom().randrange(10**6) if PROVING else 3))
LASTS_S = float(os.environ.get("SHOAL_TEST_CHURN_S", "0"))
BESIDE = int(os.environ.get("SHOAL_TEST_BESIDE", "0"))
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))\n"
"""A program that wants a core for as long as this process lives."""
WATCHDOGS = ("the engine is stuck", "kills")
"""What is logged where a runner is ended because it seems not to work; none is frozen here."""
PATIENCE_S = 300.0
UP_S = 180.0
SHADOW_S = 30.0
"""A connection that breaks so soon after its own gateway was hit is no wonder."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster(3, SHOAL_SETTLE_GRACE_S="35") as made:
        yield made


@pytest.fixture
def busy() -> Iterator[None]:
    """Other work on this machine."""
    beside = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(BESIDE)]
    yield
    for one in beside:
        one.kill()
        one.wait()


@dataclass
class Churn:
    """The rounds. `hits` says when which node's own gateway was made to go."""

    cluster: Cluster
    chance: random.Random
    down: set[int] = field(default_factory=set[int])
    hits: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    asked: list[tuple[int, Stream]] = field(default_factory=list[tuple[int, Stream]])
    did: Counter[str] = field(default_factory=Counter[str])

    def round(self) -> None:
        """Some requests, a change of what is placed, a fault; and a while to feel it."""
        for _ in range(self.chance.randint(1, 3)):
            self.ask()
        self.chance.choice((self.place, self.place, self.delete))()
        fault = self.chance.choice(
            (self.kill_process, self.kill_process, self.kill_node, self.stop, self.start)
        )
        self.ask()
        fault()
        time.sleep(self.chance.random() * 4.0)

    def ask(self) -> None:
        number = self.live()
        tokens = self.chance.choice((8, 60, 300))
        stream = self.cluster.nodes[number].stream(
            f"Tell me story {len(self.asked)}.", max_tokens=tokens, ignore_eos=True
        )
        self.asked.append((number, stream))
        self.note("request")

    def place(self) -> None:
        body = {"model": MODEL, "if_absent": False, "min_nodes": self.chance.choice((1, 1, 2))}
        self.post("/place_instance", body)

    def delete(self) -> None:
        view = view_of(self.cluster.nodes[self.live()])
        names = sorted(view["state"]["instances"]) if view else []
        if names:
            name = self.chance.choice(names)
            with contextlib.suppress(httpx.HTTPError):
                self.cluster.nodes[self.live()].http.delete(f"/instance/{name}", timeout=20.0)
            self.note("delete")

    def kill_process(self) -> None:
        number = self.live()
        with contextlib.suppress(Exception):
            running = self.cluster.nodes[number].processes()
            name = self.chance.choice(sorted(running))
            if name in ("gateway", "bus"):
                self.hits.append((number, time.monotonic()))
            psutil.Process(running[name]).kill()
            self.note(f"kill {name if name in SERVICES else 'runner'}")

    def kill_node(self) -> None:
        if len(self.down) < 2:
            number = self.live()
            self.hits.append((number, self.cluster.nodes[number].kill()))
            self.down.add(number)
            self.note("kill a node")

    def stop(self) -> None:
        if len(self.down) < 2:
            number = self.live()
            self.hits.append((number, time.monotonic()))
            self.cluster.nodes[number].down()
            self.down.add(number)
            self.note("stop a node")

    def start(self) -> None:
        if self.down:
            number = self.chance.choice(sorted(self.down))
            self.cluster.nodes[number].up(UP_S)
            self.down.discard(number)
            self.note("start a node")

    def post(self, path: str, body: dict[str, object]) -> None:
        with contextlib.suppress(httpx.HTTPError):
            reply = self.cluster.nodes[self.live()].http.post(path, json=body, timeout=20.0)
            self.note(f"place {reply.status_code}")

    def live(self) -> int:
        numbers = [n for n in range(len(self.cluster.nodes)) if n not in self.down]
        return self.chance.choice(numbers)

    def note(self, what: str) -> None:
        self.did[what] += 1
        print(f"{time.strftime('%H:%M:%S')} {what}", flush=True)

    def wrong_texts(self) -> list[str]:
        """Answers, whole or cut short, that are not what the model says at rest."""
        truth: dict[str, str] = {}
        found: list[str] = []
        for number, (_, stream) in enumerate(self.asked):
            if not stream.text:
                continue
            story = f"Tell me story {number}."
            whole = self.cluster.nodes[0].stream(story, max_tokens=300, ignore_eos=True)
            truth[story] = whole.wait(PATIENCE_S).text
            assert whole.finish == "length", (whole.error, whole.broken)
            if not truth[story].startswith(stream.text):
                found.append(f"{story} {stream.text[:80]!r} {truth[story][:80]!r}")
        return found

    def ended_by_watchdogs(self) -> list[str]:
        """Runners, none of which was frozen, that were ended for not working."""
        lines = [
            (log.stem, line)
            for node in self.cluster.nodes
            for log in load_settings(home=node.home).paths.logs.glob("*.log")
            for line in node.log_lines(log.stem)
        ]
        assert any(name == "worker" for name, _ in lines)
        return [
            f"{process}: {line}"
            for process, line in lines
            if line["message"] in WATCHDOGS
            and line.get("why") != "did not report to the new worker"
        ]

    def unended(self) -> list[str]:
        """Requests that had no terminal, or more than one. One whose own gateway was hit can
        hear of none."""
        found: list[str] = []
        for number, stream in self.asked:
            stream.wait(PATIENCE_S)
            assert stream.ended_at is not None
            early, late = stream.started_at - SHADOW_S, stream.ended_at + 1.0
            hit = any(node == number and early < at < late for node, at in self.hits)
            if stream.ends == 1 or (stream.ends == 0 and stream.broken and hit):
                continue
            at = time.monotonic() - stream.started_at
            found.append(f"{stream.ends} ends, of node {number}, {at:.1f} s ago: {stream.broken}")
        return found


@pytest.mark.proof
@pytest.mark.usefixtures("busy")
def test_a_cluster_is_sound_after_churn(cluster: Cluster, ledger: Ledger) -> None:
    print(f"seed {SEED}")
    assert_invariants(cluster)
    ports: dict[Node, set[int]] = {node: listening(node) for node in cluster.nodes}
    churn = Churn(cluster, random.Random(SEED))
    rounds, ends_at = 0, time.monotonic() + LASTS_S
    while time.monotonic() < ends_at if LASTS_S else rounds < ROUNDS:
        churn.round()
        rounds += 1
    print(f"{rounds} rounds, load average {os.getloadavg()[0]:.1f}")
    at = time.monotonic()
    while churn.down:
        churn.start()
    assert_invariants(cluster)
    seconds = time.monotonic() - at
    unended = churn.unended()
    assert not unended, (SEED, unended)
    cluster.place(seconds=PATIENCE_S)
    for node in cluster.nodes:
        assert node.chat("hi", max_tokens=4).status_code == 200
    assert churn.wrong_texts() == []
    assert churn.ended_by_watchdogs() == []
    cluster.clear(PATIENCE_S)
    assert_invariants(cluster)
    assert [sorted(listening(node) - ports[node]) for node in cluster.nodes] == [[], [], []]
    said = Counter(
        (s.error or {}).get("code") or s.finish or "its gateway is gone" for _, s in churn.asked
    )
    for node in cluster.nodes:
        node.down()
    assert [remains(node) for node in cluster.nodes] == [[], [], []]
    print(f"seed {SEED}: {dict(churn.did)}")
    ledger(
        f"{rounds} rounds of churn, seed {SEED}",
        saw=", ".join(f"{count} {what}" for what, count in sorted(said.items())),
        seconds=seconds,
        bound_s=120,
        reloaded=0,
    )
