# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# (mlx.nn and mlx_lm are partially typed)
"""Talks to MLX: makes one stage of a pipeline from a model of any family.

The model's own forward pass runs unchanged. Layers of other stages have no weights and return their
input. The first layer of this stage receives its input from the previous stage, and the last layer
sends its output to the next stage. A model finds its caches by the number of a layer, for example
to make masks. So for a layer of another stage, it finds a cache of this stage of the same kind.
Results that a rank does not need (embeddings or logits) are never evaluated. Rank 0 has the last
layers, as in mlx-lm.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx import nn

from runner.library import CacheList, make_prompt_cache
from runner.mlx.ranks import layer_probe
from runner.mlx.ranks.comm import GroupComm


class StageModel:
    """One stage of a pipeline, or one rank of a tensor group, which has all layers. It is called
    like the model, with the caches of its own layers.

    On the lead it returns logits, and on other ranks the output of its last layer, (rows, tokens,
    width). While `rehearsing`, nothing is sent, and hidden states are made from the token ids
    instead of received, so that each rank can be tried alone. A compiled trace must not contain a
    receive, which would become a constant. So a trace has only `inner`; the caller runs `receive`
    before it and `hand_on` after it.
    """

    def __init__(self, module: nn.Module, comm: GroupComm, first: int, last: int) -> None:
        self.module = module
        self.rehearsing = False
        self._comm = comm
        layers = _layers(module)
        if not 0 <= first < last <= len(layers):
            raise layer_probe.Unsplittable(
                f"{first} to {last} is not a range of the model's {len(layers)} layers"
            )
        kinds = [_kind(cache) for cache in make_prompt_cache(module)]
        self._caches = tuple(range(len(kinds)))
        path = layer_probe.HiddenPath(0)
        if comm.pipes:
            flow = layer_probe.flow_of(module, layers)
            self._caches, path = flow.caches_of(first, last), flow.path
        stand_ins = _stand_ins(kinds, self._caches)
        own = slice(first, last)
        if None in stand_ins and layer_probe.looks_elsewhere(module, layers, own, stand_ins):
            raise layer_probe.Unsplittable(
                f"layers {first} to {last} read caches of other kinds of layers"
            )
        if comm.pipes and not comm.hears and layer_probe.asks_tokens(module, layers, own, path):
            raise layer_probe.Unsplittable(
                f"layers {first} to {last} read the tokens, which only the first and "
                "the last stage receive; use two ranks"
            )
        self._places = [None if at is None else self._caches.index(at) for at in stand_ins]
        self._inputs: mx.array | None = None
        self._given: mx.array | None = None
        self._is_inner = False
        self._like: tuple[int, mx.Dtype] | None = None
        self._out: mx.array | None = None
        self.vocabulary = 0
        for index, layer in enumerate(layers):
            if not first <= index < last:
                _empty(layer, path)
        self._receives = comm.pipes and first > 0
        before = self._arrive if self._receives else None
        after = None if comm.leads else self._depart
        if before is not None:
            _wrap(layers[first], path, before, None)
        if after is not None:
            _wrap(layers[last - 1], path, None, after)
        self.own_layers: list[Any] = layers[first:last]

    def make_cache(self) -> list[Any]:
        """Return mlx-lm's empty caches of this stage's layers."""
        made = make_prompt_cache(self.module)
        return [made[at] for at in self._caches]

    def __call__(self, inputs: mx.array, cache: Sequence[Any]) -> mx.array:
        self._inputs, self._out = inputs, None
        everywhere = [None if at is None else cache[at] for at in self._places]
        logits = self.module(inputs, cache=everywhere)
        self.vocabulary = int(logits.shape[-1])
        return logits if self._comm.leads or self._out is None else self._out

    @contextmanager
    def rehearsal(self) -> Generator[None]:
        """Within the context, calls compute this rank alone, without exchanges."""
        self.rehearsing = True
        try:
            yield
        finally:
            self.rehearsing = False

    def receive(self, inputs: mx.array) -> list[mx.array]:
        """Return a list with the hidden states from the previous stage, for `inner`. They may not
        have arrived yet. The list is empty if there is no previous stage. `inputs` are the input
        tokens, (rows, tokens). Requires an earlier rehearsal."""
        if not self._receives:
            return []
        assert self._like is not None, "the stage received hidden states before any rehearsal"
        width, dtype = self._like
        if self.rehearsing:
            return [_made_up(inputs, width, dtype)]
        return [self._comm.recv_hidden((*inputs.shape, width), dtype)]

    def inner(self, inputs: mx.array, cache: Sequence[Any], given: Sequence[mx.array]) -> mx.array:
        """Run the forward pass without exchanges between stages. `given` is the result of
        `receive`."""
        self._is_inner, self._given = True, given[0] if given else None
        try:
            return self(inputs, cache)
        finally:
            self._is_inner, self._given = False, None
            self._inputs = self._out = None

    def hand_on(self, out: mx.array) -> mx.array:
        """Return the output of `inner`. If there is a next stage, evaluating the result sends it
        there."""
        if self._comm.pipes and not self._comm.leads and not self.rehearsing:
            return self._comm.send_hidden(out)
        return out

    def _arrive(self, hidden: mx.array) -> mx.array:
        if not isinstance(hidden, mx.array):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise layer_probe.Unsplittable(layer_probe.MORE)
        if self._is_inner:
            assert self._given is not None
            return self._given
        if not self.rehearsing:
            return self._comm.recv_hidden(hidden.shape, hidden.dtype)
        assert self._inputs is not None
        self._like = hidden.shape[-1], hidden.dtype
        return _made_up(self._inputs, *self._like)

    def _depart(self, hidden: Any) -> Any:
        if not isinstance(hidden, mx.array):
            if self._comm.pipes:
                raise layer_probe.Unsplittable(layer_probe.MORE)
            return hidden
        if not self._is_inner:
            hidden = self.hand_on(hidden)
        self._out = hidden
        return hidden


def _made_up(inputs: mx.array, width: int, dtype: mx.Dtype) -> mx.array:
    phases = (inputs[..., None] + 1) * (mx.arange(width) + 1)
    return mx.sin(phases * 0.37).astype(dtype)


def _layers(module: nn.Module) -> list[Any]:
    layers = getattr(module, "layers", None)
    if not isinstance(layers, list) or not all(isinstance(layer, nn.Module) for layer in layers):
        raise layer_probe.Unsplittable("the model's layers are not in a plain list")
    return layers


def _kind(cache: Any) -> tuple[Any, ...]:
    if isinstance(cache, CacheList):
        return (CacheList, *(_kind(inner) for inner in cache.caches))
    settings = (getattr(cache, name, None) for name in ("max_size", "chunk_size", "keep"))
    return (type(cache), *settings)


def _stand_ins(kinds: Sequence[tuple[Any, ...]], own: Sequence[int]) -> list[int | None]:
    """Return for each cache of the model the index of the stage's own cache that the model finds in
    its place; None if the stage has none of that kind."""
    first_of = {kinds[at]: at for at in reversed(own)}
    return [at if at in own else first_of.get(kind) for at, kind in enumerate(kinds)]


def _empty(layer: Any, path: layer_probe.HiddenPath) -> None:
    """Free a layer's weights, and make it return its hidden states unchanged. It keeps its other
    attributes, because the model's forward pass may read them."""
    for module in layer.modules():
        for name in [name for name, value in module.items() if isinstance(value, mx.array)]:
            dict.pop(module, name)

    def passed_on(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the hidden states among the arguments, in the form of a layer's result."""
        return path.returning(path.hidden_in(args, kwargs))

    layer_probe.retype(layer, "Elsewhere", passed_on)


def _wrap(
    layer: Any,
    path: layer_probe.HiddenPath,
    before: Callable[[mx.array], mx.array] | None,
    after: Callable[[mx.array], mx.array] | None,
) -> None:
    inner = type(layer).__call__

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Apply `before` to the layer's hidden states, call the layer, and apply `after` to the
        hidden states of its result."""
        if before is not None:
            args, kwargs = path.giving(before(path.hidden_in(args, kwargs)), args, kwargs)
        out = inner(self, *args, **kwargs)
        return out if after is None else path.returning(after(path.returned(out)), out)

    layer_probe.retype(layer, "Edge", called)
