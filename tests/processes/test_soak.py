"""A long day in miniature: mixed requests, every one of them ends, nothing leaks, text is right;
the same while all threads give way to each other between lines.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.bench.contestants import environment
from tests.harness import yields
from tests.harness.clusters import running_cluster
from tests.harness.nodes import MODEL, ROOT, SERVICES, Node, eventually, running_node
from tests.processes.conftest import PROVING, results_folder

REQUESTS = int(os.environ.get("SHOAL_TEST_SOAK", "2000" if PROVING else "60"))
WARM = REQUESTS // 4
TRUTHS = 24
YIELDING_S = float(os.environ.get("SHOAL_TEST_YIELDS", "900" if PROVING else "20"))
"""How long one rank, then a group of two, are asked while their threads give way."""
SETTLE_S = 2.0
WORDS = ["fish", "sea", "shoal", "node", "token", "count", "seven", "blue", "story", "moves"]


def prompt_of(number: int) -> tuple[str, int]:
    chance = random.Random(number)
    words = " ".join(chance.choice(WORDS) for _ in range(chance.choice([3, 12, 60, 300])))
    return words, chance.choice([8, 24, 64])


def truths() -> list[dict[str, Any]]:
    asked = [prompt_of(number) for number in range(TRUTHS)]
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/harness/mlx_lm_oracle.py"), str(ROOT / "conf" / "tiny")],
        input=json.dumps(asked), capture_output=True, text=True, timeout=300, check=True,
        env=environment(),
    )  # fmt: skip
    return json.loads(done.stdout)


def margin_where_they_part(truth: dict[str, Any], text: str) -> float | None:
    """None when equal, else the truth's margin at the first token that differs."""
    if text == truth["text"]:
        return None
    so_far = ""
    for piece, margin in zip(truth["pieces"], truth["margins"], strict=False):
        if not text.startswith(so_far + piece):
            return margin
        so_far += piece
    return truth["margins"][-1] if truth["margins"] else 0.0


def is_slow(data: dict[str, Any]) -> bool:
    """Whether a request was refused because its runner did not even take it up in time."""
    error = data.get("error") or {}
    return error.get("code") == "model_not_ready" and "overloaded" in error["message"]


class Day:
    """The requests of a day; `ends` counts how they ended. `may_be_slow`: beside work that leaves
    a runner no core, requests may be refused."""

    def __init__(
        self, node: Node, truth: list[dict[str, Any]], *, may_be_slow: bool = False
    ) -> None:
        self.may_be_slow = may_be_slow
        self.node = node
        self.truth = truth
        self.ends: dict[str, int] = {}
        self.parted: list[float] = []
        self.open_ended: list[str] = []

    def count(self, end: str) -> None:
        self.ends[end] = self.ends.get(end, 0) + 1

    def one(self, number: int) -> None:
        kind = random.Random(f"kind{number}").choices(
            ["plain", "stream", "cancel", "hang up", "bad"], [40, 40, 6, 8, 6]
        )[0]
        prompt, tokens = prompt_of(number % TRUTHS)
        body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        if kind == "plain":
            self.plain(body, number % TRUTHS)
        elif kind == "bad":
            reply = self.post({**body, "temperature": "hot"})
            self.count(f"bad {reply.status_code}")
        else:
            self.streamed(kind, body, number % TRUTHS)

    def post(self, body: dict[str, Any]) -> httpx.Response:
        for _ in range(200):
            reply = httpx.post(self.node.url + "/v1/completions", json=body, timeout=120)
            if self.may_be_slow and reply.status_code == 503 and is_slow(reply.json()):
                self.count("the runner was too slow, tried again")
                continue
            if reply.status_code != 429:
                return reply
            self.count("429, tried again")
        raise AssertionError("refused 200 times")

    def plain(self, body: dict[str, Any], truth: int) -> None:
        reply = self.post(body)
        assert reply.status_code == 200, reply.text
        self.compare(reply.json()["choices"][0]["text"], truth)
        self.count("finished")

    def compare(self, text: str, truth: int) -> None:
        margin = margin_where_they_part(self.truth[truth], text)
        if margin is not None:
            self.parted.append(margin)

    def streamed(self, kind: str, body: dict[str, Any], truth: int) -> None:
        text, done, identity = "", False, None
        with httpx.stream(
            "POST", self.node.url + "/v1/completions", json={**body, "stream": True}, timeout=120
        ) as response:
            if response.status_code == 429:
                self.count("429 stream")
                return
            for line in response.iter_lines():
                if line == "data: [DONE]":
                    done = True
                elif line.startswith("data: "):
                    data = json.loads(line[6:])
                    if self.may_be_slow and not text and is_slow(data):
                        self.count("the runner was too slow")
                        return
                    assert "error" not in data, data
                    identity = data["id"]
                    text += "".join(c["text"] for c in data["choices"])
                    if kind == "hang up":
                        self.count("hung up")
                        return
                    if kind == "cancel":
                        httpx.post(f"{self.node.url}/v1/cancel/{identity}", timeout=30)
                        kind = "cancelled"
        if not done:
            self.open_ended.append(f"{kind} {identity}")
        elif kind == "stream":
            self.compare(text, truth)
        self.count("cancelled" if kind == "cancelled" else "finished")


