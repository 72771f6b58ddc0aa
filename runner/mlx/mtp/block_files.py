# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (`mx.load` and mlx.nn are partially typed)
"""Talks to the disk and MLX: loads a block drafter for its target, strictly, and tries it out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten

from bus.models.block_drafters import CONFIG, BlockShape, block_shape, tensor_problem
from runner.engine import EngineFacts
from runner.mlx.model.files import TOKENIZER, other_vocabulary, wrong_file
from runner.mlx.model.last_token_head import LastTokenHead
from runner.mlx.model.load import Precision, bring_in, computes_in
from runner.mlx.mtp.block_network import BlockNetwork


class UnusableBlock(Exception):
    """The block drafter cannot be used; `args[0]` says why."""


@dataclass(frozen=True, slots=True)
class LoadedBlock:
    """A loaded block drafter. `tap`: its target's embedding and projection."""

    network: BlockNetwork
    shape: BlockShape
    tap: LastTokenHead
    weights_bytes: int
    context_tokens: int


def open_block(
    folder: Path, facts: EngineFacts, target: Path, tap: LastTokenHead, precision: Precision
) -> LoadedBlock | str:
    """Load the block drafter in `folder` for the loaded model in the folder `target`, with these
    facts. Return why it cannot be used if it cannot."""
    try:
        if not tap.can_tap:
            raise UnusableBlock("the model's embedding or projection was not found")
        shape, arrays = _read(folder, target)
        embedded = tap.embedded(mx.array([[0]], mx.int32))
        for name, value, own in (
            ("vocab_size", shape.vocab_size, facts.vocabulary),
            ("hidden_size", shape.hidden_size, embedded.shape[-1]),
        ):
            if value != own:
                raise UnusableBlock(f"its {name} is {value:,}; that of the model is {own:,}")
        network = BlockNetwork(shape)
        network.load_weights(list(arrays.items()))
        # In sixteen bits, the model's own.
        network.set_dtype(computes_in(precision) or embedded.dtype)
        network.eval()
        weights = cast(list[tuple[str, mx.array]], tree_flatten(network.parameters()))
        size = bring_in([array for _, array in weights], lambda _: None)
        return LoadedBlock(network, shape, tap, size, facts.context_tokens)
    except UnusableBlock as error:
        return f"the block drafter cannot be used: {error}"
    except Exception as error:
        return f"the block drafter cannot be used: {type(error).__name__}: {error}"


def _read(folder: Path, target: Path) -> tuple[BlockShape, dict[str, mx.array]]:
    """Return the shape and the tensors in a folder. Raises UnusableBlock, OSError or ValueError."""
    config: Any = json.loads((folder / CONFIG).read_bytes())
    shape = block_shape(cast(dict[str, Any], config) if isinstance(config, dict) else {})
    if isinstance(shape, str):
        raise UnusableBlock(f"{folder.name}/{shape}")
    arrays: dict[str, mx.array] = {}
    for path in sorted(folder.glob("*.safetensors")):
        if (problem := wrong_file(path)) is not None:
            raise UnusableBlock(f"{folder.name}/{path.name} {problem}")
        arrays.update(cast(dict[str, mx.array], mx.load(str(path))))
    problem = tensor_problem(shape, {name: array.shape for name, array in arrays.items()})
    if problem is None and (folder / TOKENIZER).exists():
        problem = other_vocabulary(folder, target)
    if problem is not None:
        raise UnusableBlock(problem)
    return shape, arrays
