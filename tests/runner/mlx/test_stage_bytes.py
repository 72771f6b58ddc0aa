"""A stage of a pipeline computes the same from its own bytes alone: all others are NaN here."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from runner.mlx.model.load import load_weights
from runner.mlx.ranks.shard import own_part
from tests.harness.families import MODELS, QUANTISED, SMALL, write_model
from worker.models.layer_bytes import Layers, needs, tensor_ranges
from worker.models.layers import FETCHED_IN_PARTS, Place, place_of

LAYERS = int(SMALL["num_hidden_layers"])
SHOWN = {
    **MODELS,
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "mistral": {"model_type": "mistral", "tie_word_embeddings": False},
}
SPLITS = [(0, 2), (1, 3), (2, 4), (3, 4)]


@dataclass
class Context:
    sharding: str
    first_layer: int
    last_layer: int


@dataclass
class SilentComm:
    """A rank of a pipeline by itself: nothing arrives, nothing departs."""

    context: Context

    @property
    def leads(self) -> bool:
        return self.context.last_layer == LAYERS

    @property
    def is_first_stage(self) -> bool:
        return self.context.first_layer == 0

    pipes = True
    hears = True


def out_of(folder: Path, first: int, last: int) -> mx.array:
    comm: Any = SilentComm(Context("pipeline", first, last))
    loaded = load_weights(folder, "float32", lambda _progress: None, partial(own_part, comm))
    loaded.model.rehearsing = True
    tokens = mx.array([[5, 9, 44, 7]])
    out = loaded.model(tokens, cache=make_prompt_cache(loaded.module)[first:last])
    mx.eval(out)
    return out


def poisoned(whole: Path, to: Path, first: int, last: int) -> Path:
    """A copy in which the bytes of every tensor that this stage does not need are NaN."""
    shutil.copytree(whole, to)
    file = to / "model.safetensors"
    content = bytearray(file.read_bytes())
    ranges = tensor_ranges(bytes(content))
    assert ranges is not None
    needed = needed_names(ranges, Layers(first, last, LAYERS))
    spoilt = 0
    for name, (start, end) in ranges.items():
        if name not in needed:
            content[start:end] = b"\xff" * (end - start)
            spoilt += 1
    assert spoilt, "some tensors are of others"
    file.write_bytes(content)
    return to


def needed_names(names: Any, layers: Layers) -> set[str]:
    places: dict[str, Place] = {name: place_of(name, layers.count) for name in names}
    projects = "projection" in places.values()
    return {name for name, place in places.items() if needs(place, layers, projects=projects)}


@pytest.mark.parametrize("family", sorted(FETCHED_IN_PARTS))
def test_a_stage_needs_no_byte_but_its_own(family: str, tmp_path: Path) -> None:
    compare(write_model(tmp_path / "whole", SHOWN[family]), tmp_path)


@pytest.mark.parametrize("name", sorted(QUANTISED))
def test_nor_does_one_of_a_quantised_model(name: str, tmp_path: Path) -> None:
    compare(write_model(tmp_path / "whole", QUANTISED[name]), tmp_path)


def compare(whole: Path, tmp_path: Path) -> None:
    for first, last in SPLITS:
        part = poisoned(whole, tmp_path / f"{first}-{last}", first, last)
        right, found = out_of(whole, first, last), out_of(part, first, last)
        assert bool(mx.isfinite(found).all()), f"{first} to {last} reads others' bytes"
        assert bool(mx.array_equal(found, right)), f"{first} to {last}"


def test_a_stage_that_lacks_a_layer_is_noticed_here(tmp_path: Path) -> None:
    whole = write_model(tmp_path / "whole", MODELS["llama"])
    part = poisoned(whole, tmp_path / "part", 0, 2)
    assert not bool(mx.isfinite(out_of(part, 0, 3)).all())