def resident(node: Node) -> dict[str, int]:
    found: dict[str, int] = {}
    for process in node.all_processes():
        found[f"{' '.join(process.cmdline()).strip()[-40:]} {process.pid}"] = (
            psutil.Process(process.pid).memory_info().rss
        )
    return found


def idle(node: Node) -> bool:
    queue = node.http.get("/queue").json()
    return all(one["running"] + one["waiting"] == 0 for one in queue["instances"])


def settled(node: Node) -> dict[str, int]:
    """What is resident once nothing runs and the runner has tidied up."""
    eventually(lambda: idle(node), 30, "every row is free")
    time.sleep(SETTLE_S)
    return resident(node)


@pytest.mark.proof
def test_a_long_day_ends_every_request_and_leaks_nothing() -> None:
    with running_node() as node:
        day = Day(node, truths())
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(day.one, range(WARM)))
            before = settled(node)
            list(pool.map(day.one, range(WARM, REQUESTS)))
        after = settled(node)
        grown = {
            name: (after[name] - before[name]) / (REQUESTS - WARM)
            for name in before
            if name in after
        }
        journal = sum(p.stat().st_size for p in node.home.rglob("events.log"))
        close = [margin for margin in day.parted if margin < 1e-4]
        row = {
            "requests": REQUESTS,
            "ends": day.ends,
            "without a terminal event": day.open_ended,
            "greedy texts that differ": len(day.parted),
            "of them with margin < 1e-4": len(close),
            "bytes per request, by process": {k: round(v) for k, v in grown.items()},
            "MiB before and after": {
                name: [round(before[name] / 2**20, 1), round(after[name] / 2**20, 1)]
                for name in grown
            },
            "journal bytes": journal,
        }
        (results_folder() / "soak.json").write_text(json.dumps(row, indent=1))
        print(json.dumps(row, indent=1))
        assert not day.open_ended
        assert len(close) == len(day.parted), day.parted
        assert journal < 80 << 20
        assert set(before) <= set(after), "a process was replaced"
        if PROVING:
            assert max(grown.values()) <= 1024, grown


def runners(node: Node) -> dict[str, int]:
    return {name: pid for name, pid in node.processes().items() if name.startswith("runner:")}


def asked_all_the_while(node: Node, seconds: float) -> Day:
    """Ask as on a long day, sixteen at once."""
    day = Day(node, truths(), may_be_slow=True)
    numbers, ends_at = count(), time.monotonic() + seconds

    def client(_number: int) -> None:
        while time.monotonic() < ends_at:
            day.one(next(numbers))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(client, range(16)))
    return day


@pytest.fixture(params=[1, 2], ids=["alone", "group"])
def yielding(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Node]]:
    """Nodes whose threads give way between lines, and one copy of the model over all of them."""
    with running_cluster(request.param, **yields.variables(tmp_path)) as cluster:
        cluster.place(min_nodes=request.param, seconds=240.0)
        yield cluster.nodes


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_threads_that_give_way_between_lines_do_no_harm(yielding: list[Node]) -> None:
    before = [runners(node) for node in yielding]
    assert all(before), "each node has a rank"
    day = asked_all_the_while(yielding[0], YIELDING_S)
    print(json.dumps({"ranks": len(yielding), "seconds": YIELDING_S, "ends": day.ends}))
    assert not day.open_ended
    assert all(margin < 1e-4 for margin in day.parted), day.parted
    assert [runners(node) for node in yielding] == before, "a runner was replaced"
    for node in yielding:
        found = node.http.get("/health").json()
        assert not [one for one in found.get("findings", []) if "thread" in str(one)], found
        raised = [
            line
            for process in (*SERVICES, *runners(node))
            for line in node.log_lines(process.replace(":", "-"))
            if line["level"] == "error"
        ]
        assert not raised, raised[:3]
