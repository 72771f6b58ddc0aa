"""Parses the events of llama-server into the parts of an answer. Pure."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Literal

from bus.wire.ids import TokenId

StopType = Literal["eos", "limit", "word", "none"]


@dataclass(frozen=True, slots=True)
class TokenScore:
    """The log-probability of a token, and the likeliest tokens at its place, the likeliest
    first."""

    token: TokenId
    logprob: float
    top: tuple[tuple[TokenId, float], ...]


@dataclass(frozen=True, slots=True)
class Frame:
    """A part of an answer. `text` is its new text, and `tokens` the number of tokens up to here. A
    frame without text reports progress: `read` of the `prompt` tokens are computed. The last frame
    has the reason `stop`, and the number of prompt tokens that came from the prefix cache. An
    answer that is not streamed also has its token ids, with scores if the request wants them."""

    text: str = ""
    tokens: int = 0
    read: int = 0
    prompt: int = 0
    stop: StopType | None = None
    cached: int = 0
    ids: tuple[TokenId, ...] = ()
    scores: tuple[TokenScore, ...] = ()


@dataclass(frozen=True, slots=True)
class LostAnswer:
    """The reason why a stream ended without its last frame. `refused`: llama-server refused the
    request as invalid (status 4xx)."""

    why: str
    refused: bool = False


News = Frame | LostAnswer
_UNREADABLE = (
    ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip
"""Errors that unreadable events raise, such as an infinite number or ten thousand brackets."""


def frame_of(data: bytes) -> News:
    """Return the frame in the data of an event; a `LostAnswer` if it is an error or unreadable."""
    try:
        event = json.loads(data)
        if "error" in event:
            return failed(str(event["error"].get("message", "")))
        progress = event.get("prompt_progress")
        if progress is not None and not event.get("content"):
            return Frame(read=int(progress["processed"]), prompt=int(progress["total"]))
        text, tokens = event["content"], event["tokens_predicted"]
        if not isinstance(text, str) or not isinstance(tokens, int):
            raise TypeError("content or tokens_predicted")
        if not event["stop"]:
            return Frame(text, tokens)
        cached = int(event.get("timings", {}).get("cache_n", 0))
        stop = event.get("stop_type")
        if stop not in ("eos", "limit", "word", "none"):
            raise TypeError("stop_type")
        ids = tuple(TokenId(int(token)) for token in event.get("tokens", ()))
        scores = tuple(_score(entry) for entry in event.get("completion_probabilities", ()))
        return Frame(text, tokens, stop=stop, cached=cached, ids=ids, scores=scores)
    except _UNREADABLE as error:
        return LostAnswer(f"llama-server sent something that shoal cannot read: {error}"[:300])


def _score(entry: Any) -> TokenScore:
    top = ((TokenId(int(each["id"])), float(each["logprob"])) for each in entry["top_logprobs"])
    score = TokenScore(TokenId(int(entry["id"])), float(entry["logprob"]), tuple(top))
    if not all(math.isfinite(logprob) for logprob in (score.logprob, *dict(score.top).values())):
        raise ValueError("a log-probability is not finite")
    return score


def failed(why: str) -> LostAnswer:
    """Return the end of an answer with llama-server's own error."""
    return LostAnswer(f"llama-server failed: {why[:300]}")
