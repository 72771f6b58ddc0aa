# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (mlx.nn is partially typed)
"""Talks to MLX: finds out by trial how a model's forward passes hidden states between layers.

In a trial forward pass, every layer records its arguments and returns new arrays of NaN. Only
arguments other than hidden states are evaluated. The records show which argument is the output of
the previous layer, and whether each layer is called once and in order. They also show whether the
model computes anything between layers, and whether a layer uses anything else from earlier layers.
A model that fails these checks would give wrong results if it were split into pipeline stages.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten, tree_map

from runner.library import make_prompt_cache

Key = int | str
"""Identifies an argument of a call, by its position or its keyword."""
TWO = ((0, 1),)
MORE = "the model's layers pass more than hidden states to each other"


class Unsplittable(Exception):
    """A model cannot be split between ranks in the requested way; `args[0]` says why."""


@dataclass(frozen=True, slots=True)
class HiddenPath:
    """Where a layer's hidden states are: in the argument `key`, and in its result. The result is
    the hidden states themselves (`element` None), or a tuple of `width` elements, of which number
    `element` is the hidden states."""

    key: Key
    element: int | None = None
    width: int = 1

    def hidden_in(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the hidden states among a layer's arguments."""
        return kwargs[self.key] if isinstance(self.key, str) else args[self.key]

    def giving(
        self, hidden: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a layer's arguments, with `hidden` in place of their hidden states."""
        if isinstance(self.key, str):
            return args, kwargs | {self.key: hidden}
        return (*args[: self.key], hidden, *args[self.key + 1 :]), kwargs

    def returned(self, out: Any) -> Any:
        """Return the hidden states in a layer's result."""
        return out if self.element is None else out[self.element]

    def returning(self, hidden: Any, out: Sequence[Any] | None = None) -> Any:
        """Return a layer's result with these hidden states. If the result is a tuple, its other
        elements are those of `out`, or None without `out`."""
        if self.element is None:
            return hidden
        rest = [None] * self.width if out is None else list(out)
        return (*rest[: self.element], hidden, *rest[self.element + 1 :])


@dataclass(frozen=True, slots=True)
class LayerFlow:
    """How a model uses its layers. `path` says where the hidden states are. `caches` has for each
    layer the indices of the model's caches that it gets; most layers get one, some none."""

    path: HiddenPath
    caches: tuple[tuple[int, ...], ...]

    def caches_of(self, first: int, last: int) -> tuple[int, ...]:
        """Return the indices of the caches of layers `first` to before `last`, ascending. Raises
        Unsplittable if another layer uses one of these caches too, or if these layers have none."""
        own = {at for caches in self.caches[first:last] for at in caches}
        others = {at for caches in (*self.caches[:first], *self.caches[last:]) for at in caches}
        if own & others:
            raise Unsplittable("the model's layers share caches")
        if not own:
            raise Unsplittable(
                f"layers {first} to {last} have no cache; put them in a larger stage"
            )
        return tuple(sorted(own))


@dataclass(slots=True)
class _Call:
    layer: Any
    given: dict[Key, Any]
    returned: Any

    def holds(self, arrays: set[int], but: Key) -> bool:
        """Return whether an argument of the call, except the argument `but`, is or contains one of
        these arrays. `arrays` has the `id()` of each."""
        rest = [argument for at, argument in self.given.items() if at != but]
        return any(id(leaf) in arrays for _, leaf in tree_flatten(rest))


def flow_of(module: nn.Module, layers: Sequence[Any]) -> LayerFlow:
    """Find out how a model uses its layers. Raises Unsplittable if the layers are not called once
    and in order, if the model computes anything between them, or if they pass anything but hidden
    states to each other."""
    caches = make_prompt_cache(module)
    calls = _noted(module, layers, TWO, caches)
    if [id(call.layer) for call in calls] != [id(layer) for layer in layers]:
        raise Unsplittable("the model's forward does not call every layer once and in order")
    candidates = (
        set.intersection(*(_common(*two) for two in pairwise(calls))) if calls[1:] else {(0, -1)}
    )
    if not candidates:
        raise Unsplittable("the model's forward computes something between layers")
    key, element = min(candidates, key=str)
    out = calls[0].returned
    path = HiddenPath(key) if element < 0 else HiddenPath(key, element, len(out))
    _hold_to(path, calls)
    given = [_within(list(call.given.values())) for call in calls]
    return LayerFlow(
        path,
        tuple(tuple(at for at, cache in enumerate(caches) if id(cache) in ids) for ids in given),
    )


def _within(given: Any) -> set[int]:
    """Return the `id()` of every argument, and of the elements of arguments that are lists or
    tuples."""
    if isinstance(given, list | tuple):
        return {array_id for inner in given for array_id in _within(inner)}
    return {id(given)}


def looks_elsewhere(
    module: nn.Module, layers: Sequence[Any], own: slice, stand_ins: Sequence[int | None]
) -> bool:
    """Return whether layers of this stage depend on caches of other stages. To find out, caches of
    this stage replace those of other stages; the layers' arguments must not change. `stand_ins` has
    for each cache the index of its replacement; None: it has none."""
    arguments: list[list[Any]] = []
    for lacks in (False, True):
        caches = make_prompt_cache(module)
        _noted(module, layers, TWO, caches)
        if lacks:
            # Copies, because in this trial the layers of other stages also write to their caches.
            caches = [
                None if at is None else caches[at] if at == place else copy.deepcopy(caches[at])
                for place, at in enumerate(stand_ins)
            ]
        calls = _noted(module, layers, ((1,),), caches)[own]
        arguments.append(
            [leaf for call in calls for _, leaf in tree_flatten(list(call.given.values()))]
        )
    return len(arguments[0]) != len(arguments[1]) or not all(map(_alike, *arguments))


def asks_tokens(module: nn.Module, layers: Sequence[Any], own: slice, path: HiddenPath) -> bool:
    """Return whether layers of this stage get arguments, other than hidden states, that depend on
    the tokens: for example embeddings per layer."""
    arguments: list[list[Any]] = []
    for tokens in (TWO, ((2, 3),)):
        calls = _noted(module, layers, tokens, make_prompt_cache(module))[own]
        beside = [
            [argument for at, argument in call.given.items() if at != path.key] for call in calls
        ]
        arguments.append([leaf for _, leaf in tree_flatten(beside) if isinstance(leaf, mx.array)])
    pairs = zip(*arguments, strict=True)
    return not all(bool(mx.array_equal(*pair, equal_nan=True).item()) for pair in pairs)


def _alike(first: Any, other: Any) -> bool:
    """Return whether two arguments are equal. Hidden states and caches always count as equal."""
    if isinstance(first, mx.array) and isinstance(other, mx.array):
        is_mask = first.ndim != 3 or not mx.issubdtype(first.dtype, mx.floating)
        return not is_mask or (
            first.shape == other.shape and bool(mx.array_equal(first, other).item())
        )
    return first == other if isinstance(first, bool | int | float | str) else True


def _noted(
    module: nn.Module,
    layers: Sequence[Any],
    tokens: tuple[tuple[int, ...], ...],
    caches: list[Any],
) -> list[_Call]:
    """Run a forward pass in which all layers return NaN, and return the calls of the layers."""
    calls: list[_Call] = []

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the layer, and return NaN in the shape of its result."""
        out = type(self).__mro__[1].__call__(self, *args, **kwargs)
        calls.append(_Call(self, {**dict(enumerate(args)), **kwargs}, tree_map(_spoilt, out)))
        return calls[-1].returned

    with _called_instead(layers, noted):
        module(mx.array(tokens), cache=caches)
    return calls


def _common(call: _Call, following: _Call) -> set[tuple[Key, int]]:
    """Return which arguments of the call `following` are elements of the result of `call`, as pairs
    (argument, element). Element -1 stands for the whole result."""
    out = (
        list(enumerate(call.returned))
        if isinstance(call.returned, tuple)
        else [(-1, call.returned)]
    )
    return {
        (key, element)
        for key, given in following.given.items()
        for element, returned in out
        if given is returned and isinstance(given, mx.array)
    }


def _hold_to(path: HiddenPath, calls: Sequence[_Call]) -> None:
    """Raise Unsplittable if a layer gets anything from earlier layers except the hidden states of
    the previous layer: another result, or an array that was computed from one."""
    made: set[int] = set()
    for before, call in pairwise(calls):
        hidden = path.returned(before.returned)
        made |= {id(leaf) for _, leaf in tree_flatten([before.returned])}
        beside = [
            argument
            for at, argument in call.given.items()
            if at != path.key and argument is not hidden
        ]
        alike = [
            argument
            for argument in beside
            if isinstance(argument, mx.array) and argument.shape == hidden.shape
        ]
        if call.holds(made - {id(hidden)}, path.key) or any(
            _is_spoilt(argument) for argument in alike
        ):
            raise Unsplittable(MORE)


def _spoilt(array: Any) -> Any:
    if not isinstance(array, mx.array) or not mx.issubdtype(array.dtype, mx.floating):
        return array
    return mx.full(array.shape, float("nan"), array.dtype)


def _is_spoilt(given: mx.array) -> bool:
    return bool(mx.isnan(given).any().item())


@contextmanager
def _called_instead(layers: Sequence[Any], call: Callable[..., Any]) -> Generator[None]:
    kinds = [type(layer) for layer in layers]
    for layer in layers:
        retype(layer, "Noted", call)
    try:
        yield
    finally:
        for layer, kind in zip(layers, kinds, strict=True):
            layer.__class__ = kind


def retype(layer: Any, prefix: str, call: Callable[..., Any]) -> None:
    """Replace the `__call__` of this layer by `call`. Other layers of its class do not change. The
    layer's new class has a name that begins with `prefix`."""
    kind = type(layer)
    layer.__class__ = type(prefix + kind.__name__, (kind,), {"__call__": call})
