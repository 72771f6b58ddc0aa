"""One rank of a bare loop, in a process of its own: mlx-lm's model and sharding, and nothing else.

`python bare_rank.py MODEL tensor|pipeline`, MLX's ring in the environment. Each input line is
[rows, prompt tokens, steps]; the output line is the seconds that the steps took. What is computed
was agreed beforehand: no plans, no messages, greedy tokens on every rank, one step ahead.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model


def loaded(path: Path, sharding: str) -> Any:
    """This rank's part of the model, in memory."""
    group = mx.distributed.init(strict=True, backend="ring")
    model: Any = load_model(path, lazy=True)[0]
    model.set_dtype(mx.float32)
    if sharding == "tensor":
        model.shard(group)
    else:
        model.model.pipeline(group)
    model.eval()
    mx.eval(model.parameters())
    return model


def decoded_s(model: Any, rows: int, prompt: int, steps: int) -> float:
    """Seconds from the first token of each row to its last of `steps` more."""
    at = mx.arange(rows)[:, None] * 31 + mx.arange(prompt)[None] * 7
    caches = make_prompt_cache(model)
    tokens = mx.argmax(model(at % 1500 + 3, cache=caches)[:, -1], axis=-1)
    mx.eval(tokens)
    began = time.perf_counter()
    for _ in range(steps):
        following = mx.argmax(model(tokens[:, None], cache=caches)[:, -1], axis=-1)
        mx.async_eval(following)
        tokens.tolist()
        tokens = following
    tokens.tolist()
    return time.perf_counter() - began


def main() -> None:
    model = loaded(Path(sys.argv[1]), sys.argv[2])
    print("ready", flush=True)
    for line in sys.stdin:
        rows, prompt, steps = json.loads(line)
        print(decoded_s(model, rows, prompt, steps), flush=True)


if __name__ == "__main__":
    main()
