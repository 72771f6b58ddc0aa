# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (mlx.nn is partially typed)
"""Talks to MLX: how a model's forward hands hidden states from layer to layer, found by trying.

For one forward every layer notes what it is given and returns new arrays of nothing but NaN; of it
nothing is evaluated but what layers are told beside hidden states. So it shows where among its
arguments is what the layer before returned, whether each layer is called once and in order, whether
the forward computes anything in between, and whether a layer takes anything else from those before
it. Such a forward could be split only into wrong numbers.
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
"""Of an argument: its place, or its name."""
TWO = ((0, 1),)
MORE = "its layers pass on more than hidden states"


class Unsplittable(Exception):
    """The family cannot be shared between ranks like this; `args[0]` says why."""


@dataclass(frozen=True, slots=True)
class HiddenPath:
    """Where the hidden states are: among a layer's arguments, and in what it returns, which is
    they alone (`element` None) or a tuple of `width`."""

    key: Key
    element: int | None = None
    width: int = 1

    def given(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the hidden states among a layer's arguments."""
        return kwargs[self.key] if isinstance(self.key, str) else args[self.key]

    def giving(
        self, hidden: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a layer's arguments with other hidden states."""
        if isinstance(self.key, str):
            return args, kwargs | {self.key: hidden}
        return (*args[: self.key], hidden, *args[self.key + 1 :]), kwargs

    def returned(self, out: Any) -> Any:
        """Return the hidden states in what a layer returned."""
        return out if self.element is None else out[self.element]

    def returning(self, hidden: Any, out: Sequence[Any] | None = None) -> Any:
        """Return what a layer returns, with these hidden states; the rest None, or as in `out`."""
        if self.element is None:
            return hidden
        rest = [None] * self.width if out is None else list(out)
        return (*rest[: self.element], hidden, *rest[self.element + 1 :])


@dataclass(frozen=True, slots=True)
class LayerFlow:
    """How a forward goes through its layers: where the hidden states are, and for each layer which
    of the model's caches it is given (most one, some none)."""

    path: HiddenPath
    caches: tuple[tuple[int, ...], ...]

    def caches_of(self, first: int, last: int) -> tuple[int, ...]:
        """Return the caches of layers `first` up to, not including, `last`, in ascending order.
        Unsplittable where another layer has one of them, too, or where they have none."""
        own = {at for one in self.caches[first:last] for at in one}
        others = {at for one in (*self.caches[:first], *self.caches[last:]) for at in one}
        if own & others:
            raise Unsplittable("its layers share caches")
        if not own:
            raise Unsplittable(
                f"layers {first} to {last} have no cache; give them to a larger stage"
            )
        return tuple(sorted(own))


@dataclass(slots=True)
class _Call:
    layer: Any
    given: dict[Key, Any]
    returned: Any

    def holds(self, arrays: set[int], but: Key) -> bool:
        """Return whether one of these arrays is among its arguments, or within them."""
        rest = [one for at, one in self.given.items() if at != but]
        return any(id(leaf) in arrays for _, leaf in tree_flatten(rest))


def flow_of(module: nn.Module, layers: Sequence[Any]) -> LayerFlow:
    """Return how a forward goes through its layers. Unsplittable where hidden states are not all
    that passes from one layer to the next."""
    caches = make_prompt_cache(module)
    calls = _noted(module, layers, TWO, caches)
    if [id(call.layer) for call in calls] != [id(layer) for layer in layers]:
        raise Unsplittable("its forward does not call every layer once, in order")
    found = (
        set.intersection(*(_common(*two) for two in pairwise(calls))) if calls[1:] else {(0, -1)}
    )
    if not found:
        raise Unsplittable("its forward computes something between the layers")
    key, element = min(found, key=str)
    out = calls[0].returned
    path = HiddenPath(key) if element < 0 else HiddenPath(key, element, len(out))
    _hold_to(path, calls)
    given = [_within(list(call.given.values())) for call in calls]
    return LayerFlow(
        path,
        tuple(tuple(at for at, one in enumerate(caches) if id(one) in ids) for ids in given),
    )


def _within(given: Any) -> set[int]:
    """Return the ids of arguments, and of what is in lists or tuples of them."""
    if isinstance(given, list | tuple):
        return {one for inner in given for one in _within(inner)}
    return {id(given)}


def looks_elsewhere(
    module: nn.Module, layers: Sequence[Any], own: slice, stand_ins: Sequence[int | None]
) -> bool:
    """Return whether layers of this stage are told something that is only known from caches of a
    kind which it lacks: `stand_ins` says which cache is in the place of each, None for none."""
    told: list[list[Any]] = []
    for lacks in (False, True):
        caches = make_prompt_cache(module)
        _noted(module, layers, TWO, caches)
        if lacks:
            # Copies, for here the layers elsewhere move on what stands in for theirs.
            caches = [
                None if at is None else caches[at] if at == place else copy.deepcopy(caches[at])
                for place, at in enumerate(stand_ins)
            ]
        calls = _noted(module, layers, ((1,),), caches)[own]
        told.append([leaf for call in calls for _, leaf in tree_flatten(list(call.given.values()))])
    return len(told[0]) != len(told[1]) or not all(map(_alike, *told))


def asks_tokens(module: nn.Module, layers: Sequence[Any], own: slice, path: HiddenPath) -> bool:
    """Return whether layers of this stage are told something that depends on the tokens, but for
    the hidden states: their own embeddings of them, say."""
    told: list[list[Any]] = []
    for tokens in (TWO, ((2, 3),)):
        calls = _noted(module, layers, tokens, make_prompt_cache(module))[own]
        beside = [[one for at, one in call.given.items() if at != path.key] for call in calls]
        told.append([leaf for _, leaf in tree_flatten(beside) if isinstance(leaf, mx.array)])
    pairs = zip(*told, strict=True)
    return not all(bool(mx.array_equal(*pair, equal_nan=True).item()) for pair in pairs)


def _alike(one: Any, other: Any) -> bool:
    """Return whether two arguments say the same; hidden states and caches are not looked at."""
    if isinstance(one, mx.array) and isinstance(other, mx.array):
        is_mask = one.ndim != 3 or not mx.issubdtype(one.dtype, mx.floating)
        return not is_mask or (one.shape == other.shape and bool(mx.array_equal(one, other).item()))
    return one == other if isinstance(one, bool | int | float | str) else True


def _noted(
    module: nn.Module,
    layers: Sequence[Any],
    tokens: tuple[tuple[int, ...], ...],
    caches: list[Any],
) -> list[_Call]:
    """Return the calls of one forward in which all layers return nothing but NaN."""
    calls: list[_Call] = []

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the layer, and return NaN in the shape of what it returns."""
        out = type(self).__mro__[1].__call__(self, *args, **kwargs)
        calls.append(_Call(self, {**dict(enumerate(args)), **kwargs}, tree_map(_spoilt, out)))
        return calls[-1].returned

    with _called_instead(layers, noted):
        module(mx.array(tokens), cache=caches)
    return calls


def _common(one: _Call, following: _Call) -> set[tuple[Key, int]]:
    """Return each (argument, element of what was returned, -1 for all of it) that are one array."""
    out = list(enumerate(one.returned)) if isinstance(one.returned, tuple) else [(-1, one.returned)]
    return {
        (key, element)
        for key, given in following.given.items()
        for element, returned in out
        if given is returned and isinstance(given, mx.array)
    }


def _hold_to(path: HiddenPath, calls: Sequence[_Call]) -> None:
    """Raise Unsplittable where anything that a layer returned, or that was made of it, is given to
    another but as hidden states, by the one before."""
    made: set[int] = set()
    for before, call in pairwise(calls):
        hidden = path.returned(before.returned)
        made |= {id(leaf) for _, leaf in tree_flatten([before.returned])}
        beside = [one for at, one in call.given.items() if at != path.key and one is not hidden]
        alike = [one for one in beside if isinstance(one, mx.array) and one.shape == hidden.shape]
        if call.holds(made - {id(hidden)}, path.key) or any(_is_spoilt(one) for one in alike):
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
    """Have this one layer called like that from now on."""
    kind = type(layer)
    layer.__class__ = type(prefix + kind.__name__, (kind,), {"__call__": call})
