"""Renders stored chat completions: one answer, its messages, and lists of answers.

Pure. An answer is rendered as it was first sent, with its labels as `metadata`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import orjson

from gateway.dialects.api_table import AskedList, Page
from gateway.dialects.dialect import KeptAnswer
from gateway.dialects.encode import json_bytes
from gateway.dialects.openai.answers import RemovedChat
from gateway.dialects.openai.shapes import list_object, page_of, page_query

_LABEL = re.compile(r"metadata\[(.+)\]")


def render_stored(stored: KeptAnswer) -> bytes:
    """Return an answer as it was first sent, with its labels."""
    return stored.answer[:-1] + b',"metadata":' + (stored.labels or b"{}") + b"}"


def render_messages(stored: KeptAnswer, query: Mapping[str, str]) -> bytes:
    """Return a page of an answer's input messages; `query` may have `limit`, `order` and `after`.
    Raises BadRequest."""
    return json_bytes(list_object(page_of([orjson.loads(item) for item in stored.items], query)))


def render_removed(answer_id: str) -> bytes:
    """Return the answer to the deletion of a stored chat completion."""
    removed: RemovedChat = {
        "id": answer_id,
        "object": "chat.completion.deleted",
        "deleted": True,
    }
    return json_bytes(removed)


def stored_page(query: Mapping[str, str]) -> AskedList:
    """Return the parsed query: `limit`, `order`, `after`, `model` and labels (`metadata[name]`).
    Raises BadRequest."""
    limit, order = page_query(query, "asc")
    labels = {match[1]: text for name, text in query.items() if (match := _LABEL.fullmatch(name))}
    return AskedList(limit, order == "desc", query.get("after"), query.get("model"), labels)


def render_list(answers: Sequence[KeptAnswer], has_more: bool) -> bytes:
    """Return a page of stored answers as OpenAI's list object, as JSON."""
    rows = [orjson.loads(answer.listed) for answer in answers]
    shown = [orjson.Fragment(render_stored(answer)) for answer in answers]
    return json_bytes({**list_object(Page(rows, has_more)), "data": shown})
