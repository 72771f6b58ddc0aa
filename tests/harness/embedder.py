"""An embedding engine and a reader of inputs whose vectors say what they are made of."""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from bus.wire.errors import BadRequest, ContextOverflow
from runner.engine import EngineMemory
from runner.text import EngineTokenizer, RankedPair

LIMIT = 16
DIMENSIONS = 4


@dataclass(frozen=True)
class Words:
    """An input as tokens."""

    tokens: tuple[int, ...]
    cut_off: bool = False


class WordReader:
    """One token for each word: its length. `LIMIT` tokens at most."""

    def prepare(self, text: str | Sequence[int], cut: bool) -> Words:
        tokens = tuple(map(len, text.split())) if isinstance(text, str) else tuple(text)
        if not tokens:
            raise BadRequest("an input must have at least one token")
        if len(tokens) > LIMIT and not cut:
            raise ContextOverflow(prompt_tokens=len(tokens), limit_tokens=LIMIT)
        return Words(tokens[:LIMIT], len(tokens) > LIMIT)


@dataclass(frozen=True)
class Facts:
    """Those of the made-up model."""

    dimensions: int = DIMENSIONS
    allows_dimensions: bool = True
    dimension_choices: tuple[int, ...] = (2,)
    any_dimensions: bool = False
    width: int = DIMENSIONS
    max_tokens: int = 64
    ranks: bool = False


@dataclass
class FakeEmbedder:
    """A vector is the tokens' sum, their count, and zeros. `batches` are the sizes computed since
    the engine was tried out; each waits for `let` where that is there."""

    facts: Facts = field(default_factory=Facts)
    batches: list[int] = field(default_factory=list[int])
    let: threading.Semaphore | None = None
    broken: bool = False
    closed: bool = False
    tokenizer: EngineTokenizer | None = None
    why: str = ""

    def trouble(self) -> str:
        return self.why

    def kill(self) -> None:
        self.closed = True

    def embed(self, prompts: Sequence[Sequence[int]], dimensions: int | None) -> list[bytes]:
        if self.broken:
            raise RuntimeError("the device is lost")
        if any(any(prompt) for prompt in prompts):
            self.batches.append(len(prompts))
            if self.let is not None:
                assert self.let.acquire(timeout=20)
        return [vector(prompt, dimensions or DIMENSIONS) for prompt in prompts]

    def rank(self, pairs: Sequence[RankedPair]) -> list[bytes]:
        """Return the number of a document's tokens as its score."""
        self.batches.append(len(pairs))
        return [struct.pack("<f", len(pair.tokens) - pair.second) for pair in pairs]

    def memory(self) -> EngineMemory:
        return EngineMemory(5, 0, 0, 7)

    def rest(self) -> None:
        """Keep nothing."""

    def close(self) -> None:
        self.closed = True


def vector(tokens: Sequence[int], dimensions: int = DIMENSIONS) -> bytes:
    """What `FakeEmbedder` makes of a prompt."""
    numbers = [float(sum(tokens)), float(len(tokens)), *[0.0] * (dimensions - 2)]
    return struct.pack(f"<{dimensions}f", *numbers)
