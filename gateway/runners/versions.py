"""Adapts a request to a runner of an earlier build, which may have chosen an older version of the
data plane.

Pure. A field that the version lacks is left out if the answer stays the same. Otherwise the request
is refused as if the runner had refused it, with a remedy.
"""

from __future__ import annotations

from bus.wire.errors import Refusal
from bus.wire.messages.requests import BLOCK_PROTOCOL, DRAFTS_PROTOCOL, InputsPrompt
from bus.wire.messages.tokens import Submit
from bus.wire.proposals import PROPOSALS_PROTOCOL

SHARER_PROTOCOL = 2
"""First version of the data plane in which `Submit` names the client that counts for fair
shares."""
PROMPT_PROTOCOL = 3
"""First version with questions about a prompt: its log-probabilities, its tokens or its text."""
RULE_PROTOCOL = 4
"""First version with output formats beyond JSON, and with `min_tokens`."""
THINKING_PROTOCOL = 5
"""First version with thinking levels and template variables."""
HISTORY_PROTOCOL = 5
"""First version with requests that continue from token ids; their end reports token ids."""
ADAPTER_PROTOCOL = 7
"""First version with requests for an adapter of the model."""
INPUTS_PROTOCOL = 4
"""First version with requests for embeddings."""
DISPLACED_PROTOCOL = 8
"""First version in which a runner may return a request that has not begun. From this version on,
requests say how long they have waited."""
TRACE_PROTOCOL = 9
"""First version in which a runner reports the times of a request's stages."""
RECALL_PROTOCOL = 10
"""First version in which a runner may return a request that has begun, so that another runner
can resume it."""


RESUME_PROTOCOL = 13
"""First version in which a runner reports the tokens of an answer, so that another runner can
resume it after the first one died."""
SPECULATE_PROTOCOL = 14
"""First version with requests that choose a drafter."""
MTP_PROTOCOL = 15
"""First version with MTP heads as drafters."""
SPLIT_PROTOCOL = 16
"""First version in which a runner computes prompts for other nodes."""
RERANK_PROTOCOL = 16
"""First version with requests that rank documents."""


def submit_for(submit: Submit, protocol: int) -> Submit | Refusal:
    """Return the request in a form that this version of the data plane can express, or a
    refusal."""
    refusal = _beyond(submit, protocol)
    if refusal is not None:
        return refusal
    request = submit.request
    if protocol < HISTORY_PROTOCOL:
        # an empty history may be left out; the end then has no token ids
        request = request.model_copy(update={"history": None})
    if protocol < DRAFTS_PROTOCOL and request.prediction is not None:
        # a prediction changes the speed, never the text
        request = request.model_copy(update={"prediction": None})
    if protocol < SPECULATE_PROTOCOL and request.speculate is not None:
        request = request.model_copy(update={"speculate": None})
    if protocol < TRACE_PROTOCOL and request.trace:
        request = request.model_copy(update={"trace": None})
    so_far = submit.so_far
    if so_far is not None:
        so_far = so_far.for_protocol(protocol)
    resumes = protocol >= RESUME_PROTOCOL
    return Submit(
        request,
        submit.generation,
        submit.credit,
        submit.remaining_ms,
        submit.sharer if protocol >= SHARER_PROTOCOL else (),
        submit.waited_ms if protocol >= DISPLACED_PROTOCOL else 0,
        so_far,
        resumes and submit.resumes,
        submit.deaths if resumes else 0,
        resumes and submit.suspect,
    )


def _beyond(submit: Submit, protocol: int) -> Refusal | None:
    """Return a refusal if this version of the data plane cannot express the request."""
    request = submit.request
    if protocol < INPUTS_PROTOCOL and isinstance(request.prompt, InputsPrompt):
        return _older("which has no embeddings", None)
    if protocol < RERANK_PROTOCOL and request.wants == "reranker":
        return _older("which has no reranking", None)
    if protocol < PROMPT_PROTOCOL and request.prompt_logprobs is not None:
        return _older("which has no log-probabilities of prompts", "echo")
    if protocol < PROMPT_PROTOCOL and request.question is not None:
        return _older("which cannot answer questions about prompts", None)
    if protocol < SPLIT_PROTOCOL and request.question and request.question.wants in ("cost", "kv"):
        return _older("which cannot compute prompts for other nodes", None)
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
    if protocol < SPECULATE_PROTOCOL and request.speculate not in (None, "auto"):
        return _older("which cannot choose a drafter per request", "x_speculate")
    if protocol < MTP_PROTOCOL and request.speculate == "mtp":
        return _older("which has no MTP heads", "x_speculate")
    if protocol < BLOCK_PROTOCOL and request.speculate == "block":
        return _older("which has no block drafters", "x_speculate")
    if protocol < PROPOSALS_PROTOCOL and request.speculate == "remote":
        return _older("which cannot use drafts of other runners", "x_speculate")
    too_old = RECALL_PROTOCOL if submit.deaths == 0 else RESUME_PROTOCOL
    if protocol < too_old and submit.so_far is not None:
        return _older("which cannot resume an answer from another runner", None)
    return None


def _older(lacks: str, field: str | None) -> Refusal:
    text = (
        f"this model's runner belongs to an older version of shoal, {lacks}; reload the "
        "model, or restart its"
    )
    return Refusal(reason="unsupported", message=f"{text} node (`shoal restart`)", field=field)
