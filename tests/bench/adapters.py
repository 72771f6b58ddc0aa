"""Decoding 16 rows of two adapters and of none against 16 rows of the model alone. Run by hand:

    LD_PRELOAD=.../libopenblas.so.0 OPENBLAS_NUM_THREADS=1 \\
        python -P tests/bench/adapters.py [--model FOLDER] [--rows 16] [--rounds 7]

Without a model it is the bundled one with two adapters of random matrices, rank 8, of queries,
values and MLP outputs. Rounds alternate; the ratio is that of the medians, in tokens a second.
Beside it: rows of one adapter, and the model without any adapters in its folder.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bus.wire.ids import TokenId  # noqa: E402
from bus.wire.messages.requests import Sampling  # noqa: E402
from runner.engine import PrefillChunk, RowId, RowSpec, StepPlan  # noqa: E402
from runner.mlx.engine import MlxEngine, load_engine  # noqa: E402
from tests.harness.lora import draw_adapter  # noqa: E402

STEPS = 24
PROMPT = 32
_rows = itertools.count(1)


def decode_s(engine: MlxEngine, steps: itertools.count[int], names: Sequence[str]) -> float:
    """Seconds of a decode step of rows with these adapters, prefilled before."""
    rows = [
        RowSpec(
            RowId(next(_rows)),
            tuple(TokenId(9 + (at * 31 + step * 7) % 200) for step in range(PROMPT)),
            Sampling(temperature=0.0),
            seed=1,
            adapter=name,
        )
        for at, name in enumerate(names)
    ]
    chunks = tuple(PrefillChunk(row.row, 0, PROMPT) for row in rows)
    engine.issue(StepPlan(next(steps), admit=tuple(rows), prefill=(chunks,)))
    engine.read()
    decode = tuple(row.row for row in rows)
    engine.issue(StepPlan(next(steps), decode=decode))
    engine.read()
    began = time.perf_counter()
    engine.issue(StepPlan(next(steps), decode=decode))
    for _ in range(STEPS - 1):
        engine.issue(StepPlan(next(steps), decode=decode))
        assert not engine.read().failures
    engine.read()
    took = time.perf_counter() - began
    engine.issue(StepPlan(next(steps), release=decode))
    engine.read()
    return took / STEPS


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = asked.model
        if model is None:
            model = Path(folder) / "tiny"
            ignored = shutil.ignore_patterns("make", "__*")
            shutil.copytree(ROOT / "conf" / "tiny", model, ignore=ignored)
            for seed, name in enumerate(("one", "two")):
                draw_adapter(model, model / "adapters" / name, seed=seed, rank=8)
        bare = Path(folder) / "bare"
        shutil.copytree(model, bare, ignore=shutil.ignore_patterns("adapters"))
        engines = {one: load_engine(one, memory_limit_bytes=8 << 30) for one in (model, bare)}
        first, *_ = names = sorted(engines[model].facts.adapters)
        mixed = ["", *names]
        kinds = {
            "the model alone": (model, [""] * asked.rows),
            "mixed": (model, [mixed[at % len(mixed)] for at in range(asked.rows)]),
            "one adapter": (model, [first] * asked.rows),
            "no adapters beside it": (bare, [""] * asked.rows),
        }
        steps = {one: itertools.count(1) for one in engines}
        took: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(asked.rounds):
            for kind, (one, rows) in kinds.items():
                took[kind].append(decode_s(engines[one], steps[one], rows))
        base = statistics.median(took["the model alone"])
        for kind, times in took.items():
            middle = statistics.median(times)
            print(
                f"{kind:22} {1000 * middle:7.2f} ms a step  {asked.rows / middle:7.0f} tokens/s"
                f"  {base / middle:5.2f} x the model alone"
            )


if __name__ == "__main__":
    main()
