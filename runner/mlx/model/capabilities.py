# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# (mlx.nn and mlx_lm are partially typed)
"""Talks to MLX: what is true of a loaded model, found by asking it.

The bytes a token costs are measured on a real cache after a real forward, not read from the
configuration; whether rows of unlike length may share a batch is decided by computing
two of them both ways and comparing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import CacheList, KVCache, make_prompt_cache

from runner.engine import RowId
from runner.mlx.adapters import AdapterBank
from runner.mlx.kv import DecodeBatch, GroupKV, GroupShape, RowKV, evaluated
from runner.mlx.model.compiled_decode import CompiledDecode
from runner.mlx.model.last_token_head import LastTokenHead

PROBE_TOKENS = 12
TOLERANCE = 2e-3
HALF_TOLERANCE = 0.15


@dataclass(frozen=True, slots=True)
class Shape:
    """How a model keeps what it has read. `plain[i]`: layer i keeps ordinary KV."""

    plain: tuple[bool, ...]
    vocabulary: int
    kv_bytes_per_token: int
    kv_bytes_fixed: int
    trims: bool


def new_caches(model: nn.Module, plain: Sequence[bool], reserve: int) -> list[Any]:
    """Return a row's own empty caches, one per layer, ours where the layer's KV is plain."""
    if all(plain):
        return [RowKV(reserve) for _ in plain]
    made = make_prompt_cache(model)
    return [
        RowKV(reserve) if is_plain else cache for is_plain, cache in zip(plain, made, strict=True)
    ]


def measure(model: Any) -> Shape:
    """Run a few tokens and return what the model keeps of them."""
    caches = make_prompt_cache(model)
    logits = model(mx.arange(PROBE_TOKENS)[None] % 2, cache=caches)
    mx.eval(logits, evaluated(caches))
    per_token = fixed = 0
    for cache in _leaves(caches):
        grows, bytes_ = _cost(cache)
        per_token += bytes_ if grows else 0
        fixed += 0 if grows else bytes_
    plain = tuple(type(cache) is KVCache for cache in caches)
    return Shape(
        plain=plain,
        vocabulary=int(logits.shape[-1]),
        kv_bytes_per_token=per_token,
        kv_bytes_fixed=fixed,
        trims=all(plain),
    )


def _leaves(caches: Sequence[Any]) -> list[Any]:
    leaves: list[Any] = []
    for cache in caches:
        leaves.extend(_leaves(cache.caches) if isinstance(cache, CacheList) else [cache])
    return leaves


def _cost(cache: Any) -> tuple[bool, int]:
    """Return (True, bytes per token) of a cache that grows, (False, bytes) of one that does not."""
    window = getattr(cache, "max_size", None) or getattr(cache, "chunk_size", None)
    keys = getattr(cache, "keys", None)
    if not isinstance(keys, mx.array):
        return False, int(cache.nbytes)
    per_token = int(cache.nbytes) // keys.shape[2]
    return (False, per_token * int(window)) if window else (True, per_token)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a model was found to be able to do. `slabs`: a row may leave a hole in the batch."""

    batches_ragged: bool
    groups: bool
    narrows: bool
    slabs: bool


def try_out(model: Any, shape: Shape, head: LastTokenHead) -> Capabilities:
    """Compute two rows of unlike length alone and together, and compare their logits."""
    rows = [_probe(5, shape.vocabulary, 3), _probe(11, shape.vocabulary, 7)]
    alone = [_alone(model, shape, row) for row in rows]
    together = _agree(lambda: _together(model, shape, rows), [one[1] for one in alone])
    grouped = all(shape.plain) and _agree(
        lambda: _grouped(model, shape, rows), [one[0] for one in alone]
    )
    narrow = head.narrows and _agree(
        lambda: [_narrowed(model, shape, head, rows[1])], [alone[1][0]]
    )
    return Capabilities(
        batches_ragged=together, groups=grouped, narrows=narrow, slabs=all(shape.plain)
    )


