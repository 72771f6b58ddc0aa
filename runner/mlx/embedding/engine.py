# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval` and its kin untyped)
"""Talks to MLX: computes vectors from token ids with a loaded embedding model, or the scores of
documents with a loaded reranker.

All calls come from the thread that loaded the model. Prompts are computed in padded batches,
shortest first, each within a token budget. A prompt's vector does not depend on other prompts (to
1e-5). Vectors are returned in the order of the prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from bus.models.embedding_parts import EmbeddingModel
from bus.process.memory import give_back
from bus.wire.errors import ShoalError
from runner.engine import EngineMemory, LoadProgress
from runner.mlx.embedding.batches import batches
from runner.mlx.embedding.load import LoadedEmbedder, load_embedder
from runner.mlx.model.load import Precision
from runner.text import RankedPair

__all__ = ["EmbeddingEngine", "EmbeddingFacts", "UnfitDimensions", "UnfitPrompt"]

BATCH_TOKENS = 8192


class UnfitDimensions(ShoalError):
    """A request wants vectors of a length that the model does not support. The error's text lists
    the supported lengths."""


class UnfitPrompt(ShoalError):
    """A prompt is empty, too long, or has invalid token ids. The error's text says which prompt and
    why."""


@dataclass(frozen=True, slots=True)
class EmbeddingFacts:
    """Facts of a loaded embedding model.

    A vector has `dimensions` numbers by default. If `allows_dimensions`, a request may choose
    another length: any up to `width` if `any_dimensions`, else one of `dimension_choices`. A prompt
    has at most `max_tokens` tokens. A padded batch has at most `batch_tokens` tokens. `ranks`: the
    model is a reranker.
    """

    dimensions: int
    max_tokens: int
    weights_bytes: int
    allows_dimensions: bool
    dimension_choices: tuple[int, ...]
    any_dimensions: bool
    width: int
    vocabulary: int
    family: str
    precision: str
    batch_tokens: int
    ranks: bool = False


class EmbeddingEngine:
    """An embedding model in memory."""

    def __init__(self, loaded: LoadedEmbedder, batch_tokens: int = BATCH_TOKENS) -> None:
        model = loaded.model
        self._loaded = loaded
        self._model = model
        self.facts = EmbeddingFacts(
            dimensions=model.dimensions,
            max_tokens=model.max_tokens,
            weights_bytes=loaded.weights_bytes,
            allows_dimensions=model.any_dimensions or bool(model.dimension_choices),
            dimension_choices=model.dimension_choices,
            any_dimensions=model.any_dimensions,
            width=model.width,
            vocabulary=loaded.vocabulary,
            family=model.family,
            precision=loaded.precision,
            batch_tokens=batch_tokens,
            ranks=model.ranks,
        )

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        dtype: Precision = "auto",
        memory_limit_bytes: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
        progress: Callable[[LoadProgress], None] = lambda _: None,
    ) -> EmbeddingEngine:
        """Load the model in `folder` into the calling thread, which then owns the engine. `dtype`
        "auto": float32 on a CPU; on a GPU the type of the stored weights. Raises
        `runner.mlx.model.load.UnloadableModel` with the reason."""
        if memory_limit_bytes is not None:
            mx.set_memory_limit(memory_limit_bytes)
        return cls(load_embedder(folder, dtype, progress), batch_tokens)

    def embed(self, prompts: Sequence[Sequence[int]], dimensions: int | None = None) -> list[bytes]:
        """Return the vector of each prompt as `dimensions` little-endian float32 numbers, 4 bytes
        each (None: as many as the model's default). `prompts` are token ids, special tokens
        included. Vectors are normalised if the model's settings say so. Raises UnfitDimensions and
        UnfitPrompt before anything is computed."""
        return self._computed(prompts, _dimensions(self._model, dimensions), None)

    def rank(self, pairs: Sequence[RankedPair]) -> list[bytes]:
        """Return the score of each pair of query and document, as a little-endian float32. A score
        is the logarithm of the odds that the document is relevant. Raises UnfitPrompt before
        anything is computed."""
        tokens = [pair.tokens for pair in pairs]
        return self._computed(tokens, 1, [pair.second for pair in pairs])

    def _computed(
        self, prompts: Sequence[Sequence[int]], wanted: int, seconds: Sequence[int] | None
    ) -> list[bytes]:
        for number, prompt in enumerate(prompts):
            self._check(number, prompt)
        results = [b""] * len(prompts)
        for rows in batches([len(prompt) for prompt in prompts], self.facts.batch_tokens):
            types = None if seconds is None else [seconds[row] for row in rows]
            vectors = self._loaded.vectors([prompts[row] for row in rows], wanted, types)
            mx.eval(vectors)
            data, size = bytes(memoryview(cast(Any, vectors))), 4 * wanted
            for place, row in enumerate(rows):
                results[row] = data[place * size : (place + 1) * size]
        return results

    @property
    def tokenizer(self) -> None:
        """Return None: callers read the tokenizer in the model's folder."""

    def trouble(self) -> str:
        return ""

    def kill(self) -> None:
        """Do nothing: MLX computes in this process."""

    def memory(self) -> EngineMemory:
        """Return the bytes that MLX holds now; the engine keeps nothing between batches."""
        return EngineMemory(
            mx.get_active_memory(), 0, 0, mx.get_peak_memory(), mx.get_cache_memory()
        )

    def rest(self) -> None:
        """Free unused memory, because no batch is expected soon."""
        mx.clear_cache()
        give_back()

    def close(self) -> None:
        """Free everything; the engine cannot be used afterwards."""
        mx.synchronize()
        mx.clear_cache()

    def _check(self, number: int, prompt: Sequence[int]) -> None:
        if not 0 < len(prompt) <= self.facts.max_tokens:
            raise UnfitPrompt(
                f"prompt {number} has {len(prompt)} tokens; it must have 1 to "
                f"{self.facts.max_tokens}"
            )
        if not 0 <= min(prompt) <= max(prompt) < self.facts.vocabulary:
            raise UnfitPrompt(
                f"prompt {number} has token ids outside 0 to {self.facts.vocabulary - 1}"
            )


def _dimensions(model: EmbeddingModel, wanted: int | None) -> int:
    """Return the length of the vectors to compute: `wanted`, or the model's own if `wanted` is
    None. Raises UnfitDimensions."""
    if wanted is None or wanted == model.dimensions:
        return model.dimensions
    if model.allows(wanted):
        return wanted
    if model.any_dimensions:
        supported = f"1 to {model.width} numbers"
    elif model.dimension_choices:
        supported = (
            " or ".join(map(str, sorted({*model.dimension_choices, model.dimensions}))) + " numbers"
        )
    else:
        supported = f"{model.dimensions} numbers and cannot be shortened"
    raise UnfitDimensions(
        f"unsupported dimensions: {wanted}; a vector of this model has {supported}"
    )
