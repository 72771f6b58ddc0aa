"""Texts per second of all-MiniLM-L6-v2: this engine beside sentence-transformers. Run by hand:

    python -m tests.bench.embeddings --theirs PYTHON [--texts 128] [--rounds 3] [--json FILE]

PYTHON is an interpreter that has sentence-transformers; it is no dependency of this project, and
without it only the engine's figures are given. Each side runs in a process of its own, by turns,
with one thread for each usable core, on texts of 5 to 60 words; tokenising counts on both sides.
Ours has OpenBLAS preloaded where the system has it, as its runners have. Ratios are of medians.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

BATCHES = (1, 64)
WORDS = [
    "the",
    "of",
    "a",
    "model",
    "river",
    "window",
    "quiet",
    "runs",
    "over",
    "under",
    "harbour",
    "engine",
    "paper",
    "light",
    "winter",
    "green",
    "seventeen",
    "because",
    "moves",
    "slowly",
    "people",
    "machine",
    "answer",
    "question",
    "north",
    "table",
    "remember",
    "bright",
]


def texts_of(count: int) -> list[str]:
    """Texts that are the same in each run."""
    chance = random.Random(5)
    return [" ".join(chance.choices(WORDS, k=chance.randint(5, 60))) for _ in range(count)]


def seconds(embed: Callable[[Sequence[str]], object], texts: Sequence[str], batch: int) -> float:
    """How long texts take in batches of so many; a first batch is not counted."""
    embed(texts[:batch])
    begun = time.perf_counter()
    for at in range(0, len(texts), batch):
        embed(texts[at : at + batch])
    return time.perf_counter() - begun


def ours(folder: Path) -> Callable[[Sequence[str]], object]:
    from runner.mlx.embedding import EmbeddingEngine
    from runner.text import EmbeddingInputs

    inputs, engine = EmbeddingInputs.load(folder), EmbeddingEngine.load(folder)
    return lambda texts: engine.embed([inputs.prepare(one, cut=True).tokens for one in texts])


def theirs(folder: Path, cores: int) -> Callable[[Sequence[str]], object]:
    import torch  # pyright: ignore
    from sentence_transformers import SentenceTransformer  # pyright: ignore

    torch.set_num_threads(cores)
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    return lambda texts: model.encode(list(texts), batch_size=len(texts))


def side(name: str, folder: Path, count: int, batch: int, cores: int) -> None:
    """Measure one side in this process, and print its texts per second."""
    embed = ours(folder) if name == "ours" else theirs(folder, cores)
    texts = texts_of(count if batch > 1 else count // 4)
    print(json.dumps(len(texts) / seconds(embed, texts, batch)))


def measured(python: str, name: str, folder: Path, count: int, batch: int, cores: int) -> float:
    variables = dict(os.environ)
    if name == "ours":
        from tests.harness.embed_texts import fast_blas

        variables |= (fast_blas() or {}) | {"OPENBLAS_NUM_THREADS": str(cores)}
    told = [name, str(folder), str(count), str(batch), str(cores)]
    done = subprocess.run(
        [python, "-m", "tests.bench.embeddings", "--side", *told],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    return float(json.loads(done.stdout.splitlines()[-1]))


def table(python: str | None, count: int, rounds: int) -> dict[str, Any]:
    """Measure both sides by turns, and return texts per second and their ratios by batch."""
    # the other side's interpreter has nothing of shoal's
    from conf.blas.libraries import usable_cores
    from tests.harness.minilm import minilm_folder

    folder, cores = minilm_folder(), usable_cores()
    pythons = {"ours": sys.executable} | ({} if python is None else {"theirs": python})
    found: dict[str, Any] = {"cores": cores, "texts": count, "rounds": rounds}
    for batch in BATCHES:
        runs: dict[str, list[float]] = {name: [] for name in pythons}
        for _ in range(rounds):
            for name, interpreter in pythons.items():
                runs[name].append(measured(interpreter, name, folder, count, batch, cores))
        medians = {name: statistics.median(values) for name, values in runs.items()}
        found[f"batch {batch}"] = medians
        if python is not None:
            medians["ratio"] = medians["ours"] / medians["theirs"]
        print(f"batch {batch}: " + ", ".join(f"{k} {v:.2f}" for k, v in medians.items()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--theirs")
    parser.add_argument("--texts", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if asked.theirs is None:
        print("no --theirs: sentence-transformers is not measured")
    found = table(asked.theirs, asked.texts, asked.rounds)
    if asked.json is not None:
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        named, where, *figures = sys.argv[2:]
        side(named, Path(where), *map(int, figures))
    else:
        main()
