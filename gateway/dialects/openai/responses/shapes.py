"""Parts that whole and streamed responses share: the response, its items, usage, and its end.

Pure. A response always has all its keys; keys that clients rely on are never null. An item's id
contains the request's id and the item's number within its kind, so it is the same in a stream and
in a whole answer.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from bus.wire.errors import FinishReason
from bus.wire.ids import RequestId
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import TokenLogprob
from gateway.dialects.dialect import Parsed
from gateway.dialects.encode import logprobs_list
from gateway.dialects.faults import HttpFault
from gateway.dialects.openai.responses.answers import (
    ItemStatus,
    ResponseError,
    ResponseUsage,
    Status,
)

STATUSES: Mapping[FinishReason, Status] = {
    "stop": "completed",
    "tool_calls": "completed",
    "length": "incomplete",
    "cancelled": "cancelled",
    "memory_pressure": "incomplete",
}
LAST_EVENTS: Mapping[Status, str] = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    # the API has no event for a cancelled response; the status shows it
    "cancelled": "response.incomplete",
    "failed": "response.failed",
}
SUMMARY = "reasoning.summary"
ENCRYPTED = "reasoning.encrypted_content"
"""Forms of thinking that an answer may have in addition to its text. `include` requests ENCRYPTED;
the body's `reasoning` requests SUMMARY."""
PACKED = "shoal-1."
"""The first characters of thinking that shoal encoded."""
PREFIX = "resp_"
"""The prefix of a response's id; the id of a request follows."""

_ERROR_CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}


def text_item(
    request: RequestId, number: int, status: ItemStatus, content: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return text of the assistant as an item."""
    return {
        "id": f"msg_{request}-{number}",
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": content,
    }


def text_part(text: str, logprobs: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Return text as the content of an item."""
    return {"type": "output_text", "annotations": [], "logprobs": logprobs, "text": text}


def scores(logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Return a text's log-probabilities. `bytes` of a part of a character is an empty list: clients
    of this API require a list, unlike those of chat completions, which get null."""
    tokens = logprobs_list(logprobs)
    for entry in (entry for token in tokens for entry in (token, *token["top_logprobs"])):
        entry["bytes"] = entry["bytes"] or []
    return tokens


def reasoning_item(
    request: RequestId, number: int, status: ItemStatus, content: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return thinking as an item, without the members that `thought_members` adds."""
    return {
        "id": f"rs_{request}-{number}",
        "type": "reasoning",
        "status": status,
        "summary": [],
        "content": content,
    }


def reasoning_part(text: str) -> dict[str, Any]:
    """Return thinking as the content of an item."""
    return {"type": "reasoning_text", "text": text}


def summary_part(text: str) -> dict[str, Any]:
    """Return thinking as the content of a summary."""
    return {"type": "summary_text", "text": text}


def thought_members(parsed: Parsed, thought: str) -> dict[str, Any]:
    """Return the further forms of thinking that an item has because the body asks for them. The
    summary is the whole thinking, since shoal does not shorten it."""
    members: dict[str, Any] = {}
    if SUMMARY in parsed.tells:
        members["summary"] = [summary_part(thought)]
    if ENCRYPTED in parsed.tells:
        members["encrypted_content"] = packed_thought(thought)
    return members


def packed_thought(thought: str) -> str:
    """Return thinking in the encoded form that clients send back. The encoding hides nothing: the
    same answer has the thinking as text."""
    return PACKED + base64.b64encode(thought.encode()).decode()


def unpacked_thought(content: str | None) -> str | None:
    """Return the thinking that `packed_thought` encoded; None for any other text."""
    if content is None or not content.startswith(PACKED):
        return None
    try:
        return base64.b64decode(content.removeprefix(PACKED), validate=True).decode()
    except ValueError:
        return None


def call_item(
    request: RequestId, number: int, status: ItemStatus, call_id: str, name: str, arguments: str
) -> dict[str, Any]:
    return {
        "id": f"fc_{request}-{number}",
        "type": "function_call",
        "status": status,
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
    }


def custom_item(
    request: RequestId, number: int, status: ItemStatus, call_id: str, name: str, text: str
) -> dict[str, Any]:
    """Return a custom tool's call as an item."""
    return {
        "id": f"ctc_{request}-{number}",
        "type": "custom_tool_call",
        "status": status,
        "call_id": call_id,
        "name": name,
        "input": text,
    }


def status_of(reason: FinishReason, arguments: str | None = None) -> ItemStatus:
    """Return the status of an answer's last item. If the item is a call, it is complete if its
    `arguments` are complete JSON."""
    if reason in ("stop", "tool_calls"):
        return "completed"
    return "completed" if arguments is not None and _is_object(arguments) else "incomplete"


def usage_object(usage: Usage) -> ResponseUsage:
    """Return a response's `usage`. Caching is automatic, so no tokens count as written to a
    cache."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def error_of(fault: HttpFault) -> ResponseError:
    """Return a failure as the error of a response, with one of the error codes of OpenAI's API."""
    if fault.code == "context_length_exceeded":
        return {"code": fault.code, "message": fault.message}
    code = _ERROR_CODES.get(fault.status, "server_error")
    return {"code": code, "message": fault.message}


def response_object(
    parsed: Parsed,
    status: Status,
    *,
    output: Sequence[dict[str, Any]] = (),
    usage: Usage | None = None,
    error: ResponseError | None = None,
    load_s: float = 0.0,
) -> dict[str, Any]:
    """Return a response in its current state. `load_s` is how long the model took to load."""
    completed_at = None
    if status == "completed" and usage is not None:
        seconds = load_s + usage.queue_s + usage.prefill_s + usage.decode_s
        completed_at = int(parsed.created_at_s + seconds)
    cut = status == "incomplete"
    return {
        "id": parsed.answer_id,
        "object": "response",
        "created_at": int(parsed.created_at_s),
        "completed_at": completed_at,
        "status": status,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "model": parsed.model,
        "output": output,
        "error": error,
        "usage": None if usage is None else usage_object(usage),
        **parsed.echoed_fields,
    }


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(orjson.loads(arguments), dict)
    except orjson.JSONDecodeError:
        return False
