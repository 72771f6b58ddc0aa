# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# (mlx.nn and mlx_lm are partially typed)
"""Talks to MLX: finds out what a loaded model can do by running it.

The KV bytes per token are measured after a real forward pass, not computed from the model's
configuration. To find out whether rows of different lengths can share a batch, two rows are
computed both together and alone, and the logits are compared. Similar comparisons show whether the
model's attention can read reduced-precision KV directly, and whether the model supports a window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import mlx.core as mx

from bus.wire.kv import SINKS, KvKind, window_of
from runner.engine import RowId
from runner.library import CacheList, KVCache, make_prompt_cache
from runner.mlx.adapters import AdapterBank
from runner.mlx.kv import (
    FULL_WIDTH,
    Codec,
    DecodeBatch,
    GroupKV,
    GroupShape,
    RowKV,
    Shape,
    SinkWindow,
    codec_for,
    evaluated,
    new_caches,
    open_draft_step,
)
from runner.mlx.model.compiled_decode import CompiledDecode
from runner.mlx.model.last_token_head import LastTokenHead

PROBE_TOKENS = 12
TOLERANCE = 2e-3
HALF_TOLERANCE = 0.15
CODED_TOLERANCE = 0.15
NO_ROWS_APART = (
    "rows of this model family influence each other, so adapters cannot be chosen per row"
)


def measure(model: Any, kind: KvKind = "full", context_tokens: int | None = None) -> Shape:
    """Compute a few tokens, and return the model's KV layout. Ordinary (growing) KV is stored as
    `kind` if possible. A row has at most `context_tokens` (default: unlimited)."""
    shape = _measured(model, kind)
    tokens = window_of(kind)
    if not tokens or not _sees_a_window(model, shape):
        return shape
    window = SinkWindow(SINKS, tokens)
    length = min(window.places, context_tokens or window.places)
    return replace(
        _windowed(shape, window),
        kv_bytes_per_token=0,
        kv_bytes_fixed=shape.kv_bytes_fixed + length * shape.kv_bytes_per_token,
        least_window=min(window.places, shape.least_window or window.places),
    )


def _windowed(shape: Shape, window: SinkWindow) -> Shape:
    """Return the layout with a window in each layer of ordinary KV; byte counts stay unchanged."""
    ordinary = frozenset(at for at, codec in enumerate(shape.codecs) if codec is not None)
    return replace(shape, codecs=(None,) * len(shape.codecs), window=window, windowed=ordinary)


def _sees_a_window(model: Any, shape: Shape) -> bool:
    """Return whether the model gives the same logits with a window as with all KV and a mask of the
    window. In some models it does not, because attention depends on the order of the KV."""
    window = SinkWindow(2, 6)
    narrow = _windowed(shape, window)
    if not narrow.windowed:
        return False
    wide = new_caches(model, in_full_width(shape), 0)
    masked = [_Masked(window) if at in narrow.windowed else cache for at, cache in enumerate(wide)]
    row = _probe(22, shape.vocabulary, 3)
    cuts = (0, 13, 19, 20, 21, 22)
    chunks = [mx.array([row[start:stop]]) for start, stop in pairwise(cuts)]

    def logits_of(caches: list[Any]) -> list[mx.array]:
        """Return the logits of all chunks."""
        out = [model(chunk, cache=caches) for chunk in chunks]
        mx.eval(out)
        return out

    try:
        wanted = logits_of(masked)
    except Exception:
        return False
    return _agree(lambda: logits_of(new_caches(model, narrow, 0)), wanted)


class _Masked(RowKV):
    """The reference cache in the trial of whether a model supports a window. It stores all tokens,
    and a mask limits attention to the tokens that the window would keep."""

    def __init__(self, window: SinkWindow) -> None:
        super().__init__()
        self._window = window

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array:
        """Return the mask of a window, (N, offset + N), for the next `N` tokens."""
        stop = self.offset + N
        these, those = mx.arange(self.offset, stop)[:, None], mx.arange(stop)[None]
        return self._window.sees(these, those, stop, window_size)


def _measured(model: Any, kind: KvKind) -> Shape:
    caches = make_prompt_cache(model)
    logits = model(mx.arange(PROBE_TOKENS)[None] % 2, cache=caches)
    mx.eval(logits, evaluated(caches))
    per_token = fixed = 0
    least_window: int | None = None
    codecs: list[Codec | None] = []
    for cache in caches:
        codec, held = None, cache
        if type(cache) is KVCache:
            plain: Any = cache
            keys, values = (part[:, :, : plain.offset] for part in (plain.keys, plain.values))
            codec = codec_for(kind, keys.shape[-1], values.shape[-1])
            held = RowKV.holding(codec.encode(keys, values), codec)
        codecs.append(codec)
        for leaf in _leaves([held]):
            grows, bytes_ = _cost(leaf)
            if (window := _window_of(leaf)) is not None:
                least_window = min(window, least_window or window)
            per_token += bytes_ if grows else 0
            fixed += 0 if grows else bytes_
    vocabulary = int(logits.shape[-1])
    return Shape(tuple(codecs), vocabulary, per_token, fixed, least_window=least_window)


def _leaves(caches: Sequence[Any]) -> list[Any]:
    leaves: list[Any] = []
    for cache in caches:
        leaves.extend(_leaves(cache.caches) if isinstance(cache, CacheList) else [cache])
    return leaves


def _cost(cache: Any) -> tuple[bool, int]:
    """Return (True, bytes per token) for a cache that grows, otherwise (False, bytes per row)."""
    if isinstance(cache, RowKV):
        return True, cache.nbytes // cache.offset
    window = _window_of(cache)
    keys = getattr(cache, "keys", None)
    if not isinstance(keys, mx.array):
        return False, int(cache.nbytes)
    per_token = int(cache.nbytes) // keys.shape[2]
    return (False, per_token * window) if window else (True, per_token)


def _window_of(cache: Any) -> int | None:
    """Return the window of a cache of mlx-lm, in tokens; None: it keeps all tokens, or a state."""
    window = getattr(cache, "max_size", None) or getattr(cache, "chunk_size", None)
    return int(window) if window else None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The features that a model showed in trials. `batches_ragged`: rows of different lengths can
    decode in one batch. `groups`: prompt chunks of several rows can be one padded batch. `narrows`:
    positions can be selected before they are projected onto the vocabulary. `slabs`: a row may
    leave a hole in the batch. `packs`: attention can read reduced-precision KV without decoding it.
    `verifies`: drafts can be verified, and rejected guesses removed."""

    batches_ragged: bool
    groups: bool
    narrows: bool
    slabs: bool
    packs: bool = False
    verifies: bool = False


