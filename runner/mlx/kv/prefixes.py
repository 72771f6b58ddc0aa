# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# (mlx.nn and mlx_lm are partially typed)
"""Talks to MLX: stores the KV of kept prefixes, by entry id.

An entry is a copy of a row's KV that is evaluated when it is made. So its size is exact, and
evicting it frees that much memory. The scheduler decides which entries to keep.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map

from runner.engine import EntryId, PrefixRestore, PrefixSave
from runner.mlx.kv.raw_prefix import RawPrefix, filled
from runner.mlx.kv.row_kv import RowKV
from runner.mlx.kv.run_files import RunFiles


@dataclass(frozen=True, slots=True)
class StoredPrefix:
    """The caches of one prefix, one per layer of the model; each holds `length` tokens."""

    caches: tuple[Any, ...]
    length: int

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self.caches)


class PrefixStore:
    """The kept prefixes by entry id. `keep` becomes the owner of the copies that it gets, and
    `start` returns new caches for a row. Entries may also be written to `files` on disk, and read
    from there."""

    def __init__(self) -> None:
        self.files: RunFiles | None = None
        self._entries: dict[EntryId, StoredPrefix] = {}
        self._saves: list[tuple[int, PrefixSave, RawPrefix]] = []

    @property
    def nbytes(self) -> int:
        return sum(prefix.nbytes for prefix in self._entries.values())

    def keep(self, entry: EntryId, caches: Sequence[Any], length: int) -> None:
        """Store `caches`, one per layer, with the KV of `length` tokens, as this entry. The caller
        must not use them any more."""
        self._entries[entry] = StoredPrefix(tuple(caches), length)

    def evict(self, entry: EntryId) -> None:
        """Evict an entry. An unknown id is ignored, because storing that entry may have failed."""
        self._entries.pop(entry, None)
        if self.files is not None:
            self._saves = [held for held in self._saves if held[1].entry != entry]
            self.files.give_up(entry)

    def start(self, entry: EntryId, length: int, reserve: int) -> list[Any]:
        """Return caches for a new row, with the KV of the first `length` tokens of an entry and
        room for `reserve` tokens.

        Raises KeyError for an unknown entry, and ValueError if the entry cannot be cut to `length`
        tokens.
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

    def save(self, step: int, saves: Sequence[PrefixSave]) -> list[mx.array]:
        """Note which of the entries that `step` keeps must be written to disk. Return the arrays to
        evaluate with the step."""
        arrays: list[mx.array] = []
        for save in saves:
            prefix = self._entries.get(save.entry)
            if prefix is not None:  # without an entry, its row failed
                raw = RawPrefix.of(prefix.caches)
                self._saves.append((step, save, raw))
                arrays += raw.arrays
        return arrays

    def hand_over(self, step: int) -> None:
        """Pass the noted entries of the steps before `step` to the thread that writes them. These
        steps must be computed."""
        while self.files is not None and self._saves and self._saves[0][0] < step:
            _, save, raw = self._saves.pop(0)
            self.files.write(save.entry, save.run, raw.stored())

    def restore(self, restored: PrefixRestore, empty: Sequence[Any]) -> None:
        """Store the beginning of a run of KV that was read from disk as an entry. `empty` are
        caches of a row without tokens. If the run does not fit these caches, no entry is stored,
        and rows compute its tokens instead."""
        stored = None if self.files is None else self.files.take(restored.name)
        caches = None if stored is None else filled(empty, stored, restored.length)
        if caches is not None:
            self.keep(restored.entry, caches, restored.length)

    def close(self) -> None:
        """Free all entries. Before that, wait a short time for entries that are still being written
        to disk."""
        if self.files is not None:
            self.hand_over(sys.maxsize)
            self.files.close()
        self._entries.clear()


def copy_of(caches: Sequence[Any], length: int) -> list[Any]:
    """Return copies of a row's caches, which share no memory with the originals.

    Ordinary KV is cut to `length` tokens. Other caches are copied whole; the caller has checked
    that they hold `length` tokens.
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
