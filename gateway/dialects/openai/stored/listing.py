"""Chat completions that are kept, as they are told: one, its messages, and lists of them.

Pure. A kept answer is told as it was given, with its labels as `metadata`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from bus.wire.ids import RequestId
from gateway.dialects.api_table import Page
from gateway.dialects.dialect import KeptAnswer
from gateway.dialects.encode import json_bytes
from gateway.dialects.openai.shapes import list_object, page_of

_LABEL = re.compile(r"metadata\[(.+)\]")


def render_stored(kept: KeptAnswer) -> bytes:
    """Return an answer as it was given, with its labels."""
    return kept.answer[:-1] + b',"metadata":' + (kept.labels or b"{}") + b"}"


def render_messages(kept: KeptAnswer, query: Mapping[str, str]) -> bytes:
    """Return the messages that an answer was made from, as `query` has `limit`, `order` and
    `after`. BadRequest."""
    return json_bytes(list_object(page_of([orjson.loads(one) for one in kept.items], query)))


def render_removed(answer_id: str) -> bytes:
    """Return what is told of an answer that is kept no longer."""
    return json_bytes({"id": answer_id, "object": "chat.completion.deleted", "deleted": True})


def stored_page(found: Sequence[tuple[RequestId, bytes, bytes]], query: Mapping[str, str]) -> Page:
    """Return a page of answers, each by its `id` and its `request`, as `query` has `limit`,
    `order`, `after`, `model` and labels (`metadata[name]`). BadRequest."""
    told: list[dict[str, Any]] = []
    for request, listed, labels in found:
        one = {**orjson.loads(listed), "request": request}
        if query.get("model", one["model"]) == one["model"] and _has(labels, query):
            told.append(one)
    told.sort(key=lambda one: one["created"])
    return page_of(told, query)


def render_list(answers: Sequence[KeptAnswer], page: Page) -> bytes:
    """Return the answers of a page."""
    shown = [orjson.Fragment(render_stored(kept)) for kept in answers]
    return json_bytes({**list_object(page), "data": shown})


def _has(labels: bytes, query: Mapping[str, str]) -> bool:
    wanted = {match[1]: text for name, text in query.items() if (match := _LABEL.fullmatch(name))}
    return not wanted or wanted.items() <= orjson.loads(labels or b"{}").items()
