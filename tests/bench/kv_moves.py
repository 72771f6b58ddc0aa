"""KV over links of known rates: time to the first token of a long prompt, computed and copied.

Two nodes, each in a network namespace, whose wires are shaped. A random Qwen3 of about 30 M
parameters reads a prompt of 8,000 tokens on the first node: cold, then warm from memory. Then the
model is placed on the second node, which copies the KV or, over a slow wire, computes the prompt.
Needs root on Linux, and a quiet machine.

    python -m tests.bench.kv_moves [--tokens 8000] [--megabits 10000 1000 4]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from bus.models.kv import kv_files
from tests.bench.kv_disk import CONTEXT, NAME, first_token, print_line, text_of
from tests.bench.models import random_qwen3
from tests.harness.clusters import Cluster, running_cluster
from tests.harness.nodes import Node, eventually
from tests.harness.rated_wires import rated_wires


def measured(node: Node, peer: Node) -> float:
    """The bytes per second that a node has measured to another; 0: not measured yet."""
    links = node.http.get("/state").json()["telemetry"]["links"].get(node.node_id(), {})
    there = [link for link in links.get("links", ()) if link["peer"] == peer.node_id()]
    speeds = [link["bytes_per_s"] for link in there]
    return max(speeds, default=0.0)


def moves(node: Node) -> dict[str, int]:
    """What the second node's runner counted."""
    counts: dict[str, int] = {}
    for line in node.http.get("/metrics").text.splitlines():
        if line.startswith("shoal_kv_mov") and NAME in line and node.node_id() in line:
            counts[line.partition("{")[0].removeprefix("shoal_kv_")] = int(float(line.split()[-1]))
    return counts


def at_rate(cluster: Cluster, model: Path, tokens: int, megabits: float) -> None:
    """Print the times over wires of one rate."""
    first, second = cluster.nodes
    for node in cluster.nodes:
        shutil.copytree(model, node.home / "data" / "models" / NAME)
    eventually(lambda: all(NAME in node.http.get("/v1/models").text for node in cluster.nodes),
               60, "the model is listed")  # fmt: skip
    speed = eventually(lambda: measured(second, first), 120, "the link is measured")
    cluster.place(NAME, excluded_nodes=[second.node_id()], seconds=300)
    prompt = text_of(tokens, 1)
    cold, cached, wanted = first_token(first, prompt)
    assert cached == 0, cached
    root = first.home / "state" / "kv"
    eventually(lambda: [file for file in kv_files(root) if file.tokens], 120, "the KV is written")
    warm, _, _ = first_token(first, prompt)
    size = sum(file.size_bytes for file in kv_files(root))
    cluster.clear()
    cluster.place(NAME, excluded_nodes=[first.node_id()], asker=1, seconds=300)
    there, cached, text = first_token(second, prompt)
    print_line(
        f"{megabits:g} Mbit/s (measured {speed * 8e-6:.0f}), {size / 1e6:.0f} MB: "
        f"cold {cold:.2f} s, warm {warm:.2f} s, on the other node {there:.2f} s "
        f"({cached} cached, same text {text == wanted}); {moves(second)}"
    )
    shown = ("size_bytes", "seconds", "bytes_per_s", "computing_s")
    for line in second.log_lines("worker"):
        if "KV of a prompt" in line["message"]:
            facts = ", ".join(f"{key} {line[key]}" for key in shown if key in line)
            print_line(f"  {line['message']}: {facts}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--megabits", type=float, nargs="+", default=[10_000.0, 1_000.0, 4.0])
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = random_qwen3(Path(folder), context=CONTEXT)
        for megabits in asked.megabits:
            with rated_wires(2, megabits * 1e6) as wires, running_cluster(2, wires) as cluster:
                at_rate(cluster, model, asked.tokens, megabits)


if __name__ == "__main__":
    main()
