# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval`, `state` and their kin untyped)
"""Talks to MLX: measures at load what a step with a draft costs, and whether it rounds differently.

A step that verifies k tokens computes k + 1 columns of each row. The libraries that multiply
matrices often have other kernels for a few rows than for one, with other last digits. OpenBLAS's
Haswell kernels, for example, round alike for up to three rows. So the bits are compared. Some
recurrent layers compute several columns in another way than one, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from bus.wire.ids import TokenId
from runner.engine import EngineFacts, RowId
from runner.mlx.kv import DecodeBatch, Shape, evaluated, new_caches, open_draft_step
from runner.mlx.model.capabilities import is_close, measure
from runner.mlx.model.compiled_decode import MOST_ROWS, CompiledDecode
from runner.mlx.model.device import on_gpu
from runner.mlx.model.files import other_vocabulary
from runner.mlx.model.load import Precision, UnloadableModel, context_of, load_weights

WIDTHS = (2, 3, 5, 9, 17, 33)
"""The columns of the measured steps."""
SHARED_WIDTHS = {4: (2, 3, 5, 9, 17), 16: (2, 3, 5, 9)}
"""The columns of the measured steps of several rows, by their number. Wider ones do not pay."""
PLAIN_STEPS = 9
"""So many plain steps are computed; a wide step is compared with the first of them."""
PAST_TOKENS = 24
GAP_WIDTH = 3
"""The columns of the draft that leaves gaps behind; a plain step after it is compared."""
TIMES = 3
"""So many steps of one row are computed for each width, and one less of several rows."""
MOST_S = 4.0
"""No further width of one row is measured after this time. Several rows are measured if it sufficed
for one row, and get as much time again."""


@dataclass(frozen=True, slots=True)
class DraftTrial:
    """Pairs of a step's columns and its cost as a multiple of a plain step's. `is_exact`: all
    widths were measured, and their logits had the bits of plain steps; `within`: in rows of up to
    so many tokens (None: in any). `shared`: the same pairs for several rows, by their number; none
    if rows with gaps do not compute what they should, or if KV cannot be cut. `plain_s`: the
    seconds of a plain step of one row."""

    costs: tuple[tuple[int, float], ...] = ()
    is_exact: bool = False
    shared: tuple[tuple[int, tuple[tuple[int, float], ...]], ...] = ()
    plain_s: float = 0.0
    within: int | None = None

    def applied(self, facts: EngineFacts) -> EngineFacts:
        """Return the facts with these measurements."""
        extra = {**facts.extra, "drafts_exactly": self.is_exact}
        if self.within is not None:
            extra["exact_tokens"] = self.within
        return replace(facts, draft_costs=self.costs, shared_draft_costs=self.shared, extra=extra)


def trial_clock() -> Callable[[], float]:
    """Return the clock of measurements. Other programs hardly change processor time."""
    return time.perf_counter if on_gpu() else time.process_time


def try_drafts(
    model: Any, shape: Shape, compiled: CompiledDecode | None, *, packed: bool
) -> DraftTrial:
    """Measure steps of one row, and of several if all KV is ordinary. A wider one counts as at
    least as expensive. `compiled` computes plain steps if it is given. Beyond a sliding window, a
    step of several columns attends to the same tokens in another order."""
    clock = trial_clock()
    ends_at = clock() + MOST_S
    alone = _RowsTrial(model, shape, compiled, 1, clock, packed=packed)
    costs = alone.costs(WIDTHS, ends_at)
    is_exact = alone.is_exact and len(costs) == len(WIDTHS)
    shared: list[tuple[int, tuple[tuple[int, float], ...]]] = []
    for rows, widths in SHARED_WIDTHS.items() if shape.trims else ():
        if len(costs) < len(WIDTHS) or clock() > ends_at + MOST_S:
            break
        trial = _RowsTrial(model, shape, compiled, rows, clock, packed=packed)
        try:
            takes_gaps = trial.takes_gaps()
        except Exception:
            takes_gaps = False
        if not takes_gaps:
            break
        if measured := trial.costs(widths, ends_at + MOST_S):
            shared.append((rows, measured))
    return DraftTrial(costs, is_exact, tuple(shared), alone.plain_s, shape.least_window)


class _RowsTrial:
    """Steps of so many rows. Every second row is a few tokens shorter, as in any batch."""

    def __init__(
        self,
        model: Any,
        shape: Shape,
        compiled: CompiledDecode | None,
        rows: int,
        clock: Callable[[], float],
        *,
        packed: bool,
    ) -> None:
        self.is_exact = True
        self._model = model
        self._shape = shape
        self._clock = clock
        self._packed = packed
        last = PAST_TOKENS + WIDTHS[-1]
        self._tokens = [TokenId((3 + 7 * at) % shape.vocabulary) for at in range(last)]
        self._lengths = [PAST_TOKENS - 5 * (at % 2) for at in range(rows)]
        self._logits: list[mx.array] = []
        """The logits of the plain steps, (compared rows, vocabulary)."""
        self.plain_s = self._plain(None if rows > MOST_ROWS else compiled)

    def costs(self, widths: Sequence[int], ends_at: float) -> tuple[tuple[int, float], ...]:
        """Return the cost of steps of these columns, as far as there is time to measure them."""
        costs: list[tuple[int, float]] = []
        for width in widths:
            if self._clock() > ends_at:
                break
            batch = self._begun()
            seconds: list[float] = []
            out = mx.zeros(())
            for _ in range(TIMES - (len(self._lengths) > 1)):
                started = self._clock()
                out = self._wide(batch, width)
                mx.eval(out)
                seconds.append(self._clock() - started)
                batch.close_draft(batch.tokens, [0] * len(batch))
            for at in range(min(width, PLAIN_STEPS)):
                self._compare(out[:2, at], at)
            if not batch.replay.trims and width < PLAIN_STEPS:
                self._compare(self._after(batch, width), width)
            least = costs[-1][1] if costs else 1.0
            costs.append((width, max(min(seconds) / self.plain_s, least)))
        return tuple(costs)

    def _compare(self, logits: mx.array, at: int) -> None:
        """Note whether these logits have the bits of the plain step `at`."""
        same = np.array_equal(_bits(logits), _bits(self._logits[at]))
        self.is_exact = self.is_exact and same

    def _after(self, batch: DecodeBatch, width: int) -> mx.array:
        """Return the logits of a plain step after one of so many columns, which are all right."""
        mx.eval(self._wide(batch, width))
        inputs = [self._tokens[length + width] for length in self._lengths]
        batch.close_draft(mx.array(inputs, mx.int32), [width] * len(batch))
        batch.open_step()
        return self._model(batch.replay.before(batch.tokens), cache=batch.caches())[:, -1]

    def takes_gaps(self) -> bool:
        """Return whether a draft of rows of unlike lengths, and the step after it, have the logits
        of plain steps. Every second row accepts less, so that it has a gap. Models with windows are
        refused, because a window counts columns."""
        batch = self._begun()
        wide = self._wide(batch, GAP_WIDTH)
        counts = [1 if at % 2 else GAP_WIDTH for at in range(len(self._lengths))]
        pairs = zip(self._lengths, counts, strict=True)
        inputs = [self._tokens[length + count] for length, count in pairs]
        batch.close_draft(mx.array(inputs, mx.int32), counts)
        batch.open_step()
        after = self._model(batch.tokens[:, None], cache=batch.caches())[:, -1]
        return not batch.shape.windowed and all(
            is_close(after[at], self._logits[counts[at]][at])
            and all(is_close(wide[at, j], self._logits[j][at]) for j in range(GAP_WIDTH))
            for at in range(2)
        )

    def _plain(self, compiled: CompiledDecode | None) -> float:
        """Compute plain steps; return the seconds of the fastest."""
        batch = self._begun()
        step = None if compiled is None else compiled.step_for(batch)
        seconds: list[float] = []
        for at in range(PLAIN_STEPS):
            batch.open_step()
            started = self._clock()
            if compiled is None or step is None:
                out = self._model(batch.tokens[:, None], cache=batch.caches())[:, -1]
            else:
                out = compiled.run(step, batch)
            mx.eval(out)
            seconds.append(self._clock() - started)
            self._logits.append(out[:2])
            inputs = [self._tokens[length + at + 1] for length in self._lengths]
            batch.close_step(mx.array(inputs, mx.int32))
        return min(seconds)

    def _wide(self, batch: DecodeBatch, width: int) -> mx.array:
        """Return the logits of so many columns of each row, (rows, columns, vocabulary)."""
        guessed = [self._tokens[length + 1 : length + width] for length in self._lengths]
        inputs = open_draft_step(batch, mx.array(guessed, mx.int32))
        return self._model(inputs, cache=batch.caches())

    def _begun(self) -> DecodeBatch:
        """Return a batch of rows that have computed their first tokens."""
        batch = DecodeBatch(self._shape.codecs, packed=self._packed)
        for at, length in enumerate(self._lengths):
            caches = new_caches(self._model, self._shape, length)
            if at < 2:
                out = self._model(mx.array([self._tokens[:length]], mx.int32), cache=caches)
                mx.eval(out, evaluated(caches))
            else:  # as a row before it
                caches = batch.take(RowId(at % 2))[0]
            batch.join(RowId(at), caches, length, mx.array([self._tokens[length]], mx.int32))
        return batch


def _bits(logits: mx.array) -> np.ndarray[Any, Any]:
    return np.array(logits.astype(mx.float32)).view(np.uint32)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, slots=True)
class LoadedDraft:
    """A loaded draft model (`DraftSource`)."""

    model: Any
    shape: Shape
    weights_bytes: int
    context_tokens: int

    @property
    def kv_bytes_per_token(self) -> int:
        return self.shape.kv_bytes_per_token

    def new_caches(self, reserve: int) -> list[Any]:
        return new_caches(self.model, self.shape, reserve)


def open_draft(folder: Path, target: Path, dtype: Precision) -> LoadedDraft | str:
    """Load a draft model for the model in the folder `target`. Return why it cannot be used, for
    example because its vocabulary differs, if it cannot."""
    if (other := other_vocabulary(folder, target)) is not None:
        return f"the draft model {folder.name} cannot be used: {other}"
    try:
        loaded = load_weights(folder, dtype, lambda _: None)
        context = context_of(loaded.config, None)
        shape = measure(loaded.model, context_tokens=context)
    except UnloadableModel as error:
        return f"the draft model cannot be loaded: {error}"
    except Exception as error:
        return f"the draft model {folder.name} cannot be loaded: {type(error).__name__}: {error}"
    if not shape.trims:
        return f"the draft model {folder.name} cannot be used: it cannot take back tokens"
    return LoadedDraft(loaded.model, shape, loaded.weights_bytes, context)
