"""Checks of a request that need nothing of the model but its vocabulary's width.

Pure. All raise BadRequest, which names the field.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from bus.wire.errors import BadRequest
from bus.wire.messages.requests import ChatPrompt, GenerationRequest

STOPS_AT_MOST = 16
STOP_CHARACTERS = 1024


def check_bias(bias: Mapping[int, float], width: int) -> None:
    """Refuse a bias of what is no token of a vocabulary of `width`, or beyond -100..100."""
    for token, value in bias.items():
        if not 0 <= token < width:
            raise BadRequest(f"token {token} is not in 0..{width - 1}", field=f"logit_bias.{token}")
        if not math.isfinite(value) or abs(value) > 100:
            raise BadRequest("a bias must be within -100..100", field=f"logit_bias.{token}")


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
