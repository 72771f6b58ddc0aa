"""Reads the log-probabilities of a chunk, in the two shapes of OpenAI's API.

Pure. Chats have a list of tokens under `logprobs.content`. Raw completions have parallel lists,
whose first alternative is the token itself. A server sends the ids of tokens only if it supports
`return_token_ids`, and then only those of the answer; every other id is -1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from bus.translation.hearing import object_of, plain_text
from bus.translation.told import objects_in
from bus.wire.messages.tokens import TokenLogprob, TopLogprob

NO_ID = -1
LEAST_LOGPROB = -9999.0
"""The value that servers send for an impossible token, because JSON has no infinities."""
MOST_ID = 2**31


def ids_of(choice: dict[str, Any]) -> tuple[int, ...]:
    """Return the ids of a chunk's tokens; empty if the server sends none, or invalid ones."""
    ids = _items(choice.get("token_ids"))
    valid = all(type(token) is int and 0 <= token < MOST_ID for token in ids)
    return tuple(ids) if valid else ()


def scores_of(choice: dict[str, Any], ids: Sequence[int]) -> tuple[TokenLogprob, ...]:
    """Return a chunk's tokens with their log-probabilities (natural logarithms, -9999 to 0); empty
    if it has none. `ids`: those of the same tokens, or empty. The likeliest alternative is
    first."""
    shown = object_of(choice.get("logprobs"))
    if "content" in shown:
        scores = [_of_chat(token) for token in objects_in(shown["content"])]
    else:
        scores = _of_completion(shown)
    if len(ids) != len(scores):
        ids = [NO_ID] * len(scores)
    return tuple(
        TokenLogprob(token_id, text, logprob, tuple(sorted(top, key=_descending)))
        for token_id, (text, logprob, top) in zip(ids, scores, strict=True)
    )


def _of_chat(token: dict[str, Any]) -> tuple[str, float, list[TopLogprob]]:
    top = [_top(other.get("token"), other) for other in objects_in(token.get("top_logprobs"))]
    return plain_text(token.get("token")), _logprob(token.get("logprob")), top


def _of_completion(shown: dict[str, Any]) -> list[tuple[str, float, list[TopLogprob]]]:
    tokens, logprobs = _items(shown.get("tokens")), _items(shown.get("token_logprobs"))
    tops = _items(shown.get("top_logprobs"))
    scores: list[tuple[str, float, list[TopLogprob]]] = []
    for place, token in enumerate(tokens):
        likeliest = object_of(tops[place]) if place < len(tops) else {}
        top = [(NO_ID, plain_text(text), _logprob(value)) for text, value in likeliest.items()]
        logprob = logprobs[place] if place < len(logprobs) else None
        scores.append((plain_text(token), _logprob(logprob), top))
    return scores


def _top(text: object, token: dict[str, Any]) -> TopLogprob:
    return NO_ID, plain_text(text), _logprob(token.get("logprob"))


def _descending(top: TopLogprob) -> float:
    return -top[2]


def _logprob(value: object) -> float:
    """Return the value from -9999 to 0; -9999 if it is not a number."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value != value:
        return LEAST_LOGPROB
    return float(max(LEAST_LOGPROB, min(0.0, value)))


def _items(value: object) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []
