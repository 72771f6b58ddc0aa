"""What is said to a request that has a question about its prompt: all of its answer at once.

Pure. Nothing of such a request comes to the scheduler: it holds no row and no credit.
"""

from __future__ import annotations

from bus.wire.ids import RequestId
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import Accepted, ChoiceEnd, Finished, PromptAnswer, StepEntries
from runner.text import ReadPrompt


def told(request_id: RequestId, read: ReadPrompt, step: int) -> tuple[Accepted, StepEntries]:
    """Return the frames that answer the question and end the request, in order; `step` is the
    engine's own number."""
    usage = Usage(prompt_tokens=read.count)
    answer = PromptAnswer(read.tokens, read.text, read.context_tokens)
    entries = (
        ChoiceEnd(request_id, 0, 0, "stop", None),
        Finished(request_id, 1, usage, answer),
    )
    return Accepted(request_id, 0, read.count), StepEntries(step, entries)
