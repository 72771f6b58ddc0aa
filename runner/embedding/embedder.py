"""The interface of the engine of an embedding model or a reranker: the facts of the model, vectors
of prompts, and scores of documents.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from runner.engine import EngineMemory
from runner.text import EngineTokenizer, RankedPair


class EmbedderFacts(Protocol):
    """Facts of a loaded embedding model. `ranks`: it is a reranker, whose vectors have one number.
    A vector has `dimensions` numbers by default. A request
    may choose another length if `allows_dimensions`: one of `dimension_choices`, or any length up
    to `width` if `any_dimensions`. An input has at most `max_tokens`."""

    @property
    def ranks(self) -> bool:
        """Return whether the model is a reranker."""
        ...

    @property
    def dimensions(self) -> int:
        """Return the default length of a vector."""
        ...

    @property
    def allows_dimensions(self) -> bool:
        """Return whether requests may choose another length."""
        ...

    @property
    def dimension_choices(self) -> tuple[int, ...]:
        """Return the lengths that a request may choose."""
        ...

    @property
    def any_dimensions(self) -> bool:
        """Return whether any length up to `width` is allowed."""
        ...

    @property
    def width(self) -> int:
        """Return the maximum length of a vector."""
        ...

    @property
    def max_tokens(self) -> int:
        """Return the maximum tokens of an input, including the special tokens."""
        ...


class Embedder(Protocol):
    """Computes vectors or scores. All calls but `trouble` and `kill` come from the thread that
    loaded the model; an exception from any of them is fatal."""

    @property
    def facts(self) -> EmbedderFacts:
        """Return the facts of the model."""
        ...

    @property
    def tokenizer(self) -> EngineTokenizer | None:
        """Return the engine's own tokenizer; None if the model's files have it."""
        ...

    def embed(self, prompts: Sequence[Sequence[int]], dimensions: int | None) -> list[bytes]:
        """Return the vector of each prompt, in order, as little-endian 32-bit floats. Vectors do
        not depend on other prompts."""
        ...

    def rank(self, pairs: Sequence[RankedPair]) -> list[bytes]:
        """Return the score of each document, in order, as a vector of one number: the logarithm of
        the odds that it is relevant to its query. For rerankers only."""
        ...

    def memory(self) -> EngineMemory:
        """Return the bytes in use now; does not wait for the device."""
        ...

    def rest(self) -> None:
        """Free unused memory; called after a short idle time."""
        ...

    def close(self) -> None:
        """Close the engine; no calls follow."""
        ...

    def trouble(self) -> str:
        """Return why the engine cannot compute any more; "" if it can. May be called in any
        thread."""
        ...

    def kill(self) -> None:
        """End child processes that would outlive this process, which ends now. May be called in any
        thread; does not wait."""
        ...