def adapters_agree(model: Any, shape: Shape, adapters: AdapterBank) -> bool:
    """Compute rows of every adapter and one of none, alone and together, and compare."""
    names = ["", *adapters.names]
    rows = [_probe(5, shape.vocabulary, 3 + 2 * at) for at in range(len(names))]

    def last(some: Sequence[int]) -> mx.array:
        """Return the last logits of some of the rows, computed together."""
        with adapters.applied([names[at] for at in some]):
            caches = new_caches(model, shape.plain, 0)
            out = model(mx.array([rows[at] for at in some]), cache=caches)[:, -1]
        mx.eval(out)
        return out

    every = range(len(names))
    return _agree(lambda: list(last(every)), [last([at])[0] for at in every])


def trace_agrees(model: Any, shape: Shape) -> bool:
    """Return whether decode can be traced, for one row and for more, and gives the same."""
    if not all(shape.plain):
        return False
    rows = [_probe(5, shape.vocabulary, 3), _probe(11, shape.vocabulary, 7)]
    alone = [_alone(model, shape, row)[1] for row in rows]
    if alone[0].dtype != mx.float32 and not mx.metal.is_available():
        return False  # Sixteen bits on a CPU are bound by arithmetic, not by dispatching it.
    return all(
        _agree(lambda some=some: _together(model, shape, rows[:some], traced=True), alone[:some])
        for some in (2, 1)
    )


def _probe(length: int, vocabulary: int, stride: int) -> list[int]:
    return [(1 + i * stride) % vocabulary for i in range(length)]


def _alone(model: Any, shape: Shape, row: list[int]) -> tuple[mx.array, mx.array]:
    """Return a row's logits after its tokens, and after one more (its own first), by itself."""
    caches = new_caches(model, shape.plain, 0)
    first = model(mx.array([row]), cache=caches)[0, -1]
    second = model(mx.array([row[:1]]), cache=caches)[0, -1]
    mx.eval(first, second)
    return first, second


def _together(
    model: Any, shape: Shape, rows: Sequence[list[int]], *, traced: bool = False
) -> list[mx.array]:
    batch = DecodeBatch(shape.plain)
    for index, row in enumerate(rows):
        caches = new_caches(model, shape.plain, 0)
        mx.eval(model(mx.array([row]), cache=caches), evaluated(caches))
        batch.join(RowId(index), caches, len(row), mx.array(row[:1]))
    batch.open_step()
    if traced:
        trace = CompiledDecode(model, len(shape.plain))
        logits = trace.run(trace.trace(), batch)
    else:
        logits = model(batch.tokens[:, None], cache=batch.caches())[:, -1]
    mx.eval(logits)
    return [logits[index] for index in range(len(rows))]


def _grouped(model: Any, shape: Shape, rows: Sequence[list[int]]) -> list[mx.array]:
    """Compute both rows' last chunks as one padded batch, from different depths."""
    own = [new_caches(model, shape.plain, 0) for _ in rows]
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
    """Return the row's last logits with others behind it: the last position is not its own."""
    caches = new_caches(model, shape.plain, 0)
    padded = mx.array([[*row, 0, 0, 0]])
    return head.logits(lambda: model(padded, cache=caches), [0], [len(row) - 1])[0]


def _agree(compute: Callable[[], Sequence[mx.array]], wanted: Sequence[mx.array]) -> bool:
    """Return whether the logits are the same but for rounding; a model that cannot is no error."""
    try:
        found = compute()
        return all(_close(one, other) for one, other in zip(found, wanted, strict=True))
    except Exception:
        return False


def _close(one: mx.array, other: mx.array) -> bool:
    tolerance = TOLERANCE if other.dtype == mx.float32 else HALF_TOLERANCE
    a, b = one.astype(mx.float32), other.astype(mx.float32)
    scale = mx.maximum(mx.max(mx.abs(b)), 1.0)
    return bool((mx.max(mx.abs(a - b)) <= tolerance * scale).item())
