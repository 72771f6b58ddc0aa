# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# (mlx.nn and mlx_lm are partially typed)
"""Talks to MLX: stores the KV of kept prefixes, by entry id.

Entries are copies, evaluated when made, so an entry's size is exact and evicting it frees that
much. Other code decides which entries to keep.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map

from runner.engine import EntryId
from runner.mlx.kv.row_kv import RowKV


@dataclass(frozen=True, slots=True)
class StoredPrefix:
    """The caches of one prefix, one per layer of the model; each holds `length` tokens."""

    caches: tuple[Any, ...]
    length: int

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self.caches)


class PrefixStore:
    """The kept prefixes by entry id. `keep` takes copies that were made for the store and owns
    them; `start` returns new copies."""

    def __init__(self) -> None:
        self._entries: dict[EntryId, StoredPrefix] = {}

    @property
    def nbytes(self) -> int:
        return sum(prefix.nbytes for prefix in self._entries.values())

    def keep(self, entry: EntryId, caches: Sequence[Any], length: int) -> None:
        """Keep `caches`, one per layer, of `length` tokens; the store owns them from now on."""
        self._entries[entry] = StoredPrefix(tuple(caches), length)

    def evict(self, entry: EntryId) -> None:
        """Evict an entry. An unknown id is ignored: its insert may have failed."""
        self._entries.pop(entry, None)

    def start(self, entry: EntryId, length: int, reserve: int) -> list[Any]:
        """Return caches of a new row whose first `length` tokens are the entry's.

        Raises KeyError for an unknown entry, ValueError if the entry cannot be cut to `length`.
        """
        prefix = self._entries[entry]
        if not 0 < length <= prefix.length:
            raise ValueError(f"entry {entry} holds {prefix.length} tokens, not {length}")
        started: list[Any] = []
        for cache in prefix.caches:
            if isinstance(cache, RowKV):
                past = cache.past(length)
                started.append(RowKV.holding(past, cache.codec, reserve=reserve))
            elif length == prefix.length:
                started.append(copy.deepcopy(cache))
            else:
                raise ValueError(f"entry {entry} can only be used whole ({prefix.length} tokens)")
        return started

    def clear(self) -> None:
        self._entries.clear()


def copy_of(caches: Sequence[Any], length: int) -> list[Any]:
    """Return copies of a row's caches, cut to `length` if possible. They share no memory with the
    originals.

    Raises ValueError if a cache that cannot be cut holds another number of tokens.
    """
    copies: list[Any] = []
    for cache in caches:
        if isinstance(cache, RowKV):
            copies.append(RowKV.holding(tuple(map(_own, cache.past(length))), cache.codec))
            continue
        twin = copy.deepcopy(cache)
        twin.state = tree_map(_own, twin.state)
        copies.append(twin)
    return copies


def evaluated(caches: Sequence[Any]) -> list[mx.array]:
    """Return all arrays in these caches, to pass to `mx.eval`."""
    leaves = tree_flatten([cache.state for cache in caches])
    return [leaf for _, leaf in leaves if isinstance(leaf, mx.array)]


def _own(leaf: Any) -> Any:
    """Return a copy of an array, so that no larger buffer is kept in memory; return scalars
    unchanged."""
    return mx.contiguous(leaf) if isinstance(leaf, mx.array) and leaf.ndim else leaf
