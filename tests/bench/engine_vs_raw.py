"""The engine's loop against mlx-lm's own, in one process, interleaved. Run by hand:

    LD_PRELOAD=.../libopenblas.so.0 OPENBLAS_NUM_THREADS=1 \
        python -P tests/bench/engine_vs_raw.py [--sizes a,b] [--rows 1,4,16,32] [--prefill]

Ratios are medians of runs that alternate; processor time is given beside wall-clock, for a
machine that others use too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.generate  # noqa: F401  (the package attribute shadows the module)
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3
from mlx_lm.utils import load_model

from bus.wire.ids import TokenId
from bus.wire.messages.requests import Sampling
from runner.engine import PrefillChunk, RowId, RowSpec, StepPlan
from runner.mlx.engine import MlxEngine, load_engine

raw = sys.modules["mlx_lm.generate"]
Timed = tuple[float, float]
"""Seconds of wall-clock and of processor."""

SIZES: dict[str, dict[str, Any]] = {
    "a": {
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 48,
        "vocab_size": 2048,
    },
    "b": {
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "vocab_size": 8192,
    },
}


def write_model(folder: Path, size: dict[str, Any]) -> None:
    """A random float32 Qwen3 of 8 layers."""
    config = {
        "model_type": "qwen3",
        "num_hidden_layers": 8,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        **size,
    }
    mx.random.seed(0)
    model = qwen3.Model(qwen3.ModelArgs.from_dict(config))
    folder.mkdir(parents=True)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    (folder / "config.json").write_text(json.dumps(config))


def groups_of(lengths: Sequence[int]) -> list[list[int]]:
    """Prompts of like length together: padding within 25 %, at most 1,024 positions."""
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        widest = lengths[index]
        if groups:
            group = [*groups[-1], index]
            cost = widest * len(group)
            if cost <= 1024 and cost <= 1.25 * sum(lengths[i] for i in group):
                groups[-1] = group
                continue
        groups.append([index])
    return groups


class EnginePlayer:
    """Runs a set of prompts through the engine as a scheduler would, one step ahead."""

    def __init__(self, engine: MlxEngine) -> None:
        self._engine = engine
        self._names = itertools.count(1)

    def run(self, prompts: list[list[int]], counts: list[int]) -> list[list[int]]:
        specs = [
            RowSpec(
                RowId(next(self._names)), tuple(map(TokenId, prompt)), Sampling(temperature=0), 1
            )
            for prompt in prompts
        ]
        index = {spec.row: i for i, spec in enumerate(specs)}
        said: list[list[int]] = [[] for _ in prompts]
        waiting = groups_of([len(prompt) for prompt in prompts])
        running: list[RowId] = []
        gone: list[RowId] = []
        left = len(prompts)
        for step in itertools.count():
            group = waiting.pop(0) if waiting else []
            chunks = tuple(PrefillChunk(specs[i].row, 0, len(prompts[i])) for i in group)
            self._engine.issue(
                StepPlan(
                    step,
                    release=tuple(gone),
                    admit=tuple(specs) if step == 0 else (),
                    prefill=(chunks,) if chunks else (),
                    decode=tuple(running),
                )
            )
            gone = []
            running += [specs[i].row for i in group]
            if step == 0:
                continue
            for token in self._engine.read().tokens:
                at = index[token.row]
                if len(said[at]) == counts[at]:
                    continue
                said[at].append(token.token)
                if len(said[at]) == counts[at]:
                    gone.append(token.row)
                    running.remove(token.row)
                    left -= 1
            if not left:
                self._engine.read()
                self._engine.issue(StepPlan(step + 1, release=tuple(gone)))
                self._engine.read()
                return said
        raise AssertionError


def run_single(model: Any, prompts: list[list[int]], counts: list[int]) -> list[list[int]]:
    steps = raw.generate_step(mx.array(prompts[0]), model, max_tokens=counts[0])
    return [[int(token) for token, _ in steps]]


def run_batched(
    model: Any, prompts: list[list[int]], counts: list[int], prefill_rows: int
) -> list[list[int]]:
    generator = raw.BatchGenerator(model, prefill_batch_size=prefill_rows, prefill_step_size=512)
    said: dict[int, list[int]] = {uid: [] for uid in generator.insert(prompts, counts)}
    left = len(said)
    while left:
        for response in generator.next_generated():
            said[response.uid].append(response.token)
            left -= response.finish_reason is not None
    generator.close()
    return list(said.values())


def timed(work: Callable[[], Any]) -> tuple[Timed, Any]:
    wall, processor = time.perf_counter(), time.process_time()
    made = work()
    return (time.perf_counter() - wall, time.process_time() - processor), made


def compare(
    name: str, contestants: dict[str, Callable[[], list[list[int]]]], tokens: int, repeats: int
) -> None:
    """One line: each contestant's tokens/s, and the engine's ratios to the best other."""
    times: dict[str, list[Timed]] = {key: [] for key in contestants}
    said: dict[str, list[list[int]]] = {}
    for _ in range(repeats):
        for key, run in contestants.items():
            spent, said[key] = timed(run)
            times[key].append(spent)
    wall = {key: statistics.median(t[0] for t in spent) for key, spent in times.items()}
    processor = {key: statistics.median(t[1] for t in spent) for key, spent in times.items()}
    others = [key for key in contestants if key != "engine"]
    best = min(others, key=lambda key: wall[key])
    same = sum(a == b for a, b in zip(said["engine"], said[best], strict=True))
    speeds = "  ".join(f"{key} {tokens / wall[key]:7.1f}" for key in contestants)
    sys.stdout.write(
        f"{name:14} tok/s: {speeds}   engine/{best}: wall {wall[best] / wall['engine']:.2f} x, "
        f"per cpu second {processor[best] / processor['engine']:.2f} x, "
        f"same text {same}/{len(said[best])}\n"
    )
    sys.stdout.flush()


def compare_all(engine: MlxEngine, model: Any, size: str, rows: int, repeats: int) -> None:
    chance = random.Random(rows)
    vocabulary = SIZES[size]["vocab_size"]
    player = EnginePlayer(engine)
    for mix in ("equal", "mixed") if rows > 1 else ("equal",):
        lengths = [
            64 if mix == "equal" else chance.choice((16, 32, 64, 128, 256)) for _ in range(rows)
        ]
        counts = [
            64 if mix == "equal" else chance.choice((8, 16, 32, 64, 128)) for _ in range(rows)
        ]
        prompts = [[chance.randrange(vocabulary) for _ in range(n)] for n in lengths]
        contestants: dict[str, Callable[[], list[list[int]]]] = {
            "engine": lambda p=prompts, c=counts: player.run(p, c)
        }
        if rows == 1:
            contestants["single"] = lambda p=prompts, c=counts: run_single(model, p, c)
        else:
            contestants["batch8"] = lambda p=prompts, c=counts: run_batched(model, p, c, 8)
            contestants["batch1"] = lambda p=prompts, c=counts: run_batched(model, p, c, 1)
        for run in contestants.values():
            run()
        compare(f"{size} {rows:2} {mix}", contestants, sum(counts), repeats)


def prefill_costs(engine: MlxEngine, size: str, repeats: int) -> None:
    """Milliseconds of a chunk by its length, its depth, and the rows of its group."""
    names = itertools.count(10**6)
    shapes = [(1, 0, n) for n in (1, 8, 16, 32, 64, 128, 256, 512)]
    shapes += [(1, depth, n) for depth in (512, 2048) for n in (16, 64, 256)]
    shapes += [(rows, 0, n) for rows in (2, 4, 8) for n in (16, 64)]
    shapes += [(4, 512, 64)]
    spent: dict[tuple[int, int, int], list[Timed]] = {shape: [] for shape in shapes}
    for _ in range(repeats):
        for rows, depth, count in shapes:
            specs = [
                RowSpec(RowId(next(names)), (TokenId(5),) * (depth + count + 1), Sampling(), 1)
                for _ in range(rows)
            ]
            first = tuple(PrefillChunk(spec.row, 0, depth) for spec in specs)
            chunk = tuple(PrefillChunk(spec.row, depth, depth + count) for spec in specs)
            engine.issue(StepPlan(0, admit=tuple(specs), prefill=(first,) if depth else ()))
            engine.read()

            def work(chunk: tuple[PrefillChunk, ...] = chunk) -> None:
                engine.issue(StepPlan(1, prefill=(chunk,)))
                engine.read()

            spent[rows, depth, count].append(timed(work)[0])
            engine.issue(StepPlan(2, release=tuple(spec.row for spec in specs)))
            engine.read()
    for (rows, depth, count), times in spent.items():
        best = min(t[0] for t in times) * 1e3
        processor = statistics.median(t[1] for t in times) * 1e3
        sys.stdout.write(
            f"{size} prefill {rows} x {count:3} at {depth:4}: {best:7.2f} ms best, "
            f"{processor:7.2f} processor, {best * 1e3 / rows / count:7.1f} us a token\n"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="a,b")
    parser.add_argument("--rows", default="1,4,16,32")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--prefill", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for size in chosen.sizes.split(","):
            path = Path(folder) / size
            write_model(path, SIZES[size])
            engine = load_engine(path, memory_limit_bytes=8 << 30)
            model, _ = load_model(path)
            if chosen.prefill:
                prefill_costs(engine, size, chosen.repeats)
                continue
            for rows in map(int, chosen.rows.split(",")):
                compare_all(engine, model, size, rows, chosen.repeats)


if __name__ == "__main__":
    main()
