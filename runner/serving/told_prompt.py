"""Answer a question about a prompt in one piece.

Pure. A request that only asks about its prompt never reaches the scheduler: it has no row and needs
no credit.
"""

from __future__ import annotations

from bus.wire.ids import RequestId
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import Accepted, ChoiceEnd, Finished, PromptAnswer, StepEntries
from runner.text import ReadPrompt


def answer_frames(
    request_id: RequestId, read: ReadPrompt, step: int
) -> tuple[Accepted, StepEntries]:
    """Return the frames that answer the question and end the request, in order; `step` is the
    engine's current number."""
    usage = Usage(prompt_tokens=read.count)
    answer = PromptAnswer(read.tokens, read.text, read.context_tokens)
    entries = (
        ChoiceEnd(request_id, 0, 0, "stop", None),
        Finished(request_id, 1, usage, answer),
    )
    return Accepted(request_id, 0, read.count), StepEntries(step, entries)
