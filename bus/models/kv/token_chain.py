"""The tokens of a text, cut into blocks with chained hashes (vLLM's automatic prefix caching).

Pure. Two texts share a block's hash only if they are equal up to its end and may share prefixes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from hashlib import blake2b

from bus.wire.messages.requests import GenerationRequest

BLOCK_TOKENS = 64
SHORT_BYTES = 8
MOST_BLOCKS = 4096
"""At most this many blocks of a prompt are compared with runs of other nodes: 262,144 tokens."""


def kept_apart(request: GenerationRequest) -> bytes:
    """Return the hash seed of a request. Prefixes are shared only within one API key and one
    adapter."""
    key = (request.key_id or "").encode()
    return key if request.adapter is None else key + b"\0" + request.adapter.encode()


def short_hashes(chain: TokenChain) -> bytes:
    """Return the beginnings of the hashes of a chain's blocks, `SHORT_BYTES` of each. Other nodes
    compare them; a runner compares the tokens before it uses KV."""
    return b"".join(value[:SHORT_BYTES] for value in chain.hashes[:MOST_BLOCKS])


def shared_blocks(mine: bytes, theirs: bytes) -> int:
    """Return how many blocks two texts have in common from their beginning. `mine` and `theirs` are
    their short hashes."""
    blocks = min(len(mine), len(theirs)) // SHORT_BYTES
    low, high = 0, blocks
    while low < high:
        middle = (low + high + 1) // 2
        span = slice((middle - 1) * SHORT_BYTES, middle * SHORT_BYTES)
        low, high = (middle, high) if mine[span] == theirs[span] else (low, middle - 1)
    return low


class TokenChain:
    """Tokens with the chained hashes of their full blocks; tokens are only appended.

    Chains with different `seed` share no hashes, even for equal tokens.
    """

    __slots__ = ("_packed", "block_tokens", "hashes", "length", "seed")

    def __init__(
        self,
        tokens: Iterable[int] = (),
        block_tokens: int = BLOCK_TOKENS,
        *,
        seed: bytes = b"",
    ) -> None:
        self.block_tokens = block_tokens
        self.seed = seed
        self.hashes: list[bytes] = []
        self.length = 0
        self._packed = array("i")
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens and hash the completed blocks."""
        self._packed.extend(tokens)
        self.length = len(self._packed)
        while (len(self.hashes) + 1) * self.block_tokens <= self.length:
            start = len(self.hashes) * self.block_tokens
            self.hashes.append(self._hash(len(self.hashes), start + self.block_tokens))

    def copy(self) -> TokenChain:
        twin = TokenChain(block_tokens=self.block_tokens, seed=self.seed)
        twin.hashes = list(self.hashes)
        twin._packed = self._packed[:]
        twin.length = self.length
        return twin

    def end_hash(self, length: int) -> bytes:
        """Return the hash of the first `length` tokens; `length` need not be a multiple of the
        block size."""
        blocks, rest = divmod(length, self.block_tokens)
        if rest:
            return self._hash(blocks, length)
        return self.hashes[blocks - 1] if blocks else b""

    def run_name(self, length: int) -> str:
        """Return the name of the file of the first `length` tokens: their hash, which includes API
        key and adapter, and their number."""
        return f"{self.end_hash(length).hex()}-{length}"

    def first(self, length: int) -> array[int]:
        return self._packed[:length]

    def agrees(self, tokens: array[int], start: int, stop: int) -> int:
        """Return the first position in start..stop where `tokens` and this chain differ, or
        `stop`."""
        mine = self._packed
        if tokens[start:stop] == mine[start:stop]:
            return stop
        for position in range(start, stop):
            if tokens[position] != mine[position]:
                return position
        return stop

    def _hash(self, blocks: int, stop: int) -> bytes:
        before = self.hashes[blocks - 1] if blocks else self.seed
        block = self._packed[blocks * self.block_tokens : stop].tobytes()
        return blake2b(before + block, digest_size=16).digest()
