"""Talks to the engine and the oracle (plain mlx-lm): measures the greedy tokens of rows alone and
in a batch.

In the result, `plain` has the tokens of plain mlx-lm (see the module `plain`). `alone` and `batch`
have the engine's tokens for each prompt. `batch` is None if the model runs one row at a time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from runner.engine import Engine, SampledToken
from runner.mlx.selftest.oracle import plain_rows
from runner.mlx.selftest.rows import RowDriver, new_row

COUNT = 24
QUESTIONS = (
    "What is shoal?",
    "list the integers from 1 to 10",
    "Which tools does this project use, and why does it use them?",
    "Write a sentence about the sea.",
    "one two three four five six seven eight nine ten " * 2,
    "Say yes.",
    "The quick brown fox jumps over the lazy dog, and then it sleeps. " * 5,
    "How do several machines share one model?",
)


def prompts_of(model: Path) -> list[list[int]]:
    """Return `QUESTIONS` as token ids, each as a chat with one message."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    texts = [f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n" for text in QUESTIONS]
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def token_ids(rows: list[list[SampledToken]]) -> list[list[int]]:
    """Return the ids of the sampled tokens, without log-probabilities."""
    return [[int(sampled.token) for sampled in row] for row in rows]


def measure_greedy(engine: Engine, model: Path) -> dict[str, Any]:
    """Compute all prompts, and return the document that the module's text describes."""
    prompts, precision = prompts_of(model), str(engine.facts.extra["dtype"])
    driver = RowDriver(engine)
    alone = [driver.alone(new_row(prompt), COUNT) for prompt in prompts]
    batch = None
    if engine.facts.batches_ragged:
        batch = token_ids(driver.together([new_row(prompt) for prompt in prompts], COUNT))
    return {
        "precision": precision,
        "prompt_tokens": [len(prompt) for prompt in prompts],
        "plain": plain_rows(model, precision, prompts, COUNT),
        "alone": token_ids(alone),
        "batch": batch,
    }
