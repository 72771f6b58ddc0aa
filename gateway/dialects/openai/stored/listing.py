"""Chat completions that are kept, as they are told: one, its messages, and lists of them.

Pure. A kept answer is told as it was given, with its labels as `metadata`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import orjson

from gateway.dialects.api_table import AskedList, Page
from gateway.dialects.dialect import KeptAnswer
from gateway.dialects.encode import json_bytes
from gateway.dialects.openai.answers import RemovedChat
from gateway.dialects.openai.shapes import asked_page, list_object, page_of

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
    removed: RemovedChat = {
        "id": answer_id,
        "object": "chat.completion.deleted",
        "deleted": True,
    }
    return json_bytes(removed)


def stored_page(query: Mapping[str, str]) -> AskedList:
    """Return what a query asks for: `limit`, `order`, `after`, `model` and labels
    (`metadata[name]`). BadRequest."""
    limit, order = asked_page(query, "asc")
    labels = {match[1]: text for name, text in query.items() if (match := _LABEL.fullmatch(name))}
    return AskedList(limit, order == "desc", query.get("after"), query.get("model"), labels)


def render_list(answers: Sequence[KeptAnswer], has_more: bool) -> bytes:
    """Return the answers of a page."""
    named = [orjson.loads(answer.listed) for answer in answers]
    shown = [orjson.Fragment(render_stored(answer)) for answer in answers]
    return json_bytes({**list_object(Page(named, has_more)), "data": shown})