def try_out(model: Any, shape: Shape, head: LastTokenHead) -> Capabilities:
    """Find out the model's capabilities. Computes two rows of different lengths, each alone and
    both together, and compares their logits. The KV is in full precision, because reduced precision
    could round it differently in the two computations."""
    rows = [_probe(5, shape.vocabulary, 3), _probe(11, shape.vocabulary, 7)]
    wide = in_full_width(shape)
    alone = [_alone(model, wide, row) for row in rows]
    together = _agree(lambda: _together(model, wide, rows), [logits[1] for logits in alone])
    grouped = shape.trims and _agree(
        lambda: _grouped(model, wide, rows), [logits[0] for logits in alone]
    )
    narrow = head.narrows and _agree(lambda: [_narrowed(model, wide, head, rows[1])], [alone[1][0]])
    return Capabilities(
        batches_ragged=together,
        groups=grouped,
        narrows=narrow,
        slabs=shape.trims,
        packs=together and shape.narrowed > 0 and _packs(model, shape, rows),
        verifies=together
        and not shape.narrowed
        and _agree(lambda: _verified(model, shape, rows[1]), [logits[1] for logits in alone[1:]]),
    )


def in_full_width(shape: Shape) -> Shape:
    """Return a layout with all ordinary KV in full precision, but the byte counts of `shape`."""
    return replace(shape, codecs=tuple(codec and FULL_WIDTH for codec in shape.codecs))


def _packs(model: Any, shape: Shape, rows: Sequence[list[int]]) -> bool:
    """Return whether attention that reads quantised KV directly gives the same logits as attention
    over decoded KV. The tolerance is wide, because a value may be stored as a neighbouring code."""
    wanted = _together(model, shape, rows)
    return _agree(lambda: _together(model, shape, rows, packed=True), wanted, CODED_TOLERANCE)


def refuse_mutual(model: Any, shape: Shape, adapters: AdapterBank) -> None:
    """Refuse all adapters if rows with different adapters cannot share a batch."""
    if adapters.names and not adapters_agree(model, shape, adapters):
        adapters.refuse(dict.fromkeys(adapters.names, NO_ROWS_APART))


def adapters_agree(model: Any, shape: Shape, adapters: AdapterBank) -> bool:
    """Return whether rows with different adapters can share a batch. Computes one row with each
    adapter and one row without, each alone and all in one batch, and compares the logits."""
    names = ["", *adapters.names]
    rows = [_probe(5, shape.vocabulary, 3 + 2 * at) for at in range(len(names))]

    def last(some: Sequence[int]) -> mx.array:
        """Compute the rows at the indices `some` as one batch, and return their last logits."""
        with adapters.applied([names[at] for at in some]):
            caches = new_caches(model, shape, 0)
            out = model(mx.array([rows[at] for at in some]), cache=caches)[:, -1]
        mx.eval(out)
        return out

    every = range(len(names))
    return _agree(lambda: list(last(every)), [last([at])[0] for at in every])


