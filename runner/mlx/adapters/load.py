# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (mlx.nn and mlx_lm are partially typed)
"""Talks to MLX: loads the adapters in a model's folder and checks them against the model's layers.

Adapters are read while the model is loaded, before it serves requests. An adapter that cannot be
applied is refused with a reason; the other adapters are used. A rank of a pipeline holds the
matrices of its own layers. A rank of a tensor group holds its part of each layer's matrices.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn

from bus.models.lora import (
    CONFIG_FILE,
    FOLDER,
    MAX_ADAPTERS,
    MAX_CONFIG_BYTES,
    MAX_HEADER_BYTES,
    WEIGHTS_FILES,
    AdapterFiles,
    BadAdapter,
    Pair,
    adapter_files,
    config_in,
    is_adapter_name,
    shapes_in,
)
from runner.mlx.adapters.bank import AdapterBank, LayerMatrices
from runner.mlx.ranks.linear_shares import CUT, LINEAR, LinearShare, whole_share

Shares = Mapping[str, LinearShare]
"""The part of each linear layer that a rank of a tensor group computes, by the layer's path in the
model."""


@dataclass(frozen=True, slots=True)
class _Read:
    """An adapter that was read. `matrices` maps the path of each layer of this process to its LoRA
    matrices, (inputs, rank) and (rank, outputs)."""

    files: AdapterFiles
    matrices: Mapping[str, tuple[mx.array, mx.array]]
    digest: str


def load_adapters(
    folder: Path,
    module: nn.Module,
    *,
    float32: bool,
    shares: Shares | None = None,
    only: Collection[str] | None = None,
) -> AdapterBank:
    """Load the adapters in a model's folder, apply them to the model `module`, and return them.
    `float32`: cast their matrices to float32, as the model was. `shares`: the part of each layer
    that this rank of a tensor group computes. `only`: load only adapters with these names; None
    loads all."""
    bank = AdapterBank()
    modules = dict(module.named_modules())
    adapters: dict[str, _Read] = {}
    for place in adapter_folders(folder):
        if only is not None and place.name not in only:
            continue
        try:
            if not is_adapter_name(place.name):
                raise BadAdapter("requests cannot use this name; rename the folder")
            if len(adapters) == MAX_ADAPTERS:
                raise BadAdapter(f"a model has at most {MAX_ADAPTERS} adapters")
            adapters[place.name] = _read(place, modules, shares, float32=float32)
        except BadAdapter as error:
            bank.refused[place.name] = str(error)
        except (OSError, ValueError, RuntimeError, MemoryError) as error:
            bank.refused[place.name] = f"{type(error).__name__}: {error}"
    if adapters:
        layers = _stacked(list(adapters.values()))
        bank.hold({name: read.files.scale for name, read in adapters.items()}, layers, modules)
        bank.digests = {name: read.digest for name, read in adapters.items()}
    return bank


def adapter_folders(folder: Path) -> list[Path]:
    """Return the folders of a model's adapters, sorted by name."""
    try:
        inside = sorted((folder / FOLDER).iterdir())
    except OSError:
        return []
    return [path for path in inside if path.is_dir() and not path.name.startswith(".")]


