"""Decide which embedding requests are refused on arrival.

Pure. A refused request costs nothing: its inputs have not been tokenised.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from bus.wire.errors import Refusal
from bus.wire.messages.control import Phase, RunnerSpec
from bus.wire.messages.requests import GenerationRequest, InputsPrompt
from bus.wire.messages.tokens import Submit
from bus.wire.shares import has_share
from runner.embedding.open_embedding import OpenEmbedding
from runner.engine import EmbedderFacts
from runner.serving.arrivals import UNNAMED, not_served

HELD_CHARS = 64 << 20
"""Characters of waiting text. Above this limit, a requester whose text is already waiting is
refused."""


@dataclass(slots=True)
class EmbeddingIntake:
    """Decides whether a runner accepts a request. `facts` are set after the model is loaded;
    `phase` is the runner's, and only `ready` accepts requests."""

    spec: RunnerSpec
    phase: Phase = "loading"
    facts: EmbedderFacts | None = None

    def refusal(self, submit: Submit, opened: Collection[OpenEmbedding]) -> Refusal | None:
        """Return why a request is refused given the open ones; None if it is accepted."""
        return self._cannot_take(submit) or self._full(submit, opened)

    def _cannot_take(self, submit: Submit) -> Refusal | None:
        refusal = not_served(self.spec, self.phase, submit)
        if refusal is not None:
            return refusal
        assert self.facts is not None, "ready"
        return self._cannot_make(submit.request, self.facts)

    def _cannot_make(self, request: GenerationRequest, facts: EmbedderFacts) -> Refusal | None:
        """Return why the model cannot make this kind of result; None if it can."""
        prompt, model = request.prompt, self.spec.model
        if not isinstance(prompt, InputsPrompt) or request.question is not None:
            text = f"{model} is an embedding model; it cannot generate text"
            return Refusal(reason="unsupported", message=text, field="model")
        wanted = prompt.dimensions
        if wanted is None or wanted == facts.dimensions or wanted in facts.dimension_choices:
            return None
        if facts.any_dimensions and wanted <= facts.width:
            return None
        message = f"unsupported dimensions: {wanted}; a vector of {model} has {_counts(facts)}"
        return Refusal(reason="bad_request", message=message, field="dimensions")

    def _full(self, submit: Submit, opened: Collection[OpenEmbedding]) -> Refusal | None:
        """Return why no more requests fit; None if one does."""
        sharer, sharers = submit.sharer or UNNAMED, [request.sharer for request in opened]
        most = self.spec.max_rows + self.spec.max_waiting
        if len(opened) >= most and not has_share(sharers, sharer, most):
            message = f"{len(opened)} requests are already waiting; the limit is {most}"
        elif sum(request.size for request in opened) > HELD_CHARS and sharer in sharers:
            message = (
                f"{len(opened)} long requests are already waiting to be tokenised; retry later"
            )
        else:
            return None
        return Refusal(reason="queue_full", message=message, position=len(opened))


def _counts(facts: EmbedderFacts) -> str:
    """Return the supported vector lengths as text for a message."""
    if facts.any_dimensions:
        return f"1 to {facts.width} numbers"
    counts = sorted({facts.dimensions, *facts.dimension_choices})
    if len(counts) == 1:
        return f"{counts[0]} numbers, which cannot be changed"
    return f"{' or '.join(map(str, counts))} numbers"
