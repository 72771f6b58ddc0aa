# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
# (mlx_lm is partially typed)
"""Talks to mlx-lm alone: generates greedy tokens with plain mlx-lm, without shoal's code.

It runs as a script, so that no module of shoal is imported. It reads {"model", "precision",
"prompts", "count", "top", "whole"} from standard input. `precision` is "float32" or "stored". It
writes {"rows", "version"}. For each prompt, `rows` has `count` steps; a step has the `top`
likeliest tokens as [token, logprob], likeliest first. If `whole` is true, it also writes `next`:
the log-probability of every token after the last prompt.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model


def greedy(model: Any, prompt: list[int], count: int, top: int) -> list[list[list[float]]]:
    """Generate `count` tokens after a prompt. Return the `top` likeliest tokens of each step, as
    [token, logprob]."""
    steps: list[list[list[float]]] = []
    for _, logprobs in generate_step(mx.array(prompt), model, max_tokens=count):
        values = logprobs.astype(mx.float32)
        order: Any = mx.argsort(-values)[:top]
        steps.append(
            [list(pair) for pair in zip(order.tolist(), _floats(values[order]), strict=True)]
        )
    return steps


def next_logprobs(model: Any, prompt: list[int]) -> list[float]:
    """Return the log-probability of every token after a prompt."""
    for _, logprobs in generate_step(mx.array(prompt), model, max_tokens=1):
        return _floats(logprobs.astype(mx.float32))
    return []


def _floats(array: mx.array) -> list[float]:
    values: Any = array.tolist()
    return values


def main() -> None:
    """Read the request from standard input, and write the result to standard output."""
    question = json.load(sys.stdin)
    model, _ = load_model(Path(question["model"]))
    if question["precision"] == "float32":
        model.set_dtype(mx.float32)
    prompts = question["prompts"]
    rows = [greedy(model, prompt, question["count"], question["top"]) for prompt in prompts]
    answer: dict[str, Any] = {"rows": rows, "version": mlx_lm.__version__}
    if question.get("whole"):
        answer["next"] = next_logprobs(model, prompts[-1])
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
