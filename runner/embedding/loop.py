"""Talks to the engine of an embedding model or a reranker: runs batches one by one in the engine's
thread.

The main thread chooses the batches. It provides the next batch after the result of the previous one
is posted. The loop waits when there is no work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from bus.process.clock import now as clock_now
from bus.process.memory import tidy
from runner.embedding.batches import Batch, BatchPace
from runner.embedding.embedder import Embedder, EmbedderFacts
from runner.engine import EngineStatus, LoadProgress
from runner.text import EngineTokenizer, RankedPair

IDLE_S = 0.5
"""After this idle time the engine frees its unused memory."""
BATCH_DEADLINE_S = 60.0
"""The least time limit of a batch. The limit is four times the batch's expected time if that is
more. It is this generous because an input, unlike a prompt, cannot be computed in parts."""
TRIED_OUT = (8, 64)
"""Lengths of warm-up inputs in tokens. They are computed before the first request, because the
first forward passes are slow."""

LoadEmbedder = Callable[[Callable[[LoadProgress], None]], Embedder]


@dataclass(frozen=True, slots=True)
class Embedded:
    """The vectors of a batch, in the order of its prompts."""

    batch: Batch
    vectors: tuple[bytes, ...]


class EmbeddingLoop:
    """The `EngineLoop` of an embedding model.

    `load` takes a progress callback and returns the engine. `post` is called from the engine's
    thread and must not block. `facts` are None until the engine is loaded. Only the engine's thread
    writes `status`, `pace` and `expected_s`; other threads read each value once.
    """

    def __init__(self, load: LoadEmbedder, post: Callable[[Embedded], None]) -> None:
        self._load_engine = load
        self._post = post
        self._engine: Embedder | None = None
        self._batches = SimpleQueue[Batch | None]()
        self._stopping = False
        self.facts: EmbedderFacts | None = None
        self.pace = BatchPace()
        self.status = EngineStatus()
        self.expected_s = 0.0
        """Expected seconds of the batch that is being computed."""

    # --- the main thread -------------------------------------------------------------------

    def give(self, batch: Batch) -> None:
        self._batches.put(batch)

    def stop(self) -> None:
        """Make `run` return after the current batch."""
        self._stopping = True
        self._batches.put(None)

    @property
    def tokenizer(self) -> EngineTokenizer | None:
        return None if self._engine is None else self._engine.tokenizer

    def trouble(self) -> str:
        """Return why the engine cannot compute any more; "" if it can, or is not there yet."""
        return "" if self._engine is None else self._engine.trouble()

    def kill(self) -> None:
        """End what outlives this process, because it ends now."""
        if self._engine is not None:
            self._engine.kill()

    def limit_s(self) -> float:
        """Return the time limit of the current batch, in seconds."""
        return max(BATCH_DEADLINE_S, 4 * self.expected_s)

    # --- the engine's thread ---------------------------------------------------------------

    def load(self) -> None:
        """Load the engine and run the warm-up inputs."""
        engine = self._engine = self._load_engine(self._progressed)
        self.facts = engine.facts
        for length in TRIED_OUT:
            tokens = [0] * min(length, engine.facts.max_tokens)
            if engine.facts.ranks:
                engine.rank([RankedPair(tokens, 1, "a", "a " * (len(tokens) // 2))])
            else:
                engine.embed([tokens], None)
        self.status.memory = engine.memory()

    def run(self) -> None:
        """Compute batches until `stop`, then close the engine."""
        assert self._engine is not None, "the engine is not loaded"
        engine, tidied_at = self._engine, 0
        while not self._stopping:
            untidy = tidied_at != self.status.steps_done
            try:
                batch = self._batches.get(timeout=IDLE_S if untidy else None)
            except Empty:
                tidied_at = self.status.steps_done
                tidy()
                engine.rest()
                self.status.memory = engine.memory()
                continue
            if batch is not None and not self._stopping:
                self._compute(engine, batch)
        engine.close()

    def _compute(self, engine: Embedder, batch: Batch) -> None:
        status, began_at = self.status, clock_now()
        self.expected_s = self.pace.expected_s(batch.tokens)
        status.busy_since = began_at
        if engine.facts.ranks:
            vectors = tuple(engine.rank(batch.pairs))
        else:
            vectors = tuple(engine.embed(batch.prompts, batch.dimensions))
        status.last_step_s = clock_now() - began_at
        status.busy_since = None
        status.steps_done += 1
        status.memory = engine.memory()
        self.pace.measured(batch.tokens, status.last_step_s)
        self._post(Embedded(batch, vectors))

    def _progressed(self, progress: LoadProgress) -> None:
        self.status.progress = progress
