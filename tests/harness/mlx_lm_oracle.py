"""What mlx-lm itself says, greedily, to prompts: the oracle, in a process of its own.

`python truth.py MODEL` reads [[prompt, tokens], ...] from standard input and writes, for each,
{"text": ..., "pieces": [...], "margins": [...]}: the text of each token and the gap between the two
likeliest log-probabilities where it was chosen.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from typing import Any

import mlx.core as mx
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache


def greedy(model: Any, tokenizer: Any, prompt: str, count: int) -> dict[str, Any]:
    tokens = mx.array(tokenizer.encode(prompt))[None]
    cache = make_prompt_cache(model)
    ends = set(tokenizer.eos_token_ids)
    made: list[int] = []
    margins: list[float] = []
    for _ in range(count):
        logits = model(tokens, cache=cache)[0, -1].astype(mx.float32)
        best = mx.topk(logits, 2)
        token = int(mx.argmax(logits).item())
        margins.append(abs(float((best[0] - best[1]).item())))
        if token in ends:
            break
        made.append(token)
        tokens = mx.array([[token]])
    # Not mlx-lm's streaming detokenizer: it drops a space at the beginning of a text.
    texts = [tokenizer.decode(made[:count]) for count in range(len(made) + 1)]
    pieces = [after[len(before) :] for before, after in pairwise(texts)]
    return {"text": "".join(pieces), "pieces": pieces, "margins": margins}


def main() -> None:
    model, tokenizer = load(sys.argv[1])
    model.set_dtype(mx.float32)
    asked = json.load(sys.stdin)
    out = [greedy(model, tokenizer, prompt, count) for prompt, count in asked]
    print(json.dumps(out))


if __name__ == "__main__":
    main()
