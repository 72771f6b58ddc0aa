"""Which embedding requests are refused at the door.

Pure. What is refused here costs nothing: no input of it has been read.
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
"""Text that is held; beyond it a sharer who has some here already is refused more."""


@dataclass(slots=True)
class EmbeddingIntake:
    """Judges requests for a runner. `facts` are set once the model is loaded, `phase` as the runner
    goes on; all is refused unless it is `ready`."""

    spec: RunnerSpec
    phase: Phase = "loading"
    facts: EmbedderFacts | None = None

    def refusal(self, submit: Submit, opened: Collection[OpenEmbedding]) -> Refusal | None:
        """Return why a request is not taken beside those that are open; None where it is."""
        return self._cannot_take(submit) or self._full(submit, opened)

    def _cannot_take(self, submit: Submit) -> Refusal | None:
        refusal = not_served(self.spec, self.phase, submit)
        if refusal is not None:
            return refusal
        assert self.facts is not None, "ready"
        return self._cannot_make(submit.request, self.facts)

    def _cannot_make(self, request: GenerationRequest, facts: EmbedderFacts) -> Refusal | None:
        """Return why the model makes nothing of this sort; None where it does."""
        prompt, model = request.prompt, self.spec.model
        if not isinstance(prompt, InputsPrompt) or request.question is not None:
            text = f"{model} is an embedding model: it makes vectors of texts, and no text"
            return Refusal(reason="unsupported", message=text, field="model")
        wanted = prompt.dimensions
        if wanted is None or wanted == facts.dimensions or wanted in facts.dimension_choices:
            return None
        if facts.any_dimensions and wanted <= facts.width:
            return None
        message = f"dimensions: a vector of {model} has {_counts(facts)}"
        return Refusal(reason="bad_request", message=message, field="dimensions")

    def _full(self, submit: Submit, opened: Collection[OpenEmbedding]) -> Refusal | None:
        """Return why there is no place for one more request; None where there is."""
        sharer, sharers = submit.sharer or UNNAMED, [one.sharer for one in opened]
        most = self.spec.max_rows + self.spec.max_waiting
        if len(opened) >= most and not has_share(sharers, sharer, most):
            message = f"{len(opened)} requests are waiting already"
        elif sum(one.size for one in opened) > HELD_CHARS and sharer in sharers:
            message = f"{len(opened)} long requests are waiting to be read already"
        else:
            return None
        return Refusal(reason="queue_full", message=message, position=len(opened))


def _counts(facts: EmbedderFacts) -> str:
    """Return how many numbers vectors may have, in words."""
    if facts.any_dimensions:
        return f"1 to {facts.width} numbers"
    counts = sorted({facts.dimensions, *facts.dimension_choices})
    if len(counts) == 1:
        return f"{counts[0]} numbers, and no other count is offered"
    return f"{' or '.join(map(str, counts))} numbers"
