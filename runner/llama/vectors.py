"""Talks to llama-server: computes the vectors of an embedding model in a GGUF file, or the scores
of a reranker.

It implements the `Embedder` of `runner.embedding`. Inputs arrive as token ids, so a model with a
`tokenizer.json` gets the same ids as in MLX. llama-server scales each vector to length 1. It
computes several inputs at once, so the last digits of a vector may depend on the other inputs. A
reranker gets texts, because llama-server accepts no token ids for it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from runner.engine import EngineMemory, LoadProgress
from runner.llama.child import ChildEnded
from runner.llama.launch import Launch
from runner.llama.llama_loop import LlamaLoop
from runner.llama.wire import LlamaClient, LlamaTrouble
from runner.text import EngineTokenizer, RankedPair

PROBE = "a"
SURE = 1e-9
"""A chance is limited to the range from `SURE` to 1 - `SURE`, so that its odds are finite."""


@dataclass(frozen=True, slots=True)
class VectorFacts:
    """The `EmbedderFacts` of a GGUF model. Its vectors cannot be shortened, because the file does
    not say whether they may be."""

    dimensions: int
    max_tokens: int
    ranks: bool = False

    @property
    def allows_dimensions(self) -> bool:
        return False

    @property
    def dimension_choices(self) -> tuple[int, ...]:
        return ()

    @property
    def any_dimensions(self) -> bool:
        return False

    @property
    def width(self) -> int:
        return self.dimensions


class LlamaEmbedder:
    """llama-server with an embedding model. The thread that makes it owns it."""

    def __init__(
        self,
        program: Sequence[str],
        plan: Callable[[], Launch],
        deadline_s: float,
        progress: Callable[[LoadProgress], None],
    ) -> None:
        """Start llama-server as `plan` says, and wait until it has loaded the model. Raises
        BadGguf, OSError, ChildEnded, LlamaTrouble."""
        self._loop = LlamaLoop(program, plan, deadline_s)
        self._loop.load()
        launch = self._loop.launch
        assert launch is not None, "llama-server is not ready"
        progress(self._loop.status.progress)
        self._client = LlamaClient(launch.socket)
        self._vocabulary = launch.facts.vocabulary
        self._gives_chances = launch.facts.gives_chances
        ranks = launch.facts.ranks
        self._facts = VectorFacts(launch.facts.vector_width or 1, launch.input_tokens, ranks)
        self._around = self._measure_around() if ranks else 0

    @property
    def facts(self) -> VectorFacts:
        return self._facts

    @property
    def tokenizer(self) -> EngineTokenizer:
        def encode(text: str, special: bool) -> list[int]:
            try:
                return self._client.tokens(text, special=special, plain=self._facts.ranks)
            except LlamaTrouble as error:
                raise OSError(str(error)) from error

        return EngineTokenizer(encode, self._vocabulary, self._around)

    def embed(self, prompts: Sequence[Sequence[int]], dimensions: int | None) -> list[bytes]:
        """Return the vector of each prompt, as little-endian float32. Raises LlamaTrouble."""
        wanted = dimensions or self._facts.dimensions
        vectors = self._client.vectors(prompts)
        for vector in vectors:
            if len(vector) != wanted:
                raise LlamaTrouble(
                    f"llama-server's vector has {len(vector):,} numbers; the header of the "
                    f"model's file says {wanted:,}"
                )
        return [struct.pack(f"<{wanted}f", *vector) for vector in vectors]

    def rank(self, pairs: Sequence[RankedPair]) -> list[bytes]:
        """Return the score of each document as a little-endian float32, the logarithm of the odds
        that it is relevant. Raises LlamaTrouble."""
        scores: list[float] = []
        for query, same in groupby(pairs, key=lambda pair: pair.query):
            scores += self._client.scores(query, [pair.document for pair in same])[0]
        if self._gives_chances:
            scores = [log_odds(score) for score in scores]
        return [struct.pack("<f", score) for score in scores]

    def _measure_around(self) -> int:
        """Return how many special tokens llama-server adds to a query and a document."""
        total = self._client.scores(PROBE, [PROBE])[1]
        return max(0, total - 2 * len(self._client.tokens(PROBE, plain=True)))

    def memory(self) -> EngineMemory:
        self._loop.check()
        return self._loop.status.memory

    def rest(self) -> None:
        """Do nothing: llama-server's memory is reserved."""

    def close(self) -> None:
        """End llama-server; returns when it is gone."""
        self._loop.end()

    def trouble(self) -> str:
        try:
            self._loop.check()
        except ChildEnded as error:
            return str(error)
        return ""

    def kill(self) -> None:
        self._loop.kill()


def log_odds(chance: float) -> float:
    """Return the logarithm of the odds of a chance from 0 to 1."""
    chance = min(max(chance, SURE), 1 - SURE)
    return math.log(chance / (1 - chance))
