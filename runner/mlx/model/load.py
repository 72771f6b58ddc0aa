# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# (mlx.nn and mlx_lm are partially typed)
"""Talks to MLX: loads a model directory into memory and reads facts about it.

Reads weights from safetensors only, and never runs code from the directory. The calling thread
loads them one by one and then owns them, so the reported progress is of bytes in memory.
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
"""Returns, for a module and its config.json, the model that this process calls and the weights to
load for it. Raises Unsplittable if a rank cannot have its part."""


class UnloadableModel(Exception):
    """The directory does not hold a model that this engine can run; `args[0]` says why."""


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """`config` is the directory's config.json with the end tokens of generation_config.json.
    `model` is the module, or a rank's `StageModel` of it."""

    module: nn.Module
    model: Any
    config: dict[str, Any]
    weights_bytes: int
    precision: str


def whole(module: nn.Module, config: dict[str, Any]) -> tuple[Any, list[mx.array]]:
    """Return the whole module with all of its weights: the part of a rank that is alone."""
    weights = cast(list[tuple[str, mx.array]], tree_flatten(module.parameters()))
    return module, [array for _, array in weights]


def load_weights(
    path: Path,
    precision: Precision,
    progress: Callable[[LoadProgress], None],
    own_part: OwnPart = whole,
) -> LoadedWeights:
    """Return the model in `path`, or this rank's part of it, its weights evaluated by the calling
    thread. `progress` gets the bytes loaded so far. Raises UnloadableModel with the reason."""
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
            f"{path.name}: the code of its architecture ended the process"
        ) from error
    except Exception as error:
        why = unknown_family(path) or f"{type(error).__name__}: {error}"
        raise UnloadableModel(f"{path.name}: {why}") from error


def bring_in(weights: Sequence[mx.array], progress: Callable[[LoadProgress], None]) -> int:
    """Evaluate weights one by one and return their bytes; `progress` gets the bytes so far.

    At its peak, memory holds the loaded weights, one more tensor, and the sources of that tensor.
    The source is the stored tensor if it is cast, or its parts if it is assembled. Raises
    RuntimeError.
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
    """Return the data type to which weights are cast for computing; None leaves the weights as
    stored, which is right with a GPU."""
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
    """Return the adapters beside the model. Ranks of a tensor group compute every forward together,
    including trials of adapters, so they first agree on adapters that every rank has."""
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
