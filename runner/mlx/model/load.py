# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# (mlx.nn and mlx_lm are partially typed)
"""Talks to MLX: loads a model from its folder into memory.

Reads weights only from safetensors files, and never runs code from the folder. The calling thread
loads weights one by one and then owns them. So the reported progress counts bytes that are in
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from bus.models.lora import MAX_ADAPTERS
from runner.engine import LoadProgress
from runner.group.lockstep import NOT_EVERYWHERE
from runner.library import load_model
from runner.mlx.adapters import AdapterBank, adapter_folders, load_adapters
from runner.mlx.model import cpu_math
from runner.mlx.model.device import on_gpu
from runner.mlx.model.files import problem_of, unknown_family
from runner.mlx.ranks.comm import Comm, GroupComm
from runner.mlx.ranks.layer_probe import Unsplittable
from runner.mlx.ranks.shard import tensor_shares

Precision = Literal["auto", "float32", "float16", "bfloat16"]
MOST_CACHED_BYTES = 32 << 20
"""The most bytes of freed read buffers that MLX keeps for reuse."""
DEFAULT_CONTEXT_TOKENS = 4096

OwnPart = Callable[[nn.Module, dict[str, Any]], tuple[Any, list[mx.array]]]
"""A function that takes a model (module) and its config.json. It returns the model or the part of
it that this process calls, and the weights to load. It raises Unsplittable if a rank cannot have
its part."""


class UnloadableModel(Exception):
    """The engine cannot run the model in this folder; `args[0]` says why."""


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """A model in memory. `module` is mlx-lm's model. The engine calls `model`: it is `module`, or
    in a group the `StageModel` of this rank. `config` is the folder's config.json, with the end
    tokens of generation_config.json."""

    module: nn.Module
    model: Any
    config: dict[str, Any]
    weights_bytes: int
    precision: str


def whole(module: nn.Module, config: dict[str, Any]) -> tuple[Any, list[mx.array]]:
    """Return the whole model and all its weights. This is the part of a runner without a group."""
    weights = cast(list[tuple[str, mx.array]], tree_flatten(module.parameters()))
    return module, [array for _, array in weights]


def load_weights(
    path: Path,
    precision: Precision,
    progress: Callable[[LoadProgress], None],
    own_part: OwnPart = whole,
) -> LoadedWeights:
    """Load the model in `path`, or this rank's part of it. The calling thread evaluates the
    weights. `progress` gets the bytes loaded so far. Raises UnloadableModel with the reason."""
    cpu_math.install()
    progress(LoadProgress("reading", 0, 0))
    model, config = open_model(path)
    wanted = computes_in(precision)
    if wanted is not None:
        model.set_dtype(wanted)
    model.eval()
    try:
        called, weights = own_part(model, config)
    except Unsplittable as error:
        raise UnloadableModel(f"{path.name}: {error}") from error
    try:
        total = bring_in(weights, progress)
    except RuntimeError as error:
        why = problem_of(path) or f"the model's weights cannot be read: {error}"
        raise UnloadableModel(f"{path.name}: {why}") from error
    name = str(wanted).removeprefix("mlx.core.") if wanted is not None else "as stored"
    return LoadedWeights(model, called, config, total, name)


def open_model(path: Path) -> tuple[nn.Module, dict[str, Any]]:
    """Return the model in `path` and its configuration without reading weights. Raises
    UnloadableModel with the reason."""
    problem = problem_of(path)
    if problem is not None:
        raise UnloadableModel(f"{path.name}: {problem}")
    try:
        return load_model(path, lazy=True, trust_remote_code=False)
    except SystemExit as error:
        raise UnloadableModel(
            f"{path.name}: mlx-lm's code for the model's architecture tried to end the process"
        ) from error
    except Exception as error:
        why = unknown_family(path) or f"{type(error).__name__}: {error}"
        raise UnloadableModel(f"{path.name}: {why}") from error


def bring_in(weights: Sequence[mx.array], progress: Callable[[LoadProgress], None]) -> int:
    """Evaluate weights one by one, and return their total bytes; `progress` gets the bytes so far.

    At the peak, memory holds the loaded weights, one more tensor, and the sources of that tensor.
    The source of a cast tensor is the stored tensor; the sources of an assembled tensor are its
    parts. Raises RuntimeError.
    """
    total = sum(array.nbytes for array in weights)
    done = 0
    progress(LoadProgress("weights", 0, total))
    for array in weights:
        mx.eval(array)
        done += array.nbytes
        if mx.get_cache_memory() > MOST_CACHED_BYTES:
            mx.clear_cache()
        progress(LoadProgress("weights", done, total))
    return total


def computes_in(precision: Precision) -> mx.Dtype | None:
    """Return the data type to which weights are cast before computing. None: compute with the
    weights as they are stored, which is the default on a GPU."""
    if precision == "auto":
        return None if on_gpu() else mx.float32
    return {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}[precision]


def context_of(config: dict[str, Any], limit: int | None) -> int:
    """Return the maximum tokens of a row: the model's context, or `limit` if that is less."""
    text = config.get("text_config") or {}
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
    lengths = [
        source[n] for source in (config, text) for n in names if isinstance(source.get(n), int)
    ]
    most = lengths[0] if lengths else (limit or DEFAULT_CONTEXT_TOKENS)
    return min(most, limit) if limit else most


def end_tokens(config: dict[str, Any]) -> frozenset[int]:
    """Return the ids of the tokens that end a row, according to the model's configuration."""
    ids = config.get("eos_token_id")
    if ids is None:
        ids = (config.get("text_config") or {}).get("eos_token_id")
    if ids is None:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else ids)


def load_bank(
    path: Path, loaded: LoadedWeights, comm: Comm, only: Collection[str] | None
) -> AdapterBank:
    """Load the adapters in the model's folder. The ranks of a tensor group compute every forward
    pass together, even the trials of adapters. So they refuse adapters that one of them lacks."""
    load = partial(
        load_adapters, path, loaded.module, float32=loaded.precision == "float32", only=only
    )
    if not isinstance(comm, GroupComm) or comm.pipes:
        return load()
    shares = tensor_shares(*open_model(path), comm.group) if adapter_folders(path) else {}
    bank = load(shares=shares)
    shared = comm.on_all_ranks([bank.mark(name) for name in bank.names], MAX_ADAPTERS)
    lacking = [name for name, is_shared in zip(bank.names, shared, strict=True) if not is_shared]
    bank.refuse(dict.fromkeys(lacking, NOT_EVERYWHERE))
    return bank
