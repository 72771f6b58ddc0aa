# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# (mlx.nn and mlx_lm are partially typed)
"""Talks to MLX: the KV of kept prefixes, entry by entry.

Entries are copies, evaluated when they are made, so that what an entry holds is exactly what
it costs and evicting it frees that much. Which entry is worth keeping is decided elsewhere.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from runner.engine import EntryId
from runner.mlx.kv.row_kv import RowKV


@dataclass(frozen=True, slots=True)
class StoredPrefix:
    """`caches` hold `length` tokens, one per layer of the model."""

    caches: tuple[Any, ...]
    length: int

    @property
    def nbytes(self) -> int:
        """Return the bytes that the prefix holds."""
        return sum(cache.nbytes for cache in self.caches)


class PrefixStore:
    """Entries by id. `keep` takes over copies made for it; `start` never gives them away."""

    def __init__(self) -> None:
        self._entries: dict[EntryId, StoredPrefix] = {}

    @property
    def nbytes(self) -> int:
        """Return the bytes that all entries hold."""
        return sum(kept.nbytes for kept in self._entries.values())

    def keep(self, entry: EntryId, caches: Sequence[Any], length: int) -> None:
        """Keep `caches`, one per layer, of `length` tokens; the store owns them from now on."""
        self._entries[entry] = StoredPrefix(tuple(caches), length)

    def evict(self, entry: EntryId) -> None:
        """Let an entry go. One that is unknown is no error: its insert may have failed."""
        self._entries.pop(entry, None)

    def start(self, entry: EntryId, length: int, reserve: int) -> list[Any]:
        """Return caches of a new row whose first `length` tokens are the entry's.

        KeyError for an unknown entry; ValueError when the entry cannot be cut to `length`.
        """
        kept = self._entries[entry]
        if not 0 < length <= kept.length:
            raise ValueError(f"entry {entry} holds {kept.length} tokens, not {length}")
        started: list[Any] = []
        for cache in kept.caches:
            if isinstance(cache, RowKV):
                started.append(RowKV.holding(*cache.past(length), reserve=reserve))
            elif length == kept.length:
                started.append(copy.deepcopy(cache))
            else:
                raise ValueError(f"entry {entry} can only be used whole ({kept.length} tokens)")
        return started

    def clear(self) -> None:
        """Let all entries go."""
        self._entries.clear()


def copy_of(caches: Sequence[Any], length: int) -> list[Any]:
    """Return a row's caches, cut to `length` where they can be, sharing no memory with it.

    ValueError when a cache that cannot be cut holds another number of tokens.
    """
    copies: list[Any] = []
    for cache in caches:
        if isinstance(cache, RowKV):
            keys, values = cache.past(length)
            copies.append(RowKV.holding(_own(keys), _own(values)))
            continue
        twin = copy.deepcopy(cache)
        _own_state(twin)
        copies.append(twin)
    return copies


def evaluated(caches: Sequence[Any]) -> list[mx.array]:
    """Return the arrays of caches, to be evaluated."""
    arrays: list[mx.array] = []
    _collect([cache.state for cache in caches], arrays)
    return arrays


def _collect(tree: Any, arrays: list[mx.array]) -> None:
    if isinstance(tree, mx.array):
        arrays.append(tree)
    elif isinstance(tree, (list, tuple)):
        for branch in tree:
            _collect(branch, arrays)


def _own(array: mx.array) -> mx.array:
    """Return a copy that keeps no larger buffer alive."""
    return mx.contiguous(array)


def _own_state(cache: Any) -> None:
    def owned(tree: Any) -> Any:
        """Return the tree with copies in the place of its arrays; scalars stay."""
        if isinstance(tree, mx.array):
            return _own(tree) if tree.ndim else tree
        if isinstance(tree, (list, tuple)):
            return type(tree)(owned(branch) for branch in tree)
        return tree

    cache.state = owned(cache.state)
