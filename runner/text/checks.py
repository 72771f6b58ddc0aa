"""Checks of a request that need nothing of the model but its vocabulary.

Pure. All raise BadRequest, which names the field; `refusal_of` is how it is told.
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
    """The request is well-formed, but this model cannot do what it asks."""


class Vocabulary(Protocol):
    """The token ids that there are: 0 up to `vocabulary`; the one that marks a text's beginning."""

    vocabulary: int

    @property
    def bos_token_id(self) -> int | None:
        """Return the token that marks the beginning of a text; None where there is none."""
        ...


def behind_history(request: GenerationRequest, tokens: list[int], known: Vocabulary) -> list[int]:
    """Return the tokens of a conversation behind those of its history, where it has one. Refuse a
    history of no conversation, of several choices, or of what is no token."""
    if request.history is None:
        return tokens
    if not isinstance(request.prompt, ChatPrompt) or request.n > 1:
        raise BadRequest("only one answer in a conversation goes on from it", field="history")
    history, width = request.history, known.vocabulary
    if history and not 0 <= min(history) <= max(history) < width:
        text = f"token ids must be in 0..{width - 1}: they are those of another model"
        raise BadRequest(text, field="history")
    return behind(history, tokens, known.bos_token_id)


def behind(history: Sequence[int], tokens: list[int], begins: int | None) -> list[int]:
    """Return tokens behind those of a history, without their mark of the beginning, `begins`: it
    stands there already. One that begins every turn, as its second place tells, stays."""
    if history and tokens[:1] == [begins] and begins not in tokens[1:]:
        return [*history, *tokens[1:]]
    return [*history, *tokens]


def unheld(tools: Sequence[ToolSpec], grammar: object) -> tuple[str, ...]:
    """Return the path of what is promised of strict tools, where no grammar keeps it."""
    return ("tools.strict",) if grammar is None and any(tool.strict for tool in tools) else ()


def begun_once(tokens: list[int], begins: int | None) -> list[int]:
    """Return the tokens of a text with one mark of the beginning, where the text had it already."""
    return tokens[1:] if begins is not None and tokens[:2] == [begins, begins] else tokens


def check_bias(bias: Mapping[int, float], width: int) -> None:
    """Refuse a bias of what is no token of a vocabulary of `width`, or beyond -100..100."""
    for token, value in bias.items():
        if not 0 <= token < width:
            raise BadRequest(f"token {token} is not in 0..{width - 1}", field=f"logit_bias.{token}")
        if not math.isfinite(value) or abs(value) > 100:
            raise BadRequest("a bias must be within -100..100", field=f"logit_bias.{token}")


def check_length(text: str, context_tokens: int, longest: int) -> None:
    """Refuse what is hopelessly too long before it is tokenised, which would take seconds; no token
    stands for more than `longest` characters."""
    if len(text) > longest * context_tokens:
        at_least = len(text) // longest
        raise ContextOverflow(prompt_tokens=at_least, limit_tokens=context_tokens - 1)


def check_scoring(request: GenerationRequest) -> None:
    """Refuse what cannot be scored, and an answer of no tokens to a request that scores nothing."""
    if request.prompt_logprobs is None:
        if request.max_tokens == 0:
            text = "must be at least 1, unless the prompt's log-probabilities are asked for"
            raise BadRequest(text, field="max_tokens")
        return
    if isinstance(request.prompt, ChatPrompt):
        raise BadRequest("only a raw prompt is scored", field="prompt_logprobs")
    if request.n > 1:
        raise BadRequest("a prompt that is scored has one choice", field="n")


def check_stops(stops: Sequence[str]) -> None:
    """Refuse too many stop strings, empty ones and long ones."""
    if len(stops) > STOPS_AT_MOST:
        raise BadRequest(f"at most {STOPS_AT_MOST} stop strings are allowed", field="stop")
    for place, stop in enumerate(stops):
        if not 0 < len(stop) <= STOP_CHARACTERS:
            raise BadRequest(
                f"a stop string has 1 to {STOP_CHARACTERS} characters", field=f"stop[{place}]"
            )


def refusal_of(problem: BadRequest | ContextOverflow) -> Refusal:
    """Return what is told of a request that cannot be done."""
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
