# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false
# (mlx.nn is partially typed)
"""Talks to MLX: faster attention and activations on x86 processors.

On x86, MLX computes `exp`, `tanh` and `erf` one value at a time, in 9 to 24 ns each. That takes at
least a third of the time of prefill. This module computes them from sums and products, which MLX
vectorises. `tanh` and `erf` are approximated by rational functions, whose largest error was made
minimal with Lawson's algorithm (reweighted least squares). `exp` is computed as a power of two: a
Taylor polynomial for the fraction, and an exponent assembled from bits. Results are within 4e-7 of
the exact values, and do not depend on the number of rows.

On other processors, and for types other than float32, MLX's own functions are used.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.nn.layers import activations

SCORES_AT_ONCE = 1 << 18
"""The largest number of attention scores (rows x heads x queries x keys) that are computed at once,
so that they stay in the cache of a CPU core."""
LEAST_QUERIES = 32
"""The smallest number of queries in one block of attention. A matrix product of fewer would be
inefficient."""

Activation = Callable[[mx.array], mx.array]

_LOWEST = -3.4028235e38
_LOG2_E = 1.4426950408889634
_EXPONENT_BITS = 23
_ROUNDING = float(3 << 22)
"""If a small number is added to this one, the lowest bits of the sum are the nearest integer."""
_POWER_OF_TWO = (
    1.0,
    0.6931471805599453,
    0.24022650695910072,
    0.055504108664821576,
    0.009618129107628477,
    0.0013333558146428441,
    0.00015403530393381606,
)
"""Coefficients of a polynomial for 2 to the power of x, with x between -0.5 and 0.5."""
_TANH_END = 9.0
_TANH = (
    (1.0, 0.140999334, 0.00442691433, 4.22986761e-05, 1.11319927e-07, 3.68347762e-11),
    (1.0, 0.474332667, 0.0292044707, 0.000501020043, 2.60617637e-06, 2.95652659e-09),
)
"""Coefficients of two polynomials in x * x, whose ratio is tanh(x) / x, for x up to `_TANH_END`.
Beyond that, tanh(x) is 1."""
_ERF_END = 4.0
_ERF = (
    (1.12837914, 0.193535808, 0.0531002364, 0.00388286254, 0.000284541665, 1.98668611e-06),
    (1.0, 0.504849203, 0.115345916, 0.0152063049, 0.00118542875, 3.74178875e-05),
)
_MLX_ATTENTION = mx.fast.scaled_dot_product_attention
MLX_ACTIVATIONS: dict[str, Activation] = {
    name: getattr(activations, name) for name in ("silu", "gelu", "gelu_approx")
}


def install() -> None:
    """Replace MLX's attention and activations in this process, where the functions of this module
    are faster. A model that was traced before still uses MLX's own functions."""
    if platform.machine() not in ("x86_64", "AMD64") or mx.default_device() != mx.cpu:
        return
    mx.fast.scaled_dot_product_attention = attention
    for name, own in (("silu", silu), ("gelu", gelu), ("gelu_approx", gelu_approx)):
        for module in (nn, activations):
            setattr(module, name, own)


def attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    *,
    scale: float,
    mask: mx.array | str | None = None,
    **others: Any,
) -> mx.array:
    """Compute the same result as `mx.fast.scaled_dot_product_attention`, and call that function in
    cases that are not covered here. With a causal mask, a block of queries is not multiplied with
    later keys."""
    count, before = queries.shape[2], keys.shape[2] - queries.shape[2]
    ours = queries.dtype == keys.dtype == values.dtype == mx.float32 and before >= 0
    if isinstance(mask, str):
        causal, ours, bias = True, ours and mask == "causal", None
    else:
        causal, bias = False, None if mask is None else _bias(mask, keys.shape[1])
    if not ours or any(value is not None for value in others.values()):
        return _MLX_ATTENTION(queries, keys, values, scale=scale, mask=mask, **others)
    rows, heads, _, width = queries.shape
    groups = keys.shape[1]
    queries = (queries * scale).reshape(rows, groups, heads // groups, count, width)
    if count == 1:  # a single query attends to all keys, unless a mask hides some
        scores = queries.squeeze(3) @ keys.swapaxes(-1, -2)
        scores = scores if bias is None else scores + bias.squeeze(-2)
        return _weighed(scores, values).reshape(rows, heads, 1, -1)
    at_once = max(LEAST_QUERIES, SCORES_AT_ONCE // (rows * heads * keys.shape[2]))
    blocks: list[mx.array] = []
    for start in range(0, count, at_once):
        end = min(start + at_once, count)
        seen = before + end if causal else keys.shape[2]
        # The heads of a group use the same keys, so one product reads these keys only once.
        block = queries[..., start:end, :]
        scores = block.flatten(2, 3) @ keys[..., :seen, :].swapaxes(-1, -2)
        hides = _later(start, end, before) if causal and end - start > 1 else bias
        if hides is not None:
            if not causal and hides.shape[-2] > 1:
                hides = hides[..., start:end, :]
            scores = (scores.reshape(*block.shape[:-1], seen) + hides).flatten(2, 3)
        blocks.append(_weighed(scores, values[..., :seen, :]).reshape(*block.shape[:-1], -1))
    joined = blocks[0] if len(blocks) == 1 else mx.concatenate(blocks, axis=-2)
    return joined.reshape(rows, heads, count, values.shape[-1])


def _weighed(scores: mx.array, values: mx.array) -> mx.array:
    """Return values (..., keys, width) averaged by the softmax of scores (..., queries, keys)."""
    shares = exp_below(scores, scores.max(axis=-1, keepdims=True))
    return shares @ values / shares.sum(axis=-1, keepdims=True)


def exp_below(values: mx.array, top: mx.array) -> mx.array:
    """Return exp(values - top). Requires that no value exceeds `top`."""
    # Operands of equal shapes, so that one compiled form is enough for all shapes.
    mantissa, exponent = _halves(values - top)
    bits = _joined(mx.view(mantissa, mx.int32), mx.view(exponent, mx.int32))
    return mx.view(bits, mx.float32)


def silu(x: mx.array) -> mx.array:
    """Return x times the logistic function of x."""
    return _silu(x) if x.dtype == mx.float32 else MLX_ACTIVATIONS["silu"](x)


def gelu(x: mx.array) -> mx.array:
    """Return x times the standard normal distribution function at x."""
    return _gelu(x) if x.dtype == mx.float32 else MLX_ACTIVATIONS["gelu"](x)


def gelu_approx(x: mx.array) -> mx.array:
    """Return `gelu` in its `tanh` approximation."""
    return _gelu_approx(x) if x.dtype == mx.float32 else MLX_ACTIVATIONS["gelu_approx"](x)


def _bias(mask: mx.array, groups: int) -> mx.array:
    """Return the additive bias for scores of (rows, groups, heads of a group, queries, keys), from
    a mask that broadcasts to (rows, heads, queries, keys)."""
    if mask.dtype == mx.bool_:
        mask = mx.where(mask, mx.array(0.0), mx.array(_LOWEST))
    mask = mask.astype(mx.float32)
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    rows, heads = mask.shape[:2]
    per_group = (1, 1) if heads == 1 else (groups, heads // groups)
    return mask.reshape(rows, *per_group, *mask.shape[2:])


def _later(start: int, end: int, before: int) -> mx.array:
    """Return the bias that hides later keys from each query of a block. The queries are those from
    `start` to before `end`, after `before` earlier tokens."""
    queries = mx.arange(before + start, before + end)[:, None]
    return mx.where(mx.arange(before + end) <= queries, mx.array(0.0), mx.array(_LOWEST))


def _polynomial(x: mx.array, factors: Sequence[float]) -> mx.array:
    """Return the sum of factors times powers of x, by Horner's rule."""
    value = x * factors[-1] + factors[-2]
    for factor in factors[-3::-1]:
        value = value * x + factor
    return value


def _odd_ratio(x: mx.array, end: float, parts: tuple[Sequence[float], Sequence[float]]) -> mx.array:
    x = mx.clip(x, -end, end)
    square = x * x
    return x * _polynomial(square, parts[0]) / _polynomial(square, parts[1])


@partial(mx.compile, shapeless=True)
def _halves(x: mx.array) -> tuple[mx.array, mx.array]:
    """Split exp(x) into two powers of 2. Return 2 to the power of the exponent's fractional part,
    and a number whose lowest bits are the exponent's integer part."""
    # For smaller x, exp(x) would not be a normal float32; it is practically zero.
    scaled = mx.maximum(x, -87.0) * _LOG2_E
    rounded = scaled + _ROUNDING
    return _polynomial(scaled - (rounded - _ROUNDING), _POWER_OF_TWO), rounded


@partial(mx.compile, shapeless=True)
def _joined(mantissa: mx.array, exponent: mx.array) -> mx.array:
    return mantissa + mx.left_shift(exponent, mx.array(_EXPONENT_BITS, mx.int32))


@partial(mx.compile, shapeless=True)
def _silu(x: mx.array) -> mx.array:
    half = x * 0.5
    return half + half * _odd_ratio(half, _TANH_END, _TANH)


@partial(mx.compile, shapeless=True)
def _gelu(x: mx.array) -> mx.array:
    half = x * 0.5
    return half + half * _odd_ratio(x * 0.5**0.5, _ERF_END, _ERF)


@partial(mx.compile, shapeless=True)
def _gelu_approx(x: mx.array) -> mx.array:
    half = x * 0.5
    inner = 0.7978845608028654 * x * (1 + 0.044715 * x * x)
    return half + half * _odd_ratio(inner, _TANH_END, _TANH)
