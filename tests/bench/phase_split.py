"""A phase split on two nodes of unequal speed: long prompts and answers, against each node alone.

Two nodes on this machine have a random Qwen3 of about 30 M parameters. The kernel gives the first
one's runner a part of a core (a CPU quota of a cgroup), and the second one's a larger part. With
`prefill_on`, the second node computes the prompts, and the first writes the answers. Needs root on
Linux with cgroups for CPU quotas (version 1), and a quiet machine.

    python -m tests.bench.phase_split [--streams 2 4 8] [--cores 0.4 0.8]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.kv_disk import print_line, text_of
from tests.bench.models import random_qwen3
from tests.harness.clusters import Cluster, running_cluster
from tests.harness.nodes import Node, eventually

NAME = "split30m"
QUOTAS = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 20_000
_SALTS = itertools.count(1)


@dataclass
class Timed:
    """One stream: when its tokens came, in seconds after its begin."""

    at: list[float] = field(default_factory=list[float])
    tokens: int = 0
    cached: int = 0


def stream(node: Node, tokens: int, answer: int, salt: int, into: Timed) -> None:
    body: dict[str, Any] = {
        "model": NAME,
        "prompt": text_of(tokens, salt),
        "max_tokens": answer,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began_at = time.perf_counter()
    with node.http.stream("POST", "/v1/completions", json=body, timeout=900.0) as reply:
        assert reply.status_code == 200, reply.read()
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if event.get("choices") and event["choices"][0]["text"]:
                into.at.append(time.perf_counter() - began_at)
            if event.get("usage"):
                into.tokens = event["usage"]["completion_tokens"]
                into.cached = event["usage"]["prompt_tokens_details"]["cached_tokens"]


def measure(node: Node, title: str, streams: int, tokens: int, answer: int) -> None:
    """Print the figures of so many streams that begin together."""
    timed = [Timed() for _ in range(streams)]
    threads = [
        threading.Thread(target=stream, args=(node, tokens, answer, next(_SALTS), into))
        for into in timed
    ]
    began_at = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began_at
    made = sum(each.tokens for each in timed)
    gaps = [b - a for each in timed for a, b in itertools.pairwise(each.at)]
    print_line(
        f"{title:18} {streams} streams: {made / seconds:6.1f} tokens/s in {seconds:5.1f} s; "
        f"first token {statistics.mean(each.at[0] for each in timed):5.1f} s (mean), "
        f"gap {1000 * statistics.median(gaps):5.1f} ms (median), {max(gaps):4.1f} s (longest); "
        f"copied {sum(each.cached > 0 for each in timed)} of {streams}"
    )


@contextlib.contextmanager
def quota(cores: float, pids: list[int]) -> Iterator[None]:
    """Give these processes so many cores together."""
    group = QUOTAS / f"shoal-bench-{os.getpid()}-{pids[0]}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(int(cores * PERIOD_US)))
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(OSError):
                (QUOTAS / "cgroup.procs").write_text(str(pid))
        group.rmdir()


def load_on(cluster: Cluster, number: int) -> int:
    """Load the model on one node; return the pid of its runner."""
    other = cluster.nodes[1 - number]
    placed = cluster.place(NAME, excluded_nodes=[other.node_id()], seconds=300)
    hashes = cluster.nodes[number].home / "state" / "weights"
    eventually(lambda: len([*hashes.glob("?" * 32)]) >= 2, 60, "the model is hashed")
    return cluster.nodes[0].state()["instances"][placed["instance"]]["ready"][0]["pid"]


def compare(cluster: Cluster, asked: argparse.Namespace) -> None:
    """Print the figures of each node alone, of both as replicas, and of the split."""
    tokens, answer, cores = asked.tokens, asked.answer, asked.cores
    slow, fast = cluster.nodes
    for number, title in enumerate(("slow node alone", "fast node alone")):
        with quota(cores[number], [load_on(cluster, number)]):
            for streams in asked.streams:
                measure(slow, title, streams, tokens, answer)
        cluster.clear()
    pids = [load_on(cluster, number) for number in (0, 1)]
    with quota(cores[0], pids[:1]), quota(cores[1], pids[1:]):
        for streams in asked.streams:
            measure(slow, "two replicas", streams, tokens, answer)
        for title, where in (("split", fast.node_id()), ("split (auto)", "auto")):
            reply = slow.http.put(f"/models/card/{NAME}", json={"prefill_on": where})
            assert reply.status_code == 200 and reply.json()["in_force"], reply.text
            for streams in asked.streams:
                measure(slow, title, streams, tokens, answer)
    texts = ("computed a prompt", "computed by its own runner")
    for line in slow.log_lines("gateway"):
        if any(text in line["message"] for text in texts):
            facts = {key: line[key] for key in ("node", "seconds", "why") if key in line}
            print_line(f"  {line['message']}: {facts}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1200)
    parser.add_argument("--answer", type=int, default=64)
    parser.add_argument("--streams", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--cores", type=float, nargs=2, default=[0.4, 0.8])
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_cluster(2) as cluster:
        model = random_qwen3(Path(folder) / NAME, context=4096)
        for node in cluster.nodes:
            shutil.copytree(model, node.home / "data" / "models" / NAME)
        eventually(
            lambda: all(NAME in node.http.get("/v1/models").text for node in cluster.nodes),
            60,
            "the model is listed",
        )
        compare(cluster, asked)


if __name__ == "__main__":
    main()
