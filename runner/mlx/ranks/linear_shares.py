# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (mlx.nn is partially typed)
"""Talks to MLX: finds out which part of each linear layer a rank of a tensor group computes.

Only a family's `shard` function knows how it cuts the family's layers. So it cuts a second copy of
the model, whose weights are never read. In this copy, the bias of each layer is the numbers of the
layer's outputs. After the cut, the bias shows which outputs the rank has. Inputs need no such
trick: they are cut into equal parts in the order of ranks, as in all of MLX's sharded layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn

LINEAR = nn.Linear | nn.QuantizedLinear
SUMMED = nn.ShardedToAllLinear | nn.QuantizedShardedToAllLinear
"""Linear layers that are cut by their inputs: every rank computes one term of a sum, and the layer
itself sums the terms of all ranks."""
CUT = SUMMED | nn.AllToShardedLinear | nn.QuantizedAllToShardedLinear


@dataclass(frozen=True, slots=True)
class LinearShare:
    """The part of a linear layer that a rank computes. The whole layer has `width_in` inputs and
    `width_out` outputs. The rank has the range `inputs` and the indices `outputs`; None: all."""

    width_in: int
    width_out: int
    inputs: tuple[int, int] | None = None
    outputs: mx.array | None = None

    def cut(self, a: mx.array, b: mx.array) -> tuple[mx.array, mx.array]:
        """Return this rank's parts of an adapter's matrices. The matrices are (inputs, r) and (r,
        outputs), where r is their rank. The product of the parts is added to this rank's result,
        before any sum over ranks."""
        if self.inputs is not None:
            a = a[slice(*self.inputs)]
        return a, b if self.outputs is None else b[:, self.outputs]


def whole_share(layer: Any) -> LinearShare:
    return LinearShare(_width_in(layer), layer.weight.shape[0])


def numbered(module: nn.Module) -> Mapping[str, LinearShare]:
    """Set the bias of each linear layer in a copy of a model to the indices of its outputs. Return
    the whole layers as shares, by path. The copy cannot be used for computing afterwards."""
    layers = {
        path: module_at
        for path, module_at in module.named_modules()
        if isinstance(module_at, LINEAR)
    }
    wholes = {path: whole_share(layer) for path, layer in layers.items()}
    for path, layer in layers.items():
        layer.bias = mx.arange(wholes[path].width_out, dtype=mx.int32)
    return wholes


def shares_of(
    module: nn.Module, wholes: Mapping[str, LinearShare], rank: int, size: int
) -> dict[str, LinearShare]:
    """Return the part of each linear layer that a rank computes, by the layer's path. `module` is a
    copy of the model that `numbered` prepared and that was then cut for this rank. `wholes` is the
    result of `numbered`. Layers whose cut is not recognised are left out."""
    layers = dict(module.named_modules())
    shares = {path: _share(layers.get(path), whole, rank, size) for path, whole in wholes.items()}
    return {path: share for path, share in shares.items() if share is not None}


def summed_with(layer: Any, x: mx.array, more: Callable[[mx.array], mx.array]) -> mx.array:
    """Return the result of a `SUMMED` layer for `x`. Before the sum over ranks, `more` changes each
    rank's part, for example by adding an adapter's output."""
    if "scales" in layer:
        part = mx.quantized_matmul(
            x,
            layer["weight"],
            scales=layer["scales"],
            biases=layer.get("biases"),
            transpose=True,
            group_size=layer.group_size,
            bits=layer.bits,
            mode=layer.mode,
        )
    else:
        part = x @ layer["weight"].T
    out = mx.distributed.all_sum(more(part), group=layer.group)
    return out + layer["bias"] if "bias" in layer else out


def _share(layer: Any, whole: LinearShare, rank: int, size: int) -> LinearShare | None:
    if not isinstance(layer, LINEAR | CUT):
        return None
    outputs, width_in = layer.bias, _width_in(layer)
    if outputs.dtype != mx.int32 or outputs.shape[0] != layer.weight.shape[0]:
        return None
    inputs = None
    if width_in != whole.width_in:
        if width_in * size != whole.width_in:
            return None
        inputs = rank * width_in, (rank + 1) * width_in
    everything = mx.arange(whole.width_out, dtype=mx.int32)
    is_whole = mx.array_equal(outputs, everything).item()
    return LinearShare(whole.width_in, whole.width_out, inputs, None if is_whole else outputs)


def _width_in(layer: Any) -> int:
    if "scales" in layer:
        return layer.scales.shape[-1] * layer.group_size
    return layer.weight.shape[1]
