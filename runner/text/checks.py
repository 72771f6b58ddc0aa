"""Checks of a request that need only the model's vocabulary.

Pure. All raise BadRequest, which names the field; `refusal_of` turns it into a refusal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from bus.wire.errors import BadRequest, ContextOverflow, Refusal
from bus.wire.messages.requests import ChatPrompt, GenerationRequest, ToolSpec

STOPS_AT_MOST = 16
STOP_CHARACTERS = 1024


class Unsupported(BadRequest):
    """The request is well-formed, but this model does not support it."""


class Vocabulary(Protocol):
    """The number of token ids of a model (ids are 0 to `vocabulary` - 1), and its
    beginning-of-sequence token."""

    vocabulary: int

    @property
    def bos_token_id(self) -> int | None:
        """Return the id of the beginning-of-sequence token; None if there is none."""
        ...


def behind_history(
    request: GenerationRequest, tokens: list[int], vocabulary: Vocabulary
) -> list[int]:
    """Return the token ids of the prompt: the request's `history`, if it has one, then the
    conversation's `tokens`. Raises BadRequest for a history without a conversation, with several
    choices, or with invalid token ids."""
    if request.history is None:
        return tokens
    if not isinstance(request.prompt, ChatPrompt) or request.n > 1:
        raise BadRequest(
            "a history requires a conversation with one choice (n = 1)", field="history"
        )
    history, width = request.history, vocabulary.vocabulary
    if history and not 0 <= min(history) <= max(history) < width:
        text = f"token ids must be in 0..{width - 1}: these belong to another model"
        raise BadRequest(text, field="history")
    return behind(history, tokens, vocabulary.bos_token_id)


def behind(history: Sequence[int], tokens: list[int], begins: int | None) -> list[int]:
    """Return the history plus the tokens. If `tokens` begins with the beginning-of-sequence token
    `begins`, that token is dropped, because the history already has it. But if `begins` occurs
    again in the tokens, the template begins every turn with it, so it stays."""
    if history and tokens[:1] == [begins] and begins not in tokens[1:]:
        return [*history, *tokens[1:]]
    return [*history, *tokens]


def unheld(tools: Sequence[ToolSpec], grammar: object) -> tuple[str, ...]:
    """Return the field path `tools.strict`, to report that it has no effect, if a tool is strict
    but no grammar enforces its schema. Otherwise return no path."""
    return ("tools.strict",) if grammar is None and any(tool.strict for tool in tools) else ()


def begun_once(tokens: list[int], begins: int | None) -> list[int]:
    """Return the tokens without a duplicate beginning-of-sequence token."""
    return tokens[1:] if begins is not None and tokens[:2] == [begins, begins] else tokens


def check_bias(bias: Mapping[int, float], width: int) -> None:
    """Refuse a bias for a token id outside the vocabulary of `width` tokens, or a bias outside
    -100..100."""
    for token, value in bias.items():
        if not 0 <= token < width:
            raise BadRequest(f"token {token} is not in 0..{width - 1}", field=f"logit_bias.{token}")
        if not math.isfinite(value) or abs(value) > 100:
            raise BadRequest("a bias must be within -100..100", field=f"logit_bias.{token}")


def check_length(text: str, context_tokens: int, longest: int) -> None:
    """Refuse a text that cannot fit into the context. This is checked before tokenising, which
    would take seconds. `longest`: the most characters of one token."""
    if len(text) > longest * context_tokens:
        at_least = len(text) // longest
        raise ContextOverflow(prompt_tokens=at_least, limit_tokens=context_tokens - 1)


def check_scoring(request: GenerationRequest) -> None:
    """Refuse a request for its prompt's log-probabilities that cannot be answered, and `max_tokens`
    0 without such a request."""
    if request.prompt_logprobs is None:
        if request.max_tokens == 0:
            text = "must be at least 1, unless prompt_logprobs is set"
            raise BadRequest(text, field="max_tokens")
        return
    if isinstance(request.prompt, ChatPrompt):
        raise BadRequest("prompt_logprobs requires a raw prompt", field="prompt_logprobs")
    if request.n > 1:
        raise BadRequest("prompt_logprobs requires n = 1", field="n")


def check_stops(stops: Sequence[str]) -> None:
    """Refuse too many stop strings, empty ones and long ones."""
    if len(stops) > STOPS_AT_MOST:
        raise BadRequest(
            f"too many stop strings: {len(stops)}; the limit is {STOPS_AT_MOST}", field="stop"
        )
    for place, stop in enumerate(stops):
        if not 0 < len(stop) <= STOP_CHARACTERS:
            raise BadRequest(
                f"a stop string must have 1 to {STOP_CHARACTERS} characters", field=f"stop[{place}]"
            )


def refusal_of(problem: BadRequest | ContextOverflow) -> Refusal:
    """Return the refusal that answers a request with this problem."""
    if isinstance(problem, ContextOverflow):
        return Refusal(
            reason="context_length",
            message=str(problem),
            facts={"prompt_tokens": problem.prompt_tokens, "limit": problem.limit_tokens},
        )
    reason = "unsupported" if isinstance(problem, Unsupported) else "bad_request"
    # A message may quote the request, and a lone surrogate in it could not be sent.
    message = problem.message.encode("utf-8", "replace").decode()
    return Refusal(reason=reason, message=message, field=problem.field)
