"""Talks to llama-server: computes the vectors of an embedding model in a GGUF file.

It is an `Embedder` of `runner.embedding`. Inputs arrive as token ids, so that those of a model with
a `tokenizer.json` are the same as in MLX. llama-server gives each vector the length 1. It computes
several inputs at once, so their last digits may depend on each other.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runner.engine import EngineMemory, LoadProgress
from runner.llama.child import ChildEnded
from runner.llama.launch import Launch
from runner.llama.llama_loop import LlamaLoop
from runner.llama.wire import LlamaClient, LlamaTrouble


@dataclass(frozen=True, slots=True)
class VectorFacts:
    """The `EmbedderFacts` of a GGUF model. Its vectors cannot be shortened, because the file does
    not say whether they may be."""

    dimensions: int
    max_tokens: int

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
        assert launch is not None, "loaded"
        progress(self._loop.status.progress)
        self._client = LlamaClient(launch.socket)
        self._vocabulary = launch.facts.vocabulary
        self._facts = VectorFacts(launch.facts.vector_width, launch.cells)

    @property
    def facts(self) -> VectorFacts:
        return self._facts

    @property
    def tokenizer(self) -> tuple[Callable[[str, bool], list[int]], int]:
        def encode(text: str, special: bool) -> list[int]:
            try:
                return self._client.tokens(text, special=special)
            except LlamaTrouble as error:
                raise OSError(str(error)) from error

        return encode, self._vocabulary

    def embed(self, prompts: Sequence[Sequence[int]], dimensions: int | None) -> list[bytes]:
        """Return the vector of each prompt, as little-endian float32. Raises LlamaTrouble."""
        wanted = dimensions or self._facts.dimensions
        vectors = self._client.vectors(prompts)
        for vector in vectors:
            if len(vector) != wanted:
                raise LlamaTrouble(
                    f"llama-server's vector has {len(vector):,} numbers; by its file the model "
                    f"makes {wanted:,}"
                )
        return [struct.pack(f"<{wanted}f", *vector) for vector in vectors]

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
