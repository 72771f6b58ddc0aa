"""Talks to the text thread and the engine's loop: answers requests with vectors.

Runs in the main thread. A request's inputs are tokenised in parts. One batch is computed at a time,
with inputs of all requests that have credit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bus.wire.errors import Refusal
from bus.wire.ids import RequestId
from bus.wire.messages.requests import InputsPrompt, Usage
from runner.embedding.batches import next_batch
from runner.embedding.embedder import EmbedderFacts
from runner.embedding.inputs import PreparedInputs, other_kind
from runner.embedding.loop import Embedded, EmbeddingLoop
from runner.embedding.open_embedding import OpenEmbedding
from runner.serving import OpenRequest, RequestServer, too_many
from runner.text import TextThread


class EmbeddingResponder:
    """The `Responder` of an embedding model or a reranker. `computing` are the requests of the
    current batch."""

    def __init__(
        self,
        server: RequestServer,
        now: Callable[[], float],
        *,
        loop: EmbeddingLoop,
        text: TextThread[PreparedInputs],
    ) -> None:
        self.computing: frozenset[RequestId] | None = None
        self._server = server
        self._now = now
        self._loop = loop
        self._text = text
        self._open: dict[RequestId, OpenEmbedding] = {}
        self._batches = 0
        self._beats = 0

    # --- from the server -----------------------------------------------------------------

    def step(self, now: float) -> int:
        """Return a number whose growth shows the gateway that the runner makes progress. It grows
        with each batch. It also grows with each call until the batch is late, because a batch may
        take longer than a gateway waits."""
        since = self._loop.status.busy_since
        if since is not None and now - since <= self._loop.limit_s():
            self._beats += 1
        return self._loop.status.steps_done + self._beats

    def refusal(self, request: OpenRequest, now: float) -> Refusal | None:
        spec, facts = self._server.spec, self._loop.facts
        if (refusal := other_kind(request.request, spec.makes)) is not None:
            return refusal
        prompt = request.request.prompt
        assert facts is not None, "the runner is not ready"
        assert isinstance(prompt, InputsPrompt), "a request of another kind was not refused"
        if not _has_dimensions(facts, prompt.dimensions):
            has = f"a vector of {spec.model} has {_counts(facts)}"
            message = f"unsupported dimensions: {prompt.dimensions}; {has}"
            return Refusal(reason="bad_request", message=message, field="dimensions")
        return too_many(request, self._server.open.values(), spec.max_rows + spec.max_waiting)

    def begin(self, request: OpenRequest, now: float) -> None:
        embedding = self._open[request.request_id] = OpenEmbedding(request)
        request.accept(now, position=len(self._open) - 1)
        self._server.totals.requests += 1
        self._prepare(embedding)

    def pause(self, request: OpenRequest, choice: int) -> None:
        """Do nothing: batches leave out requests without credit."""

    def resume(self, request: OpenRequest, choice: int) -> None:
        self._advance()

    def give_back(self, request: OpenRequest, now: float, *, begun: bool) -> None:
        """Return None: an embedding request is never handed back to its gateway."""

    def end(self, request: OpenRequest, now: float) -> Usage:
        return self._open.pop(request.request_id).close(now)

    # --- inputs and batches ----------------------------------------------------------------

    def _prepare(self, embedding: OpenEmbedding) -> None:
        part = embedding.part()
        if part is not None:
            self._text.prepare(part, partial(self._prepared, embedding))

    def _prepared(self, embedding: OpenEmbedding, answer: PreparedInputs | Refusal) -> None:
        request = embedding.request
        if request.is_over:
            return
        self._server.note("prompt_build", request.request_id)
        if isinstance(answer, Refusal):
            embedding.refused(answer, self._now())
        else:
            embedding.prepared(answer.prompts)
            self._prepare(embedding)
            self._advance()
        self._server.flush()

    def _advance(self) -> None:
        """Start the next batch unless one is running."""
        facts = self._loop.facts
        if self.computing is not None or facts is None:
            return
        batch = next_batch(
            self._open.values(),
            number=self._batches + 1,
            budget_tokens=self._loop.pace.budget_tokens,
            vector_bytes=4 * facts.width,
            now=self._now(),
        )
        if batch is None:
            return
        self._batches += 1
        self.computing = frozenset(part.request.request_id for part in batch.parts)
        self._loop.give(batch)
        for embedding in batch.parts:
            self._prepare(embedding)

    def embedded(self, news: Embedded) -> None:
        """Send the vectors of a computed batch, and start the next batch."""
        now, start = self._now(), 0
        self.computing = None
        self._server.totals.prompt_tokens += news.batch.tokens
        for embedding, prompts in news.batch.parts.items():
            embedding.computed(prompts, news.vectors[start : start + len(prompts)], now)
            start += len(prompts)
        self._advance()
        self._server.flush()


def _has_dimensions(facts: EmbedderFacts, wanted: int | None) -> bool:
    if wanted is None or wanted == facts.dimensions or wanted in facts.dimension_choices:
        return True
    return facts.any_dimensions and wanted <= facts.width


def _counts(facts: EmbedderFacts) -> str:
    """Return the supported vector lengths as text for a message."""
    if facts.any_dimensions:
        return f"1 to {facts.width} numbers"
    counts = sorted({facts.dimensions, *facts.dimension_choices})
    if len(counts) == 1:
        return f"{counts[0]} numbers, which cannot be changed"
    return f"{' or '.join(map(str, counts))} numbers"
