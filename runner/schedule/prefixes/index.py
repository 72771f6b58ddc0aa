"""Decide which prefixes are kept and which one serves a prompt best.

Pure: works on tokens and bytes, never on KV. A look-up costs one step per block. If caches can be
trimmed, a kept prefix serves every prompt that shares its first blocks, and a prefix of another
kept one is not kept twice. If they cannot, a kept prefix serves only prompts that begin with all of
it. At least one token of a prompt is always left to compute. A prefix that a live row started from
is *held* and evicted last. The others are evicted least recently used first (SGLang's rule for
leaves; here every kept prefix is a leaf).
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field

from bus.models.kv import BLOCK_TOKENS, TokenChain
from runner.engine import EntryId


@dataclass(slots=True)
class PrefixEntry:
    """A kept prefix. `holders` counts the live rows that started from it."""

    entry: EntryId
    tokens: array[int]
    hashes: tuple[bytes, ...]
    end_hash: bytes
    size_bytes: int
    holders: int = 0

    @property
    def length(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """A kept prefix that serves a prompt: the prompt's first `length` tokens are in `entry` (0 <
    length < the prompt's length)."""

    entry: EntryId
    length: int


@dataclass(frozen=True, slots=True)
class PrefixKept:
    """A prefix that is to be kept as a new entry, and the entries to evict first, because the new
    one replaces them or needs their memory."""

    entry: EntryId
    evict: tuple[EntryId, ...]


