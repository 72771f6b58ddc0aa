"""What a runner of an earlier build is asked, by the version of the data plane that it chose.

Pure. What a version does not know is left out where that changes nothing, else the request is
refused in the runner's place, with what to do.
"""

from __future__ import annotations

from bus.wire.errors import Refusal
from bus.wire.messages.requests import InputsPrompt
from bus.wire.messages.tokens import Submit

SHARER_PROTOCOL = 2
"""The first version of the data plane in which a runner is told who asks."""
PROMPT_PROTOCOL = 3
"""The first one in which a runner can be asked about a prompt: for its log-probabilities, for its
tokens or its text."""
RULE_PROTOCOL = 4
"""The first one that knows rules for a text other than JSON's, and `min_tokens`."""
THINKING_PROTOCOL = 5
"""The first one in which a runner is told how much to think, and what to tell its template."""
HISTORY_PROTOCOL = 5
"""The first one in which a request may go on from token ids, and is told those of its end."""
"""The first one in which a request may bring the template of its prompt."""
ADAPTER_PROTOCOL = 7
"""The first one in which a request may be for one of the model's adapters."""
INPUTS_PROTOCOL = 4
"""The first one in which a runner can be asked for vectors of inputs."""
DISPLACED_PROTOCOL = 8
"""The first one in which a runner may give a request back, and is told how long it has waited."""
TRACE_PROTOCOL = 9
"""The first one in which a runner tells what it did for a request when."""
RECALL_PROTOCOL = 10
"""The first one in which a runner gives back what has begun, and goes on from there."""


def as_known(submit: Submit, protocol: int) -> Submit | Refusal:
    """Return what a runner of this version of the data plane is asked, or why it cannot be."""
    refusal = _beyond(submit, protocol)
    if refusal is not None:
        return refusal
    request = submit.request
    if protocol < HISTORY_PROTOCOL:
        # what comes before may be left out where it is nothing; the end tells no token ids
        request = request.model_copy(update={"history": None})
    if protocol < TRACE_PROTOCOL and request.trace:
        request = request.model_copy(update={"trace": None})
    return Submit(
        request,
        submit.generation,
        submit.credit,
        submit.remaining_ms,
        submit.sharer if protocol >= SHARER_PROTOCOL else (),
        submit.waited_ms if protocol >= DISPLACED_PROTOCOL else 0,
        submit.so_far,
    )


def _beyond(submit: Submit, protocol: int) -> Refusal | None:
    """Return the refusal, in the runner's place, of what this version of the data plane cannot
    say; None where it can."""
    request = submit.request
    if protocol < INPUTS_PROTOCOL and isinstance(request.prompt, InputsPrompt):
        return _older("which has no embeddings", None)
    if protocol < PROMPT_PROTOCOL and request.prompt_logprobs is not None:
        return _older("which has no prompt requests", "echo")
    if protocol < PROMPT_PROTOCOL and request.question is not None:
        return _older("which has no prompt requests", None)
    if protocol < RULE_PROTOCOL and request.output.is_later:
        return _older("which does not support this output format", request.output.field)
    if protocol < RULE_PROTOCOL and request.min_tokens is not None:
        return _older("which does not support min_tokens", "min_tokens")
    if protocol < THINKING_PROTOCOL:
        if request.effort is not None or request.thinking_budget is not None:
            return _older("which does not support thinking levels", "thinking")
        if request.variables is not None:
            return _older("which does not support template variables", "chat_template_kwargs")
    if protocol < HISTORY_PROTOCOL and request.history:
        return _older("which cannot continue from token ids", "history")
    if protocol < ADAPTER_PROTOCOL and request.adapter is not None:
        return _older("which does not support adapters", "model")
    if protocol < RECALL_PROTOCOL and submit.so_far is not None:
        return _older("which cannot resume an answer from another runner", None)
    return None


def _older(lacks: str, field: str | None) -> Refusal:
    text = (
        f"this model's runner belongs to an older version of shoal, {lacks}; reload the "
        "model, or restart its"
    )
    return Refusal(reason="unsupported", message=f"{text} node (`shoal restart`)", field=field)
