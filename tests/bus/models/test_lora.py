"""An adapter's files are read by one rule; whatever they hold, the worst is a reason."""

from __future__ import annotations

import contextlib
import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.models.lora import (
    AdapterFiles,
    BadAdapter,
    adapter_files,
    is_adapter_name,
    shapes_in,
    stacked_bytes,
)

MLX = {"fine_tune_type": "lora", "lora_parameters": {"rank": 4, "scale": 20.0, "keys": ["x"]}}
PEFT = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none"}
PATH = "model.layers.0.self_attn.q_proj"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


def file(shapes: dict[str, tuple[int, ...]], dtype: str = "F32", width: int = 4) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    at = 0
    for name, shape in shapes.items():
        size = width * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(at)


def read(config: Any, shapes: dict[str, tuple[int, ...]], **kind: Any) -> AdapterFiles:
    data = file(shapes, **kind)
    return adapter_files(config, shapes_in(data, len(data)))


def of_mlx(a: tuple[int, ...] = (64, 4), b: tuple[int, ...] = (4, 32)) -> dict[str, Any]:
    return {f"{PATH}.lora_a": a, f"{PATH}.lora_b": b}


def of_peft(a: tuple[int, ...] = (4, 64), b: tuple[int, ...] = (32, 4)) -> dict[str, Any]:
    before = f"base_model.model.{PATH}"
    return {f"{before}.lora_A.weight": a, f"{before}.lora_B.weight": b}


def test_both_formats_say_the_same_layer_and_their_own_scale() -> None:
    mlx, peft = read(MLX, of_mlx()), read(PEFT, of_peft())
    for one in (mlx, peft):
        (pair,) = one.pairs.values()
        assert (pair.width_in, pair.width_out, pair.rank) == (64, 32, 4)
        assert list(one.pairs) == [PATH]
    assert (mlx.scale, peft.scale) == (20.0, 2.0)
    assert read({**PEFT, "use_rslora": True}, of_peft()).scale == 4.0
    named = {name.replace(".weight", ".default.weight"): s for name, s in of_peft().items()}
    assert list(read(PEFT, named).pairs) == [PATH]


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"bias": "all"}, "biases"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"rank_pattern": {"a": 2}}, "rank_pattern"),
        ({"alpha_pattern": {"a": 2}}, "alpha_pattern"),
        ({"init_lora_weights": "pissa_niter_4"}, "pissa"),
        ({"peft_type": "IA3"}, "IA3"),
        ({"target_parameters": ["experts"]}, "experts"),
        ({"r": 0}, "1 to 256"),
        ({"r": 257}, "1 to 256"),
        ({"r": True}, "1 to 256"),
        ({"lora_alpha": None}, "number"),
        ({"lora_alpha": 1e300}, "is invalid"),
        ({"lora_alpha": float("nan")}, "is invalid"),
    ],
)
def test_what_would_change_a_model_in_another_way_is_refused_by_name(
    said: dict[str, Any], word: str
) -> None:
    with pytest.raises(BadAdapter, match=word):
        read({**PEFT, **said}, of_peft())


@pytest.mark.parametrize(
    "said",
    [
        {"init_lora_weights": "gaussian"},
        {"init_lora_weights": True},
        {"modules_to_save": None},
        {"rank_pattern": {}},
    ],
)
def test_what_says_nothing_is_no_reason(said: dict[str, Any]) -> None:
    assert read({**PEFT, **said}, of_peft()).rank == 4


@pytest.mark.parametrize(
    ("shapes", "word"),
    [
        ({}, "empty"),
        (of_mlx(a=(64, 5)), "do not match"),
        (of_mlx(a=(64, 8), b=(8, 32)), "rank 8"),
        ({f"{PATH}.lora_a": (64, 4)}, "one of its two"),
        ({**of_mlx(), "model.norm.weight": (64,)}, "not part"),
        ({**of_mlx(), f"{PATH}.m": (64,)}, "not part"),
        (of_mlx(a=(2, 4, 64), b=(2, 32, 4)), "experts"),
        ({"model.embed_tokens.lora_a": (9, 4), "model.embed_tokens.lora_b": (4, 9)}, "embeddings"),
        ({"lm_head.lora_a": (9, 4), "lm_head.lora_b": (4, 9)}, "output projection"),
    ],
)
def test_tensors_that_are_no_lora_of_linear_layers_are_refused(
    shapes: dict[str, Any], word: str
) -> None:
    with pytest.raises(BadAdapter, match=word):
        read(MLX, shapes)


def test_other_types_of_numbers_and_cut_files_are_refused() -> None:
    with pytest.raises(BadAdapter, match="I32"):
        read(MLX, of_mlx(), dtype="I32")
    with pytest.raises(BadAdapter, match="bytes"):
        read(MLX, of_mlx(), dtype="F16")
    data = file(of_mlx())
    for size in (0, 4, 8, 40, len(data) - 1):
        with pytest.raises(BadAdapter):
            shapes_in(data[:size], size)


@given(st.binary(max_size=200), st.integers(0, 10**12))
def test_no_head_of_a_file_does_worse_than_being_refused(head: bytes, size: int) -> None:
    try:
        shapes_in(head, size)
    except BadAdapter as error:
        assert len(str(error)) <= 300


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=3), st.integers(0, 99))
def test_no_header_does_worse_than_being_refused(header: dict[str, Any], more: int) -> None:
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    text = json.dumps(
        {
            **{name: {**entry, "shape": one} for name, one in header.items()},
            "offsets": {**entry, "data_offsets": list(header.values())},
        }
    ).encode()
    data = struct.pack("<Q", len(text)) + text + bytes(more)
    with contextlib.suppress(BadAdapter):
        shapes_in(data, len(data))


@given(JSON)
def test_no_configuration_does_worse_than_being_refused(found: Any) -> None:
    data = file(of_mlx())
    tensors = shapes_in(data, len(data))
    for config in (
        found,
        {"lora_parameters": found},
        {**PEFT, "r": found},
        {"peft_type": found},
        {**PEFT, "lora_alpha": found},
        {**MLX, "fine_tune_type": found},
    ):
        with contextlib.suppress(BadAdapter):
            adapter_files(config, tensors)


def test_what_is_in_memory_is_padded_to_the_largest_rank_with_zeros_for_none() -> None:
    other = {**MLX, "lora_parameters": {"rank": 8, "scale": 1.0}}
    first, second = read(MLX, of_mlx()), read(other, of_mlx((64, 8), (8, 32)), dtype="F16", width=2)
    assert stacked_bytes([first], float32=False) == {PATH: 2 * 4 * 96 * 4}
    assert stacked_bytes([second], float32=False) == {PATH: 2 * 8 * 96 * 2}
    assert stacked_bytes([second], float32=True) == {PATH: 2 * 8 * 96 * 4}
    assert stacked_bytes([first, second], float32=False) == {PATH: 3 * 8 * 96 * 4}


def test_names_are_those_that_a_request_can_say() -> None:
    assert all(map(is_adapter_name, ("a", "v2.1", "my_pirate-7B")))
    assert not any(
        map(
            is_adapter_name,
            ("", "latest", "..", "a..b", ".a", "-a", "a b", "a/b", "é", "a:b", "x" * 65),
        )
    )
