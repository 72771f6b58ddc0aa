"""Talks to the engine and the oracle (plain mlx-lm): measures sampling, twice with the same seeds,
and with many draws of one token.

In the result, `twice` has the tokens of each seed, from two runs, which should be equal. `draws`
has one entry for each sampling setting: its fields, and how often each token was drawn. `next` has
plain mlx-lm's log-probabilities, from which the expected frequencies follow.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from bus.wire.messages.requests import Sampling
from runner.engine import Engine
from runner.mlx.selftest.greedy import token_ids
from runner.mlx.selftest.oracle import plain_rows
from runner.mlx.selftest.rows import RowDriver, new_row, whole

SEEDS = (1, 2, 3, 4, 5, 6)
COUNT = 32
DRAWS, ROWS = 2_048, 64
PROMPT: tuple[int, ...] = (5, 900, 17, 1234)
SETTINGS: tuple[dict[str, float | int], ...] = (
    {"temperature": 0.4},
    {"temperature": 0.7},
    {"temperature": 0.7, "top_k": 12},
    {"temperature": 0.7, "top_p": 0.5},
    {"temperature": 0.7, "min_p": 0.03},
)


def measure_draws(engine: Engine, model: Path) -> dict[str, Any]:
    """Sample tokens, and return the document that the module's text describes."""
    prompt, precision = list(PROMPT), str(engine.facts.extra["dtype"])
    driver = RowDriver(engine)
    draws = [{"sampling": fields, "counts": _drawn(driver, prompt, fields)} for fields in SETTINGS]
    return {
        "precision": precision,
        "twice": [_seeded(driver, prompt), _seeded(driver, prompt)],
        "draws": draws,
        "next": plain_rows(model, precision, [prompt], 1, whole=True)["next"],
    }


def _seeded(driver: RowDriver, prompt: list[int]) -> list[list[int]]:
    sampling = Sampling(temperature=1.5)
    return token_ids([driver.alone(new_row(prompt, sampling, seed=seed), COUNT) for seed in SEEDS])


def _drawn(driver: RowDriver, prompt: list[int], fields: dict[str, Any]) -> list[list[int]]:
    """Start `DRAWS` rows with different seeds, and return how often each token was the first token
    of a row."""
    counts: Counter[int] = Counter()
    sampling, ragged = Sampling(**fields), driver.engine.facts.batches_ragged
    size = ROWS if ragged else 1
    for first in range(0, DRAWS, size):
        rows = [new_row(prompt, sampling, seed=1_000 + first + n) for n in range(size)]
        driver.step(admit=tuple(rows), prefill=(tuple(map(whole, rows)),))
        driver.finish(*(row.row for row in rows))
        counts.update(int(driver.sampled(row.row)[0].token) for row in rows)
    return [[token, count] for token, count in sorted(counts.items())]
