# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval`, `state` and their kin untyped)
"""Talks to MLX: measures at load what a step with a draft costs, and whether it rounds differently.

A step that verifies k tokens computes k + 1 columns of one row. The libraries that multiply
matrices often have other kernels for a few rows than for one, with other last digits. OpenBLAS's
Haswell kernels, for example, round alike for up to three rows. So the bits are compared.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np

from bus.wire.ids import TokenId
from runner.engine import EngineFacts, RowId
from runner.mlx.kv import DecodeBatch, evaluated
from runner.mlx.model.capabilities import Shape, new_caches
from runner.mlx.model.compiled_decode import CompiledDecode
from runner.mlx.model.device import on_gpu

WIDTHS = (2, 3, 5, 9, 17, 33)
"""The columns of the measured steps."""
PLAIN_STEPS = 9
"""So many plain steps are computed; a wide step is compared with the first of them."""
PAST_TOKENS = 24
TIMES = 3
MOST_S = 4.0
"""No further width is measured after this time."""
_ROW = RowId(1)


@dataclass(frozen=True, slots=True)
class DraftTrial:
    """Pairs of a step's columns and its cost as a multiple of a plain step's. `is_exact`: all
    widths were measured, and their logits had the bits of plain steps."""

    costs: tuple[tuple[int, float], ...] = ()
    is_exact: bool = False

    def applied(self, facts: EngineFacts) -> EngineFacts:
        """Return the facts with these measurements."""
        extra = {**facts.extra, "drafts_exactly": self.is_exact}
        return replace(facts, draft_costs=self.costs, extra=extra)


def try_drafts(
    model: Any, shape: Shape, compiled: CompiledDecode | None, *, packed: bool
) -> DraftTrial:
    """Measure steps of one row; a wider one counts as at least as expensive. All layers of the
    model must have ordinary KV. `compiled` computes plain steps if it is given."""
    # Other programs hardly change processor time.
    clock = time.perf_counter if on_gpu() else time.process_time
    began = clock()
    last = PAST_TOKENS + WIDTHS[-1]
    tokens = [TokenId((3 + 7 * at) % shape.vocabulary) for at in range(last)]
    batch = _begun(model, shape, tokens, packed=packed)
    step = None if compiled is None else compiled.step_for(batch)
    logits: list[np.ndarray[Any, Any]] = []
    plain_s: list[float] = []
    for at in range(PLAIN_STEPS):
        batch.open_step()
        started = clock()
        if compiled is None or step is None:
            out = model(batch.tokens[:, None], cache=batch.caches())[:, -1]
        else:
            out = compiled.run(step, batch)
        mx.eval(out)
        plain_s.append(clock() - started)
        logits.append(_bits(out[0]))
        batch.close_step(mx.array([tokens[PAST_TOKENS + at + 1]], mx.int32))
    costs: list[tuple[int, float]] = []
    is_exact = True
    for width in WIDTHS:
        if clock() - began > MOST_S:
            return DraftTrial(tuple(costs), is_exact=False)
        batch = _begun(model, shape, tokens, packed=packed)
        inputs = mx.array([tokens[PAST_TOKENS : PAST_TOKENS + width]], mx.int32)
        batch.open_step(width)
        wide_s: list[float] = []
        bits = np.zeros((0, 0), np.uint32)
        for _ in range(TIMES):
            started = clock()
            out = model(inputs, cache=batch.caches())[0]
            mx.eval(out)
            wide_s.append(clock() - started)
            bits = _bits(out)
        same = zip(bits, logits, strict=False)
        is_exact = is_exact and all(np.array_equal(wide, plain) for wide, plain in same)
        least = costs[-1][1] if costs else 1.0
        costs.append((width, max(min(wide_s) / min(plain_s), least)))
    return DraftTrial(tuple(costs), is_exact)


def _begun(model: Any, shape: Shape, tokens: list[TokenId], *, packed: bool) -> DecodeBatch:
    """Return a batch of one row that has computed `PAST_TOKENS` tokens."""
    caches = new_caches(model, shape, PAST_TOKENS)
    out = model(mx.array([tokens[:PAST_TOKENS]], mx.int32), cache=caches)
    mx.eval(out, evaluated(caches))
    batch = DecodeBatch(shape.codecs, packed=packed)
    batch.join(_ROW, caches, PAST_TOKENS, mx.array([tokens[PAST_TOKENS]], mx.int32))
    return batch


def _bits(logits: mx.array) -> np.ndarray[Any, Any]:
    return np.array(logits.astype(mx.float32)).view(np.uint32)  # pyright: ignore[reportArgumentType]
