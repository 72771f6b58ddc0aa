"""Long prefill beside decodes at three prefill shares, what the prefix cache saves, and what
serving adds to the TTFT.

Through HTTP, on a random-weight Qwen3 of about 30 M parameters. Prints ratios within the run
and writes bench-results/latency.json. Options: --shares 0.5,0.7,0.8, --repeats N.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.contestants import Raw, Shoal
from tests.bench.load import Job, Timing, percentile, run, stream
from tests.bench.models import endless_tiny, random_qwen3
from tests.bench.serve import prompt
from tests.harness.nodes import ROOT

MODEL = "bench-30m"
DECODES = 8


def tokens_of(node: Shoal, text: str) -> int:
    """How many tokens the prompt has, by the server's own count."""
    body = {"model": MODEL, "prompt": text, "max_tokens": 1}
    return node.node.http.post("/v1/completions", json=body).json()["usage"]["prompt_tokens"]


def words_for(node: Shoal, chance: random.Random, tokens: int) -> str:
    """A prompt of at least `tokens` tokens, within a few."""
    words = prompt(chance, tokens).split()
    low, high = 1, len(words)
    while low < high:
        middle = (low + high) // 2
        if tokens_of(node, " ".join(words[:middle])) >= tokens:
            high = middle
        else:
            low = middle + 1
    return " ".join(words[:low])


async def together(port: int, decodes: list[Job], long: Job) -> tuple[list[Timing], Timing]:
    """Decodes first; the long prompt arrives when all of them are under way."""
    running = asyncio.gather(*(stream(port, MODEL, job) for job in decodes))
    await asyncio.sleep(1.0)
    timing = await stream(port, MODEL, long)
    return list(await running), timing


def share_row(share: float, repeats: int, model: Path) -> dict[str, Any]:
    node = Shoal({"b": model}, SHOAL_RUNNER__PREFILL_SHARE=str(share))
    port = node.node.base_port
    itl: list[float] = []
    finish: list[float] = []
    try:
        pattern = words_for(node, random.Random(1), 3000)
        for repeat in range(repeats):
            chance = random.Random(repeat)
            alone_itl = asyncio.run(run(port, MODEL, jobs(chance, 200)))
            base = percentile([g for t in alone_itl for g in t.gaps_s], 0.95)
            long = Job(f"{repeat} first {pattern}", 4)
            alone = asyncio.run(stream(port, MODEL, long)).ttft_s
            crowded = Job(f"{repeat} second {pattern}", 4)
            others, timing = asyncio.run(together(port, jobs(chance, 600), crowded))
            gaps = [
                b - a
                for t in others
                for a, b in zip(t.at, t.at[1:], strict=False)
                if timing.began < b <= timing.at[0]
            ]
            itl.append(percentile(gaps, 0.95) / base)
            finish.append(timing.ttft_s / alone)
    finally:
        node.close()
    return {
        "share": share,
        "itl_p95_ratio": statistics.median(itl),
        "itl_target": 1.4 / (1 - share),
        "finish_ratio": statistics.median(finish),
        "finish_target": 1.5 / share,
        "itl_runs": itl,
        "finish_runs": finish,
    }


def jobs(chance: random.Random, tokens: int) -> list[Job]:
    return [Job(prompt(chance, 32), tokens) for _ in range(DECODES)]


def prefix_row(model: Path, repeats: int) -> dict[str, Any]:
    node = Shoal({"b": model})
    port = node.node.base_port
    ratios: list[float] = []
    repeats_ms: list[float] = []
    try:
        pattern = words_for(node, random.Random(2), 2000)
        for repeat in range(repeats):
            shared = f"{repeat} {pattern}"
            first = asyncio.run(stream(port, MODEL, Job(shared + " one", 4)))
            second = asyncio.run(stream(port, MODEL, Job(shared + " two fish", 4)))
            again = asyncio.run(stream(port, MODEL, Job(shared + " two fish", 4)))
            assert again.error is None and second.error is None
            ratios.append(second.ttft_s / first.ttft_s)
            repeats_ms.append(again.ttft_s / first.ttft_s)
    finally:
        node.close()
    return {
        "prefix_ttft_ratio": statistics.median(ratios),
        "prefix_target": 0.25,
        "exact_repeat_ratio": statistics.median(repeats_ms),
        "runs": ratios,
    }


def added_row(models: dict[str, Path], repeats: int) -> list[dict[str, Any]]:
    """TTFT through HTTP less that of mlx-lm in process, prompts of 32 words, in turn."""
    raw, node = Raw("single", models), Shoal(models)
    rows: list[dict[str, Any]] = []
    try:
        for model in models:
            firsts: dict[str, list[float]] = {raw.name: [], node.name: []}
            for number in range(-2, repeats):
                for who in (raw, node):
                    chance = random.Random(f"{model}{number}{who.name}")
                    (timing,) = who.run(model, [Job(prompt(chance, 32), 2)])
                    if number >= 0:
                        firsts[who.name].append(1000 * timing.ttft_s)
            alone, served = (statistics.median(firsts[who.name]) for who in (raw, node))
            rows.append(
                {"model": model, "raw_ms": alone, "shoal_ms": served, "added_ms": served - alone}
            )
    finally:
        raw.close()
        node.close()
    return rows


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--shares", default="0.5,0.7,0.8")
    options.add_argument("--repeats", type=int, default=3)
    asked = options.parse_args()
    found: dict[str, Any] = {"shares": [], "prefix": {}, "added": []}

    def keep() -> None:
        """What was measured stays, whatever happens to the rest."""
        out = ROOT / "bench-results" / "latency.json"
        out.parent.mkdir(exist_ok=True)
        out.write_text(json.dumps(found, indent=1))

    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        model = random_qwen3(Path(folder) / MODEL)
        tiny = endless_tiny(Path(folder) / "bench-tiny")
        found["added"] = added_row({"a": tiny, "b": model}, 20 if asked.repeats >= 3 else 5)
        keep()
        found["prefix"] = prefix_row(model, 10 if asked.repeats >= 3 else 3)
        keep()
        for share in asked.shares.split(","):
            found["shares"].append(share_row(float(share), asked.repeats, model))
            keep()
    show(found)


def show(found: dict[str, Any]) -> None:
    """Each figure beside its aim."""
    shares, prefix, added = found["shares"], found["prefix"], found["added"]
    table = Table("prefill share", "ITL p95 x", "at most", "finish x", "at most")
    for row in shares:
        keys = ("share", "itl_p95_ratio", "itl_target", "finish_ratio", "finish_target")
        table.add_row(*(f"{row[key]:.2f}" for key in keys))
    Console().print(table)
    Console().print(
        f"shared prefix of 2,000 tokens: TTFT {prefix['prefix_ttft_ratio']:.2f} x the first's "
        f"(at most 0.25); exact repeat {prefix['exact_repeat_ratio']:.2f} x"
    )
    for row in added:
        Console().print(
            f"({row['model']}) TTFT p50 {row['shoal_ms']:.1f} ms, "
            f"in process {row['raw_ms']:.1f} ms: "
            f"{row['added_ms']:.1f} ms added (at most 5)"
        )


if __name__ == "__main__":
    main()
