"""Three real nodes with memory for five of twelve models, an hour of mixed load in ten minutes (one
in which turns, ageing and keep-alives are six times as fast; under a minute unless proving), and
the holder killed twice meanwhile: each request has its answer, or a reason.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.harness.closed_loops import models_of_engines
from tests.harness.clusters import Cluster, view_of
from tests.harness.llama_site import needs_program
from tests.harness.mixed_load import Asked, drawn, reckoned, sent
from tests.harness.nodes import eventually, kill
from tests.processes.conftest import PROVING

pytestmark = [
    pytest.mark.proof,
    pytest.mark.nodes,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]

SECONDS, PER_S = (600.0, 1.0) if PROVING else (40.0, 0.8)
SEED = int(os.environ.get("SHOAL_TEST_LOAD", "17"))
MODELS = [f"m{number:02}" for number in range(12)]
SLOTS = (2, 2, 1)
LAST_S = 150.0
"""Long enough for all that wait at the end: in five places seven others' turns, of 5 s and a load,
and what is less urgent rises by 3 each second."""
SIX_TIMES = {
    "SHOAL_POOL__TURN_S": "5", "SHOAL_POOL__AGEING_PER_S": "3", "SHOAL_KEEP_ALIVE_S": "50",
}  # fmt: skip


@pytest.fixture(
    scope="module",
    params=[["mlx"], pytest.param(["mlx", "gguf"], marks=needs_program)],
    ids="-".join,
)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    engines = dict(zip(MODELS, itertools.cycle(request.param), strict=False))
    folder = models_of_engines(tmp_path_factory.mktemp("models"), engines)
    made = Cluster(3, SHOAL_MODEL_FOLDERS=folder, SHOAL_BUNDLED_MODEL="false", **SIX_TIMES)
    for node, slots in zip(made.nodes, SLOTS, strict=True):
        node.env["SHOAL_SLOTS"] = str(slots)
    try:
        made.up()
        yield made
    finally:
        made.close()


class Loads(threading.Thread):
    """Looks at the copies as long as it is not `over`. `ready` has of each copy that became ready
    when it was first and when it was ready; `most` is how many there were at once."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self.cluster, self.over = cluster, threading.Event()
        self.seen: dict[str, float] = {}
        self.ready: dict[str, float] = {}
        self.most = 0

    def run(self) -> None:
        while not self.over.wait(0.2):
            view = next((v for node in self.cluster.nodes if (v := view_of(node))), None)
            copies: dict[str, Any] = {} if view is None else view["state"]["instances"]
            now = time.monotonic()
            held = [one for one in copies.values() if one["status"] != "failed"]
            self.most = max(self.most, len(held))
            for name, one in copies.items():
                self.seen.setdefault(name, now)
                if one["status"] == "ready":
                    self.ready.setdefault(name, now)

    def spans(self) -> list[tuple[float, float]]:
        """Begin and end of each load."""
        return [(self.seen[name], at) for name, at in self.ready.items()]


def holder_killed(cluster: Cluster) -> float:
    """Kill the holder's process; return when, once another one holds the term."""
    holder = cluster.holder()
    term = holder.state()["term"]
    at = kill(holder.pid("master"))
    eventually(
        lambda: (
            cluster.formed()
            and all((view := view_of(n)) and view["state"]["term"] > term for n in cluster.nodes)
        ),
        60,
        "another holds the term",
    )
    return at


def test_each_of_many_requests_is_answered_or_has_its_reason(cluster: Cluster) -> None:
    wishes = drawn(SEED, MODELS, len(cluster.nodes), SECONDS, PER_S)
    assert len({wish.model for wish in wishes}) > sum(SLOTS), "there are more models than room"
    over, loads = threading.Event(), Loads(cluster)
    loads.start()
    faults: list[float] = []
    with ThreadPoolExecutor(1) as clients:
        sending = clients.submit(sent, cluster.nodes, wishes, over)
        try:
            for _ in range(2):
                assert not over.wait(SECONDS / 3)
                faults.append(holder_killed(cluster))
            asked = sending.result(SECONDS + 60)
        finally:
            over.set()
    end = time.monotonic() + LAST_S
    for one in asked:
        one.stream.wait(max(0.1, end - time.monotonic()))
    loads.over.set()
    loads.join(30)
    print(f"seed {SEED}\n{reckoned(asked, loads.spans(), sum(SLOTS))}")
    assert loads.most <= sum(SLOTS) and len(loads.ready) > sum(SLOTS)
    puzzles = [(one.wish, why) for one in asked if (why := one.unexplained(faults))]
    assert not puzzles, puzzles[:5]
    assert_right(asked)
    for node in cluster.nodes:
        with httpx.Client(base_url=node.url, timeout=10) as http:
            assert http.get("/pool").json()["waits"] == []


def assert_right(asked: list[Asked]) -> None:
    """Who set no limit is answered; who did waits no longer than that."""
    for one in asked:
        code = None if one.stream.error is None else one.stream.error["code"]
        if not one.wish.timeout_s:
            assert one.is_served, (one.wish, one.stream.error)
        elif code is not None:
            lasted_s = (one.stream.ended_at or 0.0) - one.stream.started_at
            assert one.stream.status == 504 or "x_timeout_s" in str(one.stream.error), one
            assert lasted_s < one.wish.timeout_s + 5.0, (one.wish, lasted_s)
