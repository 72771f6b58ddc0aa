# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false
# (mlx.nn and numpy are partially typed)
"""Our attention and activations on x86 give what MLX's give, in rows of any number."""

from __future__ import annotations

import math
import platform
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx import nn
from mlx.nn.layers import activations

from runner.mlx.model import cpu_math

WIDTH = 16
MLX_ATTENTION = mx.fast.scaled_dot_product_attention


@st.composite
def questions(draw: st.DrawFn) -> dict[str, Any]:
    """Return what attention is asked: rows, heads, queries and keys of any number, and a mask of
    each kind that models make."""
    rows, groups, per_group = (draw(st.integers(1, 3)) for _ in range(3))
    count = draw(st.integers(1, 90))
    before = draw(st.integers(0, 40))
    key = mx.random.key(draw(st.integers(0, 1 << 30)))
    parts = mx.random.split(key, 4)
    seen = before + count
    shape = draw(st.sampled_from([(count, seen), (rows, 1, 1, seen), (rows, 1, count, seen)]))
    hidden = mx.random.bernoulli(0.3, shape, key=parts[3])
    # Each query sees the first key, as each has one that it sees.
    hidden = hidden & (mx.arange(seen) > 0)
    mask = draw(st.sampled_from([None, "causal", ~hidden, mx.where(hidden, -1e9, mx.array(0.25))]))
    return {
        "queries": 3 * mx.random.normal((rows, groups * per_group, count, WIDTH), key=parts[0]),
        "keys": mx.random.normal((rows, groups, seen, WIDTH), key=parts[1]),
        "values": mx.random.normal((rows, groups, seen, WIDTH), key=parts[2]),
        "mask": mask,
    }


@given(questions(), st.sampled_from([1, 64, 1 << 18]))
def test_attention_is_that_of_mlx(asked: dict[str, Any], at_once: int) -> None:
    """Cut into blocks of queries or not, with each kind of mask."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_math, "SCORES_AT_ONCE", at_once)
        ours = cpu_math.attention(*list(asked.values())[:3], scale=0.3, mask=asked["mask"])
    theirs = MLX_ATTENTION(
        asked["queries"], asked["keys"], asked["values"], scale=0.3, mask=asked["mask"]
    )
    np.testing.assert_allclose(np.array(ours), np.array(theirs), atol=4e-6)


@given(st.integers(1, 60), st.integers(1, 40), st.integers(0, 1 << 30))
def test_a_row_is_the_same_where_others_are_longer(length: int, more: int, seed: int) -> None:
    """Columns that a mask hides change no bit of a weight: a row alone and one in a batch agree."""
    scores = 5 * mx.random.normal((2, 1, length), key=mx.random.key(seed))
    wide = mx.concatenate([scores, mx.full((2, 1, more), -3.4e38)], axis=-1)
    for narrow in (scores, scores[:1]):
        top = narrow.max(axis=-1, keepdims=True)
        alone = cpu_math.exp_below(narrow, top)
        batched = cpu_math.exp_below(wide, wide.max(axis=-1, keepdims=True))
        assert mx.array_equal(alone, batched[: narrow.shape[0], :, :length])
        total, padded = alone.sum(axis=-1), batched[: narrow.shape[0]].sum(axis=-1)
        assert mx.array_equal(total, padded)


def test_exp_is_exact_to_some_last_digits() -> None:
    """From 0 down to where it is as good as nothing."""
    x = mx.linspace(-86.0, 0.0, 200_001)
    ours = np.array(cpu_math.exp_below(x, mx.array(0.0))).astype(np.float64)
    exact = np.exp(np.array(x).astype(np.float64))
    # A last digit of x itself is worth that much of its exponential.
    bound = 4e-7 + 1.2e-7 * np.abs(np.array(x))
    assert np.all(np.abs(ours / exact - 1) < bound)
    least = cpu_math.exp_below(mx.array([-math.inf, -1e30]), mx.array(0.0))
    assert float(np.array(least).max()) < 1e-37


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_approx"])
def test_activations_are_those_of_mlx(name: str) -> None:
    """Over all that a float32 holds, and at its ends."""
    exact: Any = {
        "silu": lambda x: x / (1 + np.exp(-x)),
        "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
        "gelu_approx": lambda x: (
            x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        ),
    }[name]
    ours = getattr(cpu_math, name)
    x = mx.linspace(-40.0, 40.0, 20_001)
    wanted = exact(np.array(x).astype(np.float64))
    found = np.array(ours(x)).astype(np.float64)
    assert np.all(np.abs(found - wanted) < 4e-7 * np.maximum(1.0, np.abs(np.array(x))))
    assert ours(mx.array([1e6, -1e6])).tolist() == [1e6, 0.0]
    halves = mx.array([-1.5, 0.5], dtype=mx.bfloat16)
    assert mx.array_equal(ours(halves), cpu_math.MLX_ACTIVATIONS[name](halves))


def test_what_is_not_computed_here_is_asked_of_mlx() -> None:
    """Other types of numbers, sinks, and more queries than keys."""
    queries, keys = mx.random.normal((1, 2, 4, WIDTH)), mx.random.normal((1, 2, 4, WIDTH))
    sinks = mx.zeros((2,))
    assert mx.array_equal(
        cpu_math.attention(queries, keys, keys, scale=1.0, sinks=sinks),
        MLX_ATTENTION(queries, keys, keys, scale=1.0, sinks=sinks),
    )
    low = [part.astype(mx.bfloat16) for part in (queries, keys, keys)]
    assert mx.array_equal(
        cpu_math.attention(*low, scale=1.0, mask="causal"),
        MLX_ATTENTION(*low, scale=1.0, mask="causal"),
    )
    with pytest.raises(ValueError, match="mask"):
        cpu_math.attention(queries, keys, keys, scale=1.0, mask="casual")


@pytest.mark.parametrize(("machine", "ours"), [("x86_64", True), ("arm64", False)])
def test_they_are_put_in_place_on_x86_alone(
    machine: str, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Mac's MLX has vectors of its own."""
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", MLX_ATTENTION)
    for module in (nn, activations):
        for name, own in cpu_math.MLX_ACTIVATIONS.items():
            monkeypatch.setattr(module, name, own)
    cpu_math.install()
    assert (mx.fast.scaled_dot_product_attention is cpu_math.attention) is ours
    assert (nn.silu is cpu_math.silu) is ours
    assert (activations.gelu is cpu_math.gelu) is ours