def trace_agrees(model: Any, shape: Shape, *, packed: bool = False) -> bool:
    """Return whether a decode step with a compiled trace gives the same logits as a plain step.
    `packed`: attention reads the stored KV without decoding it."""
    if not shape.trims:
        return False
    rows = [_probe(5, shape.vocabulary, 3), _probe(11, shape.vocabulary, 7)]
    alone = [_alone(model, shape, row)[1] for row in rows]
    if alone[0].dtype != mx.float32 and not mx.metal.is_available():
        return False  # On a CPU, a trace saves nothing here: 16-bit arithmetic takes all the time.
    tolerance = CODED_TOLERANCE if shape.narrowed else None

    def traced(some: int) -> Callable[[], list[mx.array]]:
        """Return a function that computes the first `some` rows with a trace."""
        return lambda: _together(model, shape, rows[:some], traced=True, packed=packed)

    return all(_agree(traced(some), alone[:some], tolerance) for some in (2, 1))


def _probe(length: int, vocabulary: int, stride: int) -> list[int]:
    return [(1 + i * stride) % vocabulary for i in range(length)]


def _alone(model: Any, shape: Shape, row: list[int]) -> tuple[mx.array, mx.array]:
    """Compute a row alone. Return its logits after its last token, and the logits after one more
    token (its first token again)."""
    caches = new_caches(model, shape, 0)
    first = model(mx.array([row]), cache=caches)[0, -1]
    second = model(mx.array([row[:1]]), cache=caches)[0, -1]
    mx.eval(first, second)
    return first, second


def _together(
    model: Any,
    shape: Shape,
    rows: Sequence[list[int]],
    *,
    traced: bool = False,
    packed: bool = False,
) -> list[mx.array]:
    batch = DecodeBatch(shape.codecs, packed=packed)
    for index, row in enumerate(rows):
        caches = new_caches(model, shape, 0)
        mx.eval(model(mx.array([row]), cache=caches), evaluated(caches))
        batch.join(RowId(index), caches, len(row), mx.array(row[:1]))
    batch.open_step()
    if traced:
        trace = CompiledDecode(model, shape.readers(packed=packed))
        logits = trace.run(trace.trace(), batch)
    else:
        logits = model(batch.tokens[:, None], cache=batch.caches())[:, -1]
    mx.eval(logits)
    return [logits[index] for index in range(len(rows))]


def _verified(model: Any, shape: Shape, row: list[int]) -> list[mx.array]:
    """Return the same logits as `_alone` does for one more token, computed in a batch of one row
    whose last draft had a wrong guess, which had to be removed."""
    batch = DecodeBatch(shape.codecs)
    caches = new_caches(model, shape, 0)
    mx.eval(model(mx.array([row[:-2]]), cache=caches), evaluated(caches))
    batch.join(RowId(0), caches, len(row) - 2, mx.array(row[-2:-1]))
    inputs = open_draft_step(batch, mx.array([[row[-1], row[1]]]))
    mx.eval(model(inputs, cache=batch.caches()))
    batch.close_draft(mx.array(row[:1]), [2])
    inputs = open_draft_step(batch, mx.array([row[:1]]))
    logits = model(inputs, cache=batch.caches())[:, -2]
    mx.eval(logits)
    return [logits[0]]


def _grouped(model: Any, shape: Shape, rows: Sequence[list[int]]) -> list[mx.array]:
    """Return the last logits of two rows whose chunks are computed as one padded batch. The rows
    have different numbers of earlier tokens."""
    own = [new_caches(model, shape, 0) for _ in rows]
    starts = [0, 4]
    mx.eval(model(mx.array([rows[1][:4]]), cache=own[1]))
    chunks = [row[start:] for row, start in zip(rows, starts, strict=True)]
    lengths = [len(chunk) for chunk in chunks]
    group = GroupShape(starts, lengths)
    caches = [GroupKV(group, layer) for layer in zip(*own, strict=True)]
    padded = [chunk + [0] * (max(lengths) - len(chunk)) for chunk in chunks]
    logits = model(mx.array(padded), cache=caches)
    mx.eval(logits)
    return [logits[index, length - 1] for index, length in enumerate(lengths)]


def _narrowed(model: Any, shape: Shape, head: LastTokenHead, row: list[int]) -> mx.array:
    """Return the last logits of a row that is padded at its end. `head` must select the row's last
    token, which is not the last position of the array."""
    caches = new_caches(model, shape, 0)
    padded = mx.array([[*row, 0, 0, 0]])
    return head.logits(lambda: model(padded, cache=caches), [0], [len(row) - 1])[0]


def _agree(
    compute: Callable[[], Sequence[mx.array]],
    wanted: Sequence[mx.array],
    tolerance: float | None = None,
) -> bool:
    """Return whether computed logits equal `wanted` up to rounding; False if computing raises."""
    try:
        computed = compute()
        pairs = zip(computed, wanted, strict=True)
        return all(is_close(logits, other, tolerance) for logits, other in pairs)
    except Exception:
        return False


def is_close(logits: mx.array, other: mx.array, tolerance: float | None = None) -> bool:
    if tolerance is None:
        tolerance = TOLERANCE if other.dtype == mx.float32 else HALF_TOLERANCE
    a, b = logits.astype(mx.float32), other.astype(mx.float32)
    scale = mx.maximum(mx.max(mx.abs(b)), 1.0)
    return bool((mx.max(mx.abs(a - b)) <= tolerance * scale).item())
