# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (mlx.nn and mlx_lm are partially typed)
"""Talks to MLX: loads the adapters in a model's folder and checks them against the model's layers.

They are read when the model is loaded, before it serves. An adapter that cannot be applied is
refused with the reason; the other adapters are used. A rank of a pipeline holds the matrices of its
own layers; a rank of a tensor group holds its part of each layer's matrices.
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
"""The part of each linear layer that a rank of a tensor group computes, by path."""


@dataclass(frozen=True, slots=True)
class _Read:
    """An adapter's files and its matrices (in, rank) and (rank, out), by layer path, for the layers
    of this process."""

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
    """Return the adapters of a model's folder, applied to `module`. `float32`: cast them to 32
    bits, as the model was. `shares` are those of a rank of a tensor group. `only`: load just these
    names; None: all."""
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
        raise BadAdapter(f"neither {' nor '.join(WEIGHTS_FILES)} is in its folder")
    with open(path, "rb") as file:
        begin = file.read(8)
        head = begin + file.read(min(int.from_bytes(begin, "little"), MAX_HEADER_BYTES))
    files = adapter_files(config, shapes_in(head, path.stat().st_size))
    arrays: dict[str, mx.array] = mx.load(str(path))  # pyright: ignore[reportAssignmentType]
    matrices: dict[str, tuple[mx.array, mx.array]] = {}
    for name, pair in files.pairs.items():
        at = _layer(name, modules)
        if "weight" not in modules[at]:
            continue  # another rank's
        share = _share(name, at, modules[at], shares)
        _check(name, pair, share)
        if at in matrices:
            raise BadAdapter(f"{name} has two adapters")
        a, b = arrays[pair.a], arrays[pair.b]
        if files.transposed:
            a, b = a.T, b.T
        if float32:
            a, b = a.astype(mx.float32), b.astype(mx.float32)
        if not (mx.isfinite(a).all() & mx.isfinite(b).all()).item():
            raise BadAdapter(f"the matrices of {name} contain numbers that are not finite")
        matrices[at] = share.cut(a, b)
    with open(path, "rb") as file:
        digest = hashlib.sha256(config_bytes + hashlib.file_digest(file, "sha256").digest())
    return _Read(files, matrices, digest.hexdigest()[:32])


def _layer(name: str, modules: Mapping[str, Any]) -> str:
    """Return the path of the model's layer that an adapter calls `name`. It is the same path, or
    the only path with the same end from the layer number on, because multimodal models nest their
    language part deeper."""
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
        raise BadAdapter(f"{name} is a {kind}; only linear layers can have adapters, not experts")
    if shares is None:
        return whole_share(module)
    if path not in shares:
        raise BadAdapter(
            f"shoal does not know how the ranks of a tensor group share {name}; run "
            "the model on one node or as a pipeline"
        )
    return shares[path]


def _check(name: str, pair: Pair, share: LinearShare) -> None:
    if (pair.width_in, pair.width_out) != (share.width_in, share.width_out):
        raise BadAdapter(
            f"the adapter of {name} has width {pair.width_in} to {pair.width_out}, "
            f"but the layer has {share.width_in} to {share.width_out}; it belongs to "
            "another model"
        )


def _stacked(adapters: list[_Read]) -> dict[str, LayerMatrices]:
    """Return for each layer the stacked matrices of all adapters, with zeros as the first. They are
    evaluated layer by layer."""
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
