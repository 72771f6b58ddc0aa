"""KV on disk: time to the first token of a long prompt, and what writing costs other rows.

A random Qwen3 of about 30 M parameters reads a prompt of 8,000 tokens: cold, from the prefix cache
in memory, from disk after the model was unloaded and loaded again, and after `kill -9` of its
runner. Then a row decodes while the same writer writes files of that size on this machine, and
while it does not, in turn. Needs a quiet machine.

    python -m tests.bench.kv_disk [--tokens 8000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from bus.models.kv import DiskRun, KvKey, KvLimits, StoredPart
from runner.engine import EntryId
from runner.mlx.kv.run_files import RunFiles
from tests.bench.models import random_qwen3
from tests.harness.nodes import Node, eventually, kill

NAME = "long30m"
CONTEXT = 16_384


def text_of(tokens: int, salt: int) -> list[int]:
    chance = random.Random(salt)
    return [chance.randrange(300, 2000) for _ in range(tokens)]


def first_token(node: Node, prompt: list[int]) -> tuple[float, int, str]:
    """Seconds until the first token, the cached tokens, and the text."""
    body: dict[str, Any] = {
        "model": NAME,
        "prompt": prompt,
        "max_tokens": 8,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began, first, cached, text = time.perf_counter(), 0.0, 0, ""
    with node.http.stream("POST", "/v1/completions", json=body, timeout=600.0) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if event.get("choices") and event["choices"][0]["text"]:
                first = first or time.perf_counter() - began
                text += event["choices"][0]["text"]
            if event.get("usage"):
                cached = event["usage"]["prompt_tokens_details"]["cached_tokens"]
    return first, cached, text


def decode_gaps(node: Node, count: int) -> list[float]:
    """Seconds between the tokens of one short row."""
    stream = node.stream(
        "Tell me a story.", model=NAME, max_tokens=count, ignore_eos=True, temperature=0
    )
    stream.wait(600)
    return [after - before for before, after in zip(stream.at[3:], stream.at[4:], strict=False)]


def writing(files: RunFiles, salt: int, megabytes: int) -> None:
    """Write a run of so many megabytes, as a runner does after a prompt."""
    length = 64
    width = megabytes * (1 << 20) // 4 // length
    content = np.random.default_rng(salt).bytes(width * length * 4)
    run = DiskRun(f"{salt:032x}-{length}", b"", array("i", range(length)))
    files.write(EntryId(salt), run, [StoredPart("F32", (1, 1, length, width), memoryview(content))])


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def print_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def written(node: Node) -> int:
    """How many runs are on the node's disk."""
    return len(list((node.home / "state" / "kv" / NAME).glob("*/*.safetensors")))


def generations(node: Node) -> dict[str, int]:
    """The generations of the ready instances of the model."""
    instances = node.state()["instances"].items()
    return {
        name: one["generation"]
        for name, one in instances
        if one["model"] == NAME and one["status"] == "ready"
    }


def kill_runner(node: Node) -> None:
    """Kill the model's runner, and wait until another one is ready."""
    before = generations(node)
    instances = node.state()["instances"].values()
    kill(next(rank["pid"] for one in instances if one["model"] == NAME for rank in one["ready"]))
    eventually(lambda: generations(node) not in ({}, before), 60, "the model is loaded again")


def times_to_first_token(node: Node, tokens: int, rounds: int) -> None:
    """Print the times of each round, and their medians as parts of the cold one."""
    whole: dict[str, list[float]] = {"cold": [], "memory": [], "unload": [], "kill": []}
    for number in range(rounds):
        prompt = text_of(tokens, number)
        cold, cached, wanted = first_token(node, prompt)
        assert cached == 0, cached
        eventually(lambda n=number: written(node) > n, 60, "the KV is written")
        whole["cold"].append(cold)
        for kind in ("memory", "unload", "kill"):
            if kind == "unload":
                assert node.shoal("stop", NAME).returncode == 0
                assert node.shoal("load", NAME).returncode == 0
            if kind == "kill":
                kill_runner(node)
            seconds, cached, text = first_token(node, prompt)
            print_line(f"  round {number} {kind}: {seconds:.3f} s, {cached} cached, "
                       f"same text {text == wanted}")  # fmt: skip
            whole[kind].append(seconds)
    cold = statistics.median(whole["cold"])
    for kind, seconds in whole.items():
        middle = statistics.median(seconds)
        print_line(f"{kind:7} {middle:7.3f} s  {middle / cold:5.2f} x cold")


def beside_writing(node: Node, rounds: int) -> None:
    """Print the gaps between tokens with and without a writer beside the runner."""
    gaps: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        limits = KvLimits(Path(folder) / "kv", 1 << 30, 64, 3600.0)
        files = RunFiles(limits, "beside", {"": KvKey("key", "how")})
        salt = 0
        decode_gaps(node, 100)
        for number in range(2 * rounds):
            is_writing = bool(number % 2)
            if is_writing:
                for _ in range(4):
                    salt += 1
                    writing(files, salt, 75)
            gaps[is_writing] += decode_gaps(node, 200)
        files.close()
    for is_writing, seconds in gaps.items():
        name, gap_count = "writing" if is_writing else "quiet", len(seconds)
        p50, p99 = (percentile(seconds, share) * 1e3 for share in (0.5, 0.99))
        print_line(f"{name:8} ITL p50 {p50:.2f} ms, p99 {p99:.2f} ms ({gap_count} gaps)")
    print_line(f"p99 ratio {percentile(gaps[True], 0.99) / percentile(gaps[False], 0.99):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    node = Node()
    try:
        folder = node.home / "data" / "models" / NAME
        folder.mkdir(parents=True)
        random_qwen3(folder, context=CONTEXT)
        node.up()
        eventually(
            lambda: any(m["id"] == NAME for m in node.http.get("/v1/models").json()["data"]),
            60, "the model is listed",
        )  # fmt: skip
        assert node.shoal("load", NAME).returncode == 0
        times_to_first_token(node, asked.tokens, asked.rounds)
        beside_writing(node, asked.rounds)
    finally:
        node.close()


if __name__ == "__main__":
    main()
