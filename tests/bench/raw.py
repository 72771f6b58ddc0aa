"""mlx-lm itself, in a process of its own: one line of JSON in, one line of JSON out.

`python raw.py MODEL`; each input line {"mode": "single"|"batch", "jobs": [[prompt, tokens], ...]}.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import mlx.core as mx
from mlx_lm import load, stream_generate
from mlx_lm.generate import BatchGenerator


def single(model: Any, tokenizer: Any, jobs: list[tuple[str, int]]) -> list[dict[str, Any]]:
    """Each job alone, one after another."""
    out: list[dict[str, Any]] = []
    for prompt, count in jobs:
        began = time.perf_counter()
        at = [
            time.perf_counter() for _ in stream_generate(model, tokenizer, prompt, max_tokens=count)
        ]
        out.append({"began": began, "at": at, "ended": time.perf_counter(), "tokens": count})
    return out


def batch(model: Any, tokenizer: Any, jobs: list[tuple[str, int]]) -> list[dict[str, Any]]:
    """All jobs in one BatchGenerator with its default settings."""
    began = time.perf_counter()
    generator = BatchGenerator(model, stop_tokens=[])
    prompts = [tokenizer.encode(prompt) for prompt, _ in jobs]
    uids = generator.insert(prompts, [count for _, count in jobs])
    at: dict[int, list[float]] = {uid: [] for uid in uids}
    left = set(uids)
    while left:
        for response in generator.next_generated():
            at[response.uid].append(time.perf_counter())
            if response.finish_reason is not None:
                left.discard(response.uid)
    generator.close()
    ended = time.perf_counter()
    return [
        {"began": began, "at": at[uid], "ended": at[uid][-1], "tokens": len(at[uid])}
        for uid in uids
        if ended
    ]


def main() -> None:
    model, tokenizer = load(sys.argv[1])
    model.set_dtype(mx.float32)
    mx.eval(model.parameters())
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        jobs = [(prompt, count) for prompt, count in asked["jobs"]]
        work = single if asked["mode"] == "single" else batch
        print(json.dumps(work(model, tokenizer, jobs)), flush=True)


if __name__ == "__main__":
    main()
