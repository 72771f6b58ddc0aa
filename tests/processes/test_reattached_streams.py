"""Gateways die at random under streams whose clients come back, and each stream says what it says
undisturbed (`make prove-resume`)."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from conf.settings import load_settings
from tests.harness.mixed_streams import KINDS, begun, check_same
from tests.harness.nodes import MODEL, Node, eventually
from tests.harness.reattaching_streams import ReattachingStream
from tests.processes.conftest import PROVING, results_folder

pytestmark = [pytest.mark.proof, pytest.mark.nodes, pytest.mark.timeout(3600)]

STREAMS = 102 if PROVING else 12
AT_ONCE = 12
PAUSES_S = (0.4, 2.0)
WHOLE_GATEWAY = 0.15
"""The share of kills that end the whole gateway, which supervisord then starts again."""


@pytest.fixture(scope="module")
def reef() -> Iterator[Node]:
    """A node with two HTTP processes whose gateway may be killed."""
    made = Node(SHOAL_HTTP_PROCESSES="2")
    made.up()
    try:
        eventually(lambda: MODEL in made.http.get("/health").json()["models_ready"], 60, "ready")
        yield made
        made.down()
    finally:
        made.close()


class Killer:
    """Kills HTTP processes of a node at random, in a thread, until it is stopped."""

    def __init__(self, node: Node, chance: random.Random) -> None:
        self.kills = self.whole = 0
        self._node, self._chance = node, chance
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._stop.wait(self._chance.uniform(*PAUSES_S)):
            with suppress(psutil.Error, KeyError, OSError, AssertionError):
                gateway = psutil.Process(self._node.pid("gateway"))
                processes = gateway.children()
                if self._chance.random() < WHOLE_GATEWAY:
                    processes, self.whole = [gateway, *processes], self.whole + 1
                elif processes:
                    processes = [self._chance.choice(processes)]
                for process in processes:
                    process.kill()
                self.kills += bool(processes)


def test_a_hundred_streams_outlive_their_gateways(reef: Node) -> None:
    undisturbed = begun(reef, *KINDS)
    for stream in undisturbed.values():
        stream.wait(180)
        assert stream.error is None, stream.error
    folder = Path(load_settings(home=reef.home).paths.runtime, "streams")
    kinds, streams, files = [*KINDS], list[ReattachingStream](), list[int]()
    killer = Killer(reef, random.Random(101))
    try:
        for first in range(0, STREAMS, AT_ONCE):
            batch = [
                ReattachingStream(reef, {**KINDS[kinds[number % len(kinds)]], "x_reattach_s": 60})
                for number in range(first, min(first + AT_ONCE, STREAMS))
            ]
            for stream in batch:
                stream.begin()
            for number, stream in enumerate(batch, first):
                check_same({kinds[number % len(kinds)]: stream}, undisturbed)
            streams += batch
            names = [stream.name.removeprefix("chatcmpl-") for stream in batch]
            paths = [folder / f"{name}.stream" for name in names]
            files += [path.stat().st_size for path in paths if path.exists()]
    finally:
        killer.stop()
    returns = [stream.returns for stream in streams]
    held = sorted(stream.bytes + 64 * (stream.last + 1) for stream in streams)
    files.sort()
    row = {
        "shape": "gateway",
        "fault": "SIGKILL of HTTP processes",
        "streams": len(streams),
        "kills": killer.kills,
        "whole_gateways": killer.whole,
        "streams_that_moved": sum(map(bool, returns)),
        "most_returns": max(returns),
        "median_event_bytes": held[len(held) // 2],
        "most_event_bytes": held[-1],
        "median_file_bytes": files[len(files) // 2],
        "most_file_bytes": files[-1],
    }
    with open(results_folder() / "resume.jsonl", "a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row))
    assert killer.kills >= len(streams) // 10 and sum(map(bool, returns)) >= len(streams) // 3