@dataclass(slots=True)
class PrefixIndex:
    """The kept prefixes of one runner. The sum of their sizes never exceeds `limit_bytes`."""

    limit_bytes: int
    bytes_per_token: int
    bytes_fixed: int = 0
    trims: bool = True
    block_tokens: int = BLOCK_TOKENS
    used_bytes: int = 0
    _next: int = 1
    _prefixes: OrderedDict[EntryId, PrefixEntry] = field(
        default_factory=OrderedDict[EntryId, PrefixEntry]
    )
    _by_block: dict[bytes, dict[EntryId, None]] = field(
        default_factory=dict[bytes, dict[EntryId, None]]
    )
    _by_end: dict[bytes, EntryId] = field(default_factory=dict[bytes, EntryId])
    _lengths: Counter[int] = field(default_factory=Counter[int])

    def __len__(self) -> int:
        return len(self._prefixes)

    def find(self, chain: TokenChain) -> PrefixMatch | None:
        """Return the kept prefix that saves this prompt the most computation; None if it saves less
        than a block."""
        match = self._find_blocks(chain) if self.trims else self._find_whole(chain)
        if match is None or match.length < self.block_tokens:
            return None
        return match

    def hold(self, entry: EntryId) -> None:
        """Record that a live row started from this entry (holds it)."""
        self._prefixes[entry].holders += 1
        self._prefixes.move_to_end(entry)

    def release(self, entry: EntryId) -> None:
        """Record that a row which held the entry ended; the entry may be gone already."""
        prefix = self._prefixes.get(entry)
        if prefix is not None:
            prefix.holders -= 1

    def keep(
        self,
        chain: TokenChain,
        length: int,
        *,
        room_bytes: int,
        hit_now: Collection[EntryId] = (),
    ) -> PrefixKept | None:
        """Decide to keep the first `length` tokens; return None if that is not worth it.

        The prefix must have at least one block that no kept entry covers. After evictions it must
        fit into `limit_bytes`, and into `room_bytes`, the memory that the KV of rows leaves. The
        entries in `hit_now` are not evicted, because the same step reads them.
        """
        size_bytes = length * self.bytes_per_token + self.bytes_fixed
        room_bytes = min(room_bytes, self.limit_bytes)
        if length < self.block_tokens or size_bytes > room_bytes or self._covers(chain, length):
            return None
        evict = self._superseded(chain, length, hit_now) if self.trims else []
        freed_bytes = sum(self._prefixes[entry].size_bytes for entry in evict)
        for entry, prefix in self._prefixes.items():
            if self.used_bytes - freed_bytes + size_bytes <= room_bytes:
                break
            if prefix.holders == 0 and entry not in hit_now and entry not in evict:
                evict.append(entry)
                freed_bytes += prefix.size_bytes
        if self.used_bytes - freed_bytes + size_bytes > room_bytes:
            return None
        for entry in evict:
            self._forget(entry)
        return PrefixKept(self._add(chain, length, size_bytes), tuple(evict))

    def remove(self, entry: EntryId) -> None:
        """Forget an entry that no live row holds; an unknown one is ignored."""
        if entry in self._prefixes:
            self._forget(entry)

    def make_room(self, most_bytes: int, *, hit_now: Collection[EntryId] = ()) -> list[EntryId]:
        """Evict until at most `most_bytes` are used, if possible: unheld entries first, then held
        ones (a row's own KV does not depend on its entry)."""
        evicted: list[EntryId] = []
        by_hold = sorted(self._prefixes.values(), key=lambda prefix: prefix.holders > 0)
        for prefix in by_hold:
            if self.used_bytes <= most_bytes:
                break
            if prefix.entry not in hit_now:
                evicted.append(prefix.entry)
                self._forget(prefix.entry)
        return evicted

    def _find_blocks(self, chain: TokenChain) -> PrefixMatch | None:
        blocks = 0
        for block in chain.hashes:
            if block not in self._by_block:
                break
            blocks += 1
        if blocks == 0:
            return None
        best: PrefixMatch | None = None
        for entry in self._by_block[chain.hashes[blocks - 1]]:
            tokens = self._prefixes[entry].tokens
            stop = min(len(tokens), chain.length, (blocks + 1) * self.block_tokens)
            length = min(chain.agrees(tokens, blocks * self.block_tokens, stop), chain.length - 1)
            if best is None or length > best.length:
                best = PrefixMatch(entry, length)
        return best

    def _find_whole(self, chain: TokenChain) -> PrefixMatch | None:
        for length in sorted(self._lengths, reverse=True):
            if length < chain.length:
                entry = self._by_end.get(chain.end_hash(length))
                if entry is not None:
                    return PrefixMatch(entry, length)
        return None

    def _covers(self, chain: TokenChain, length: int) -> bool:
        if not self.trims:
            return chain.end_hash(length) in self._by_end
        last = chain.hashes[length // self.block_tokens - 1]
        return last in self._by_block

    def _superseded(
        self, chain: TokenChain, length: int, hit_now: Collection[EntryId]
    ) -> list[EntryId]:
        """Return the unheld entries that are a beginning of the chain's first `length` tokens."""
        superseded: list[EntryId] = []
        for count, block in enumerate(chain.hashes[: length // self.block_tokens], start=1):
            for entry in self._by_block.get(block, ()):
                prefix = self._prefixes[entry]
                start = count * self.block_tokens
                ends_here = len(prefix.hashes) == count and prefix.length <= length
                if not ends_here or prefix.holders or entry in hit_now:
                    continue
                if chain.agrees(prefix.tokens, start, prefix.length) == prefix.length:
                    superseded.append(entry)
        return superseded

    def _add(self, chain: TokenChain, length: int, size_bytes: int) -> EntryId:
        entry = EntryId(self._next)
        self._next += 1
        hashes = tuple(chain.hashes[: length // self.block_tokens])
        prefix = PrefixEntry(entry, chain.first(length), hashes, chain.end_hash(length), size_bytes)
        self._prefixes[entry] = prefix
        self.used_bytes += size_bytes
        for block in hashes:
            self._by_block.setdefault(block, {})[entry] = None
        self._by_end[prefix.end_hash] = entry
        self._lengths[length] += 1
        return entry

    def _forget(self, entry: EntryId) -> None:
        prefix = self._prefixes.pop(entry)
        self.used_bytes -= prefix.size_bytes
        for block in prefix.hashes:
            group = self._by_block[block]
            del group[entry]
            if not group:
                del self._by_block[block]
        if self._by_end.get(prefix.end_hash) == entry:
            del self._by_end[prefix.end_hash]
        self._lengths[prefix.length] -= 1
        if not self._lengths[prefix.length]:
            del self._lengths[prefix.length]

    def validate_state(self) -> None:
        """Raise AssertionError if an invariant is broken (tests call this after each step)."""
        assert self.used_bytes == sum(prefix.size_bytes for prefix in self._prefixes.values())
        assert self.used_bytes <= max(self.limit_bytes, 0)
        assert all(prefix.holders >= 0 for prefix in self._prefixes.values())
        assert sum(self._lengths.values()) == len(self._prefixes)
        listed = {entry for group in self._by_block.values() for entry in group}
        assert listed == set(self._prefixes)
        assert set(self._by_end.values()) <= set(self._prefixes)
