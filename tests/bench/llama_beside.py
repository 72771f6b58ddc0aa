"""llama-server alone beside shoal with llama-server: the same GGUF file, taking turns.

Run: `python -m tests.bench.llama_beside [--streams 1 4 16] [--repeats 5] [--tokens 64]`. Both have
equally many rows, threads and tokens of KV. Prints tokens per second and TTFT of both, and their
ratio. With `--steered` shoal also answers with log-probabilities, in slices. It never fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from bus.models.gguf import gguf_facts, read_header
from runner.llama.launch import Launch
from runner.llama.wire import LlamaClient
from tests.bench.contestants import Contestant, Shoal
from tests.bench.load import Job, Timing, median_of, run
from tests.bench.models import random_qwen3
from tests.bench.serve import equal_jobs, measure
from tests.harness.gguf_files import from_qwen3
from tests.harness.llama_site import PROGRAM
from tests.harness.nodes import eventually

NAME = "bench-gguf"
ALONE, BESIDE, STEERED = "llama-server alone", "shoal", "shoal, in slices"
ENDS = {"logit_bias": {str(token): -100 for token in range(2039, 2048)}}
"""The bias keeps the random model from markers, which could end its answers."""


class Alone:
    """llama-server as the runner starts it, on a Unix socket."""

    name = ALONE

    def __init__(self, file: Path, rows: int, context: int) -> None:
        with open(file, "rb") as stream:
            facts = gguf_facts(read_header(stream, os.fstat(stream.fileno()).st_size))
        self._socket = file.parent / "alone.sock"
        cores = len(os.sched_getaffinity(0))
        launch = Launch(file, self._socket, rows, rows * context, max(1, cores - 1), facts)
        self._process = subprocess.Popen(
            launch.command(PROGRAM), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        eventually(LlamaClient(self._socket).is_ready, 60, "llama-server is ready")

    def run(self, model: str, jobs: Sequence[Job]) -> list[Timing]:
        return asyncio.run(run(self._socket, model, jobs))

    def processes(self) -> dict[str, psutil.Process]:
        return {"llama-server": psutil.Process(self._process.pid)}

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)


class Served(Shoal):
    """A node with the GGUF model."""

    def _compiling(self) -> bool:
        return False


class Sliced:
    """The same node, asked for log-probabilities."""

    name = STEERED

    def __init__(self, node: Served) -> None:
        self._node = node

    def run(self, model: str, jobs: Sequence[Job]) -> list[Timing]:
        more = [replace(job, more={**job.more, "logprobs": 1}) for job in jobs]
        return self._node.run(model, more)

    def processes(self) -> dict[str, psutil.Process]:
        return self._node.processes()

    def close(self) -> None:
        """The node is closed as the other contestant."""


def taken(
    contestants: Sequence[Contestant], streams: int, tokens: int, repeats: int
) -> list[dict[str, Any]]:
    """Each contestant in turn, `repeats` times over, after one turn that does not count."""
    rows: dict[str, list[dict[str, Any]]] = {each.name: [] for each in contestants}
    for repeat in range(-1, repeats):
        order = list(contestants) if repeat % 2 else list(reversed(contestants))
        for contestant in order:
            chance = random.Random(f"{streams} {repeat} {contestant.name}")
            jobs = [replace(job, more=ENDS) for job in equal_jobs(chance, streams, tokens)]
            row = measure(contestant, "m", jobs)
            if repeat >= 0:
                rows[contestant.name].append(row)
    return [{"streams": streams, "who": name, **median_of(each)} for name, each in rows.items()]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--streams", type=int, nargs="*", default=[1, 4, 16])
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--tokens", type=int, default=64)
    options.add_argument("--steered", action="store_true")
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    rows, context = max(given.streams), 1024
    results: list[dict[str, Any]] = []
    contestants: list[Contestant] = []
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as home:
        folder = random_qwen3(Path(home) / "made")
        config = json.loads((folder / "config.json").read_text())
        pad = {"pad_token_id": config["eos_token_id"]}
        (folder / "config.json").write_text(json.dumps({**config, **pad}))
        file = from_qwen3(folder, Path(home) / "models" / NAME / "bench.gguf")
        (file.parent / "card.toml").write_text(f"context_tokens = {context}\n")
        (file.parent / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
        try:
            contestants.append(Alone(file, rows, context))
            node = Served({"m": file.parent}, BESIDE, SHOAL_RUNNER__MAX_ROWS=str(rows))
            contestants.append(node)
            if given.steered:
                contestants.append(Sliced(node))
            for streams in given.streams:
                found = taken(contestants, streams, given.tokens, given.repeats)
                show(found)
                results += found
        finally:
            for contestant in contestants:
                contestant.close()
    if given.json:
        given.json.parent.mkdir(exist_ok=True)
        given.json.write_text(json.dumps(results, indent=1))
    return 0


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print the rows of one number of streams, each with its ratio to llama-server alone."""
    alone = next(row for row in rows if row["who"] == ALONE)
    for row in rows:
        ratio, later = row["tok_s"] / alone["tok_s"], row["ttft_ms_p50"] - alone["ttft_ms_p50"]
        print(
            f"{row['streams']:>3} streams  {row['who']:<20} {row['tok_s']:8.1f} tokens/s "
            f"({row['tok_s_min']:.0f}-{row['tok_s_max']:.0f})  x {ratio:.3f}  "
            f"TTFT p50 {row['ttft_ms_p50']:7.1f} ms ({later:+.1f})  "
            f"ITL p50 {row['itl_ms_p50']:6.2f} ms  CPU {row['cpu_total_s']:.2f} s  "
            f"errors {row['errors']:.0f}"
        )


if __name__ == "__main__":
    sys.exit(main())
