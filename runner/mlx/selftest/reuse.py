"""Talks to the engine: measures rows that start from a kept prefix, for one KV format.

In the result, `fresh` has the likeliest tokens at each step of a row that computes its whole
prompt. `reused` has one row for each used length of the prefix: its tokens and their
log-probabilities. If KV can be cut, parts of the prefix are used too; otherwise only the whole
prefix is. `held` says in which format the layers store their KV. `batch` has the tokens of the same
row if it decodes together with others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner.engine import Engine, EntryId, PrefillChunk, PrefixHit, PrefixInsert, SampledToken
from runner.mlx.selftest.greedy import token_ids
from runner.mlx.selftest.oracle import TOP, plain_rows
from runner.mlx.selftest.rows import RowDriver, new_row, whole

COUNT, LENGTH, KEPT = 16, 110, 80
LENGTHS = (1, 64, 79, 80)
_ENTRY = EntryId(1)


def prompt_of(vocabulary: int) -> list[int]:
    """Return a prompt of `LENGTH` tokens without a simple pattern."""
    return [3 + (11 * at + 7 * at * at) % (vocabulary - 20) for at in range(LENGTH)]


def measure_reuse(engine: Engine) -> dict[str, Any]:
    """Compute a row without a prefix and rows with one, and return the document that the module's
    text describes."""
    prompt, facts = prompt_of(engine.facts.vocabulary), engine.facts
    driver = RowDriver(engine)
    fresh = driver.alone(new_row(prompt, logprobs=TOP), COUNT)
    lengths = LENGTHS if facts.trims else (KEPT,)
    reused = _reused(driver, prompt, lengths)
    batch = None
    if facts.batches_ragged:
        others = [new_row(prompt[: 20 * n]) for n in (1, 3)]
        batch = token_ids(driver.together([new_row(prompt), *others], COUNT))[0]
    return {
        "precision": str(facts.extra["dtype"]),
        "held": str(facts.extra["kv"]),
        "trims": facts.trims,
        "fresh": [_top(sampled) for sampled in fresh],
        "reused": reused,
        "batch": batch,
        "bytes_per_token": facts.kv_bytes_per_token,
    }


def measure_rotating(engine: Engine, model: Path) -> dict[str, Any]:
    """Return the document of `measure_reuse` for a model with rotating caches, and as `plain` the
    tokens of plain mlx-lm."""
    prompt = prompt_of(engine.facts.vocabulary)
    plain = plain_rows(model, str(engine.facts.extra["dtype"]), [prompt], COUNT)
    return {**measure_reuse(engine), "plain": plain["rows"][0]}


def _reused(driver: RowDriver, prompt: list[int], lengths: tuple[int, ...]) -> list[dict[str, Any]]:
    giver = new_row(prompt)
    trims = driver.engine.facts.trims
    read = LENGTH if trims else KEPT
    driver.step(
        admit=(giver,),
        prefill=((PrefillChunk(giver.row, 0, read),),),
        insert=(PrefixInsert(_ENTRY, giver.row, KEPT),),
    )
    if not trims:
        driver.step(prefill=((whole(giver, KEPT),),))
    rows: list[dict[str, Any]] = []
    for length in lengths:
        taker = new_row(prompt, logprobs=1)
        hit = PrefixHit(taker.row, _ENTRY, length)
        driver.step(admit=(taker,), hits=(hit,), prefill=((whole(taker, length),),))
        for _ in range(COUNT - 1):
            driver.step(decode=(taker.row, giver.row))
        driver.finish(taker.row)
        made = driver.sampled(taker.row)[:COUNT]
        rows.append(
            {
                "length": length,
                "tokens": [int(sampled.token) for sampled in made],
                "logprobs": [sampled.logprob for sampled in made],
            }
        )
    driver.step(evict=(_ENTRY,), release=(giver.row,))
    driver.finish()
    return rows


def _top(sampled: SampledToken) -> list[list[float]]:
    return [[int(token), logprob] for token, logprob in sampled.top]