def _read(
    folder: Path, modules: Mapping[str, Any], shares: Shares | None, *, float32: bool
) -> _Read:
    with open(folder / CONFIG_FILE, "rb") as file:
        config_bytes = file.read(MAX_CONFIG_BYTES + 1)
    config = config_in(config_bytes)
    path = next((folder / name for name in WEIGHTS_FILES if (folder / name).exists()), None)
    if path is None:
        raise BadAdapter(f"neither {' nor '.join(WEIGHTS_FILES)} is in the adapter's folder")
    with open(path, "rb") as file:
        begin = file.read(8)
        head = begin + file.read(min(int.from_bytes(begin, "little"), MAX_HEADER_BYTES))
    files = adapter_files(config, shapes_in(head, path.stat().st_size))
    arrays: dict[str, mx.array] = mx.load(str(path))  # pyright: ignore[reportAssignmentType]
    matrices: dict[str, tuple[mx.array, mx.array]] = {}
    for name, pair in files.pairs.items():
        at = _layer(name, modules)
        if "weight" not in modules[at]:
            continue  # this layer belongs to another rank
        share = _share(name, at, modules[at], shares)
        _check(name, pair, share)
        if at in matrices:
            raise BadAdapter(f"the adapter has two pairs of matrices for the layer {name}")
        a, b = arrays[pair.a], arrays[pair.b]
        if files.transposed:
            a, b = a.T, b.T
        if float32:
            a, b = a.astype(mx.float32), b.astype(mx.float32)
        if not (mx.isfinite(a).all() & mx.isfinite(b).all()).item():
            raise BadAdapter(
                f"the matrices for the layer {name} contain numbers that are not finite"
            )
        matrices[at] = share.cut(a, b)
    with open(path, "rb") as file:
        digest = hashlib.sha256(config_bytes + hashlib.file_digest(file, "sha256").digest())
    return _Read(files, matrices, digest.hexdigest()[:32])


def _layer(name: str, modules: Mapping[str, Any]) -> str:
    """Return the path of the model's layer that an adapter calls `name`. This is `name` itself if
    the model has that path. Otherwise it is the only path that ends like `name`, from "layers." on,
    because multimodal models nest their language model deeper. Raises BadAdapter if there is no
    such layer."""
    if name in modules:
        return name
    tail = "." + name[name.find("layers.") :]
    alike = [path for path in modules if path.endswith(tail)] if "layers." in name else []
    if len(alike) != 1:
        raise BadAdapter(f"the model has no layer {name}")
    return alike[0]


def _share(name: str, path: str, module: Any, shares: Shares | None) -> LinearShare:
    if not isinstance(module, LINEAR | CUT):
        kind = type(module).__name__
        raise BadAdapter(
            f"the layer {name} is a {kind}; only linear layers can have adapters, not experts"
        )
    if shares is None:
        return whole_share(module)
    if path not in shares:
        raise BadAdapter(
            f"shoal does not know how the ranks of a tensor group share the layer {name}; run "
            "the model on one node or as a pipeline"
        )
    return shares[path]


def _check(name: str, pair: Pair, share: LinearShare) -> None:
    if (pair.width_in, pair.width_out) != (share.width_in, share.width_out):
        raise BadAdapter(
            f"the adapter's matrices for the layer {name} have {pair.width_in} inputs and "
            f"{pair.width_out} outputs, but the layer has {share.width_in} and "
            f"{share.width_out}; the adapter belongs to another model"
        )


def _stacked(adapters: list[_Read]) -> dict[str, LayerMatrices]:
    """Return the stacked matrices of all adapters for each layer. The first matrix of each stack is
    zeros. The stacks are evaluated layer by layer, to save memory."""
    layers: dict[str, LayerMatrices] = {}
    for path in sorted({path for adapter in adapters for path in adapter.matrices}):
        own = [adapter.matrices.get(path) for adapter in adapters]
        some = [matrices for matrices in own if matrices is not None]
        rank = max(a.shape[1] for a, _ in some)
        kind = mx.float32 if any(a.dtype == mx.float32 for a, _ in some) else some[0][0].dtype
        zeros = (
            mx.zeros((some[0][0].shape[0], rank), kind),
            mx.zeros((rank, some[0][1].shape[1]), kind),
        )
        padded = [
            zeros,
            *(zeros if matrices is None else _padded(matrices, rank, kind) for matrices in own),
        ]
        made = LayerMatrices(mx.stack([a for a, _ in padded]), mx.stack([b for _, b in padded]))
        mx.eval(made.a, made.b)
        layers[path] = made
    return layers


def _padded(
    matrices: tuple[mx.array, mx.array], rank: int, kind: mx.Dtype
) -> tuple[mx.array, mx.array]:
    a, b = matrices
    lacking = rank - a.shape[1]
    a = mx.pad(a.astype(kind), [(0, 0), (0, lacking)])
    return a, mx.pad(b.astype(kind), [(0, lacking), (0, 0)])
