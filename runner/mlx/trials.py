"""Talks to MLX: what is found out about a model while it loads: adapters that fit, and trials.

In a group every rank makes the same calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bus.models.lora import MAX_ADAPTERS
from bus.wire.kv import KvKind
from runner.group.lockstep import NOT_EVERYWHERE
from runner.mlx.adapters import AdapterBank, adapter_folders, load_adapters
from runner.mlx.model.capabilities import Capabilities, Shape, adapters_agree, try_out
from runner.mlx.model.last_token_head import LastTokenHead
from runner.mlx.model.load import LoadedWeights, open_model
from runner.mlx.ranks.comm import Comm, GroupComm
from runner.mlx.ranks.layer_probe import Unsplittable
from runner.mlx.ranks.pipeline_stage import StageModel
from runner.mlx.ranks.shard import tensor_shares

NO_ROWS_APART = (
    "rows of this model family influence each other, so adapters cannot be chosen per row"
)


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


def try_model(
    loaded: LoadedWeights,
    head: LastTokenHead,
    adapters: AdapterBank,
    measured: Callable[[Any], Shape],
) -> tuple[Shape, Capabilities]:
    """Return the model's (or this rank's part's) KV layout and capabilities. Refuses adapters that
    cannot be chosen per row."""
    model = loaded.model
    if not isinstance(model, StageModel):
        shape = measured(model)
        _try_adapters(model, shape, adapters)
        return shape, try_out(model, shape, head)
    try:
        with model.rehearsal():
            shape = replace(measured(model), vocabulary=model.vocabulary)
            _try_adapters(model, shape, adapters)
            capabilities = try_out(model, shape, head)
    except Exception as error:
        family = loaded.config.get("model_type", "the model")
        raise Unsplittable(f"{family} cannot be split between ranks: {error}") from error
    return shape, capabilities


def kv_words(kind: KvKind, shape: Shape) -> str:
    """Return how the layers of a loaded model hold their KV: "full", "8bit", or "8bit in 4 of 24
    layers"."""
    layers, narrowed = len(shape.codecs), shape.narrowed + len(shape.windowed)
    if not narrowed:
        return "full"
    return kind if narrowed == layers else f"{kind} in {narrowed} of {layers} layers"


def _try_adapters(model: Any, shape: Shape, adapters: AdapterBank) -> None:
    if adapters.names and not adapters_agree(model, shape, adapters):
        adapters.refuse(dict.fromkeys(adapters.names, NO_ROWS_APART))
