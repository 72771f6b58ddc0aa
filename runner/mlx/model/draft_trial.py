# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval`, `state` and their kin untyped)
"""Talks to MLX: measures at load what a step with a draft costs, and whether it rounds differently
from a plain step (a step without drafts).

A step that verifies k guessed tokens computes k + 1 columns (token positions) of each row. For
several columns, matrix libraries often use other kernels than for one, and these may round
differently. For example, OpenBLAS's Haswell kernels round alike for up to three. Some recurrent
layers also compute several columns in another way. So the logits are compared bit for bit.
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
"""How many columns the measured steps of one row have."""
SHARED_WIDTHS = {4: (2, 3, 5, 9, 17), 16: (2, 3, 5, 9)}
"""How many columns the measured steps of several rows have, by the number of rows. Steps with more
columns are not worthwhile."""
PLAIN_STEPS = 9
"""The number of plain steps that are computed. The columns of a step with a draft are compared with
the first of these steps."""
PAST_TOKENS = 24
GAP_WIDTH = 3
"""How many columns the step has that leaves gaps in the KV. The plain step after it is compared
with one without gaps."""
TIMES = 3
"""How many steps of one row are measured for each number of columns. For several rows, it is one
less."""
MOST_S = 4.0
"""The time limit in seconds for measuring steps of one row. If it was enough, steps of several rows
are measured too, with the same limit again."""


@dataclass(frozen=True, slots=True)
class DraftTrial:
    """The measured costs of steps with drafts.

    `costs` are pairs: the columns of a step of one row, and its cost as a multiple of the cost of a
    plain step. `shared` has such pairs for several rows, by the number of rows. It is empty if the
    model's KV cannot be cut, or if rows with gaps gave wrong logits. `is_exact`: all steps of one
    row were measured, and their logits equal those of plain steps bit for bit. This holds for rows
    of up to `within` tokens (None: for all rows). `plain_s`: the seconds of a plain step of one
    row.
    """

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
    """Return the clock for measurements. On a CPU it is the processor time of this process, because
    other programs hardly change that."""
    return time.perf_counter if on_gpu() else time.process_time


def try_drafts(
    model: Any, shape: Shape, compiled: CompiledDecode | None, *, packed: bool
) -> DraftTrial:
    """Measure steps with drafts of one row, and of several rows if all KV is ordinary. A step with
    more columns counts as at least as expensive as one with fewer. `compiled`, if given, computes
    the plain steps. The result is exact only within a sliding window: beyond it, a step of several
    columns attends to the same tokens in another order."""
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
    """Measures steps of a batch with `rows` rows. Every second row is a few tokens shorter, because
    the rows of real batches have different lengths."""

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
        """The logits of each plain step, of its first two rows: (rows, vocabulary)."""
        self.plain_s = self._plain(None if rows > MOST_ROWS else compiled)

    def costs(self, widths: Sequence[int], ends_at: float) -> tuple[tuple[int, float], ...]:
        """Return pairs of columns and cost, for steps with these numbers of columns. Stops when the
        clock passes `ends_at`."""
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
        """Note whether these logits equal those of the plain step `at` bit for bit."""
        same = np.array_equal(_bits(logits), _bits(self._logits[at]))
        self.is_exact = self.is_exact and same

    def _after(self, batch: DecodeBatch, width: int) -> mx.array:
        """Return the logits of a plain step after a draft step of `width` columns, in which all
        guesses were right."""
        mx.eval(self._wide(batch, width))
        inputs = [self._tokens[length + width] for length in self._lengths]
        batch.close_draft(mx.array(inputs, mx.int32), [width] * len(batch))
        batch.open_step()
        return self._model(batch.replay.before(batch.tokens), cache=batch.caches())[:, -1]

    def takes_gaps(self) -> bool:
        """Return whether a step with drafts, and the plain step after it, give the logits of plain
        steps although rows have gaps. Every second row accepts fewer tokens, so that it has a gap.
        Return False for models with a sliding window, because a window would count the columns of
        gaps."""
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
        """Compute the plain steps, and return the seconds of the fastest one."""
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
        """Compute a step with `width` columns of each row. Return its logits, (rows, columns,
        vocabulary)."""
        guessed = [self._tokens[length + 1 : length + width] for length in self._lengths]
        inputs = open_draft_step(batch, mx.array(guessed, mx.int32))
        return self._model(inputs, cache=batch.caches())

    def _begun(self) -> DecodeBatch:
        """Return a new batch of the rows, whose prompts are computed."""
        batch = DecodeBatch(self._shape.codecs, packed=self._packed)
        for at, length in enumerate(self._lengths):
            caches = new_caches(self._model, self._shape, length)
            if at < 2:
                out = self._model(mx.array([self._tokens[:length]], mx.int32), cache=caches)
                mx.eval(out, evaluated(caches))
            else:  # this row equals an earlier one
                caches = batch.take(RowId(at % 2))[0]
            batch.join(RowId(at), caches, length, mx.array([self._tokens[length]], mx.int32))
        return batch


def _bits(logits: mx.array) -> np.ndarray[Any, Any]:
    return np.array(logits.astype(mx.float32)).view(np.uint32)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, slots=True)
class LoadedDraft:
    """A loaded draft model; see `DraftSource`."""

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
    """Load the draft model in `folder` for the model in the folder `target`. If it cannot be used,
    for example because its vocabulary differs, return the reason as text."""
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
        return (
            f"the draft model {folder.name} cannot be used: its KV cannot be cut after a wrong "
            "guess; choose a model without sliding windows and recurrent layers"
        )
    return LoadedDraft(loaded.model, shape, loaded.weights_bytes, context)
