"""`make bench`: one table and one JSON file; contestants take turns within one run.

Ratios within a run are what counts; absolute figures depend on the machine's mood. Never fails
for a slow figure. Options: --quick (fewer tokens and repeats), --models a,b, --repeats N.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.contestants import Contestant, MlxServer, Raw, Shoal, cpu_s, peak_bytes
from tests.bench.load import Job, median_of, summary
from tests.bench.models import endless_tiny, random_qwen3
from tests.bench.targets import FAST, PLAIN, SHOAL, verdicts
from tests.harness.blas_of_tests import libraries_here
from tests.harness.nodes import ROOT

SENTENCE = "the fish swims in a shoal and the shoal moves as one over the deep blue sea"
WORDS = SENTENCE.split()
LEVELS = (1, 4, 16, 32)


def prompt(chance: random.Random, words: int) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(words))


def equal_jobs(chance: random.Random, count: int, tokens: int) -> list[Job]:
    """Prompts of one length, outputs of one length."""
    return [Job(prompt(chance, 64), tokens) for _ in range(count)]


def mixed_jobs(chance: random.Random, count: int, tokens: int) -> list[Job]:
    """The stated mix: of eight requests one has a prompt of 640 words, one of 320, the others
    16 to 96; outputs from a quarter to the whole of `tokens`."""
    jobs: list[Job] = []
    for number in range(count):
        words = {0: 640, 4: 320}.get(number % 8) or chance.randint(16, 96)
        jobs.append(Job(prompt(chance, words), chance.randint(tokens // 4, tokens)))
    return jobs


def prompt_jobs(chance: random.Random, count: int, _tokens: int) -> list[Job]:
    """Long prompts with hardly an answer: what reading them takes is their TTFT."""
    return [Job(prompt(chance, 640), 4) for _ in range(count)]


MIXES = {"equal": equal_jobs, "mix": mixed_jobs, "prompt": prompt_jobs}


def measure(contestant: Contestant, model: str, jobs: Sequence[Job]) -> dict[str, Any]:
    """One turn of one contestant: its summary and what it cost."""
    processes = contestant.processes()
    before = {name: cpu_s(process) for name, process in processes.items()}
    row = summary(contestant.run(model, jobs))
    spent = {name: max(0.0, cpu_s(process) - before[name]) for name, process in processes.items()}
    row["cpu_s"] = {name: round(seconds, 3) for name, seconds in spent.items()}
    row["peak_mib"] = {name: peak_bytes(p) >> 20 for name, p in processes.items()}
    row["cpu_total_s"] = sum(row["cpu_s"].values())
    return row


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--quick", action="store_true")
    options.add_argument("--models", default="a,b")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--levels", default="")
    options.add_argument("--tree", type=Path, help="a clone of another commit, to run beside")
    options.add_argument("--only", default="", help="names of who takes part, by commas")
    options.add_argument("--out", default=str(ROOT / "bench-results" / "serve.json"))
    asked = options.parse_args()
    levels = [int(n) for n in asked.levels.split(",") if n] or list(LEVELS)
    tokens = 32 if asked.quick else 64
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        made = {
            "a": endless_tiny(Path(folder) / "bench-tiny"),
            "b": random_qwen3(Path(folder) / "bench-30m"),
        }
        models = {key: made[key] for key in asked.models.split(",")}
        contestants: list[Contestant] = []
        try:
            makers: dict[str, Callable[[], Contestant]] = {
                "single": lambda: Raw("single", models),
                "batch": lambda: Raw("batch", models),
                "server": lambda: MlxServer(models),
                SHOAL: lambda: Shoal(models),
                **other_nodes(models),
            }
            if (tree := asked.tree) is not None:
                makers["tree"] = lambda: Shoal(models, f"shoal of {tree.name}", tree.resolve())
            only = asked.only.split(",") if asked.only else list(makers)
            for name in only:
                contestants.append(makers[name]())  # noqa: PERF401  (closed if the next one fails)
            for model in models:
                for level in levels:
                    for mix in ("equal", "prompt") if level == 1 else ("equal", "mix"):
                        rows = round_of(contestants, model, level, mix, tokens, asked.repeats)
                        show(rows)
                        results += rows
        finally:
            for contestant in contestants:
                contestant.close()
    out = Path(asked.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1))
    show(results)
    show_targets(results)
    Console().print(f"written to {out}")
    return 0


def other_nodes(models: dict[str, Path]) -> dict[str, Callable[[], Contestant]]:
    """Nodes that multiply otherwise: with `runner.parity` "fast", and with what was the default
    before anything was measured: OpenBLAS by itself on one thread."""
    found = libraries_here()[:1]
    if not found:
        return {}
    plain = {"SHOAL_RUNNER__BLAS": found[0].path, "SHOAL_RUNNER__BLAS_THREADS": "1"}
    return {
        "fast": lambda: Shoal(models, FAST, SHOAL_RUNNER__PARITY="fast"),
        "plain": lambda: Shoal(models, PLAIN, **plain),
    }


def round_of(
    contestants: Sequence[Contestant], model: str, level: int, mix: str, tokens: int, repeats: int
) -> list[dict[str, Any]]:
    """All contestants in turn, `repeats` times over, each time with fresh prompts."""
    rows: dict[str, list[dict[str, Any]]] = {c.name: [] for c in contestants}
    for repeat in range(-1, repeats):
        for number, contestant in enumerate(contestants):
            if level > 1 and contestant.name.endswith("stream_generate"):
                continue
            chance = random.Random(f"{model}{level}{mix}{repeat}{number}")
            jobs = MIXES[mix](chance, level, tokens * (4 if level == 1 else 1))
            row = measure(contestant, model, jobs)
            if repeat >= 0:
                rows[contestant.name].append(row)
    return [
        {"model": model, "level": level, "mix": mix, "who": name, **median_of(taken),
         "runs": taken}
        for name, taken in rows.items()
        if taken
    ]  # fmt: skip


def show(results: Sequence[dict[str, Any]]) -> None:
    """The table. `x` is the ratio to mlx-lm in process of the same line."""
    table = Table("model", "streams", "who", "tok/s", "spread", "x raw", "x server")
    for name in ("TTFT p50", "p95", "p99", "ITL p50", "p95", "p99", "CPU s", "errors"):
        table.add_column(name, justify="right")
    for row in results:
        same = [
            r for r in results
            if (r["model"], r["level"], r["mix"]) == (row["model"], row["level"], row["mix"])
        ]  # fmt: skip
        single = row["level"] == 1
        raw = next(
            (
                r
                for r in same
                if r["who"].startswith("mlx-lm ") and single == ("stream" in r["who"])
            ),
            row,
        )
        server = next((r for r in same if r["who"] == "mlx_lm.server"), row)
        cells = [f"{row[k]:.1f}" if k in row else "-" for k in (
            "ttft_ms_p50", "ttft_ms_p95", "ttft_ms_p99", "itl_ms_p50", "itl_ms_p95", "itl_ms_p99",
        )]  # fmt: skip
        table.add_row(
            row["model"], f"{row['level']} {row['mix']}", row["who"], f"{row['tok_s']:.0f}",
            f"{row['tok_s_min']:.0f}-{row['tok_s_max']:.0f}",
            f"{row['tok_s'] / raw['tok_s']:.2f}", f"{row['tok_s'] / server['tok_s']:.2f}",
            *cells, f"{row['cpu_total_s']:.1f}", f"{row['errors']:.0f}",
        )  # fmt: skip
    console = Console(width=190 if not sys.stdout.isatty() else None)
    console.print(table)


def show_targets(results: Sequence[dict[str, Any]]) -> None:
    """What was aimed at, and what came of it."""
    table = Table("target", "figure", "aim", "")
    for what, figure, aim, met in verdicts(results):
        table.add_row(what, f"{figure:.2f}", f"{aim:.2f}", "met" if met else "MISSED")
    Console(width=120).print(table)


if __name__ == "__main__":
    sys.exit(main())
