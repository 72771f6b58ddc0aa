"""Shapes that whole and streamed responses share: the response, its items, usage, the end.

Pure. All keys of a response are always there; those that clients take for given are never null. An
item's id is made of the request's and of its number among those of its kind, so that it is the same
whichever way the answer is told.
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
    # the dialect has no event for what somebody stopped; the status tells it
    "cancelled": "response.incomplete",
    "failed": "response.failed",
}
SUMMARY = "reasoning.summary"
ENCRYPTED = "reasoning.encrypted_content"
"""What an answer may tell of thinking beside its text."""
PACKED = "shoal-1."
"""Begins thinking that is packed here."""
PREFIX = "resp_"
"""Stands before a request's id in the id of a response."""

_ERROR_CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}


def text_item(
    request: RequestId, number: int, status: ItemStatus, content: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return what the assistant said as an item."""
    return {
        "id": f"msg_{request}-{number}",
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": content,
    }


def text_part(text: str, logprobs: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Return some text as the content of an item."""
    return {"type": "output_text", "annotations": [], "logprobs": logprobs, "text": text}


def scores(logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Return the log-probabilities of some text. Where the rest of this API has null for the bytes
    of a part of a character, clients of responses want a list: an empty one."""
    told = logprobs_list(logprobs)
    for token in (place for one in told for place in (one, *one["top_logprobs"])):
        token["bytes"] = token["bytes"] or []
    return told


def reasoning_item(
    request: RequestId, number: int, status: ItemStatus, content: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return what the assistant thought as an item, without what `thought_told` adds."""
    return {
        "id": f"rs_{request}-{number}",
        "type": "reasoning",
        "status": status,
        "summary": [],
        "content": content,
    }


def reasoning_part(text: str) -> dict[str, Any]:
    """Return some thinking as the content of an item."""
    return {"type": "reasoning_text", "text": text}


def summary_part(text: str) -> dict[str, Any]:
    """Return some thinking as a summary of itself."""
    return {"type": "summary_text", "text": text}


def thought_told(parsed: Parsed, said: str) -> dict[str, Any]:
    """Return what an item has of thinking beside its content, where the body asks for it: nothing
    here makes a shorter text of it, so that its summary is all of it."""
    told: dict[str, Any] = {}
    if SUMMARY in parsed.tells:
        told["summary"] = [summary_part(said)]
    if ENCRYPTED in parsed.tells:
        told["encrypted_content"] = packed_thought(said)
    return told


def packed_thought(said: str) -> str:
    """Return thinking as clients send it back who keep no other form of it. It is not secret:
    the same answer has it as text."""
    return PACKED + base64.b64encode(said.encode()).decode()


def unpacked_thought(content: str | None) -> str | None:
    """Return the thinking of a text that `packed_thought` made; None of any other."""
    if content is None or not content.startswith(PACKED):
        return None
    try:
        return base64.b64decode(content.removeprefix(PACKED), validate=True).decode()
    except ValueError:
        return None


def call_item(
    request: RequestId, number: int, status: ItemStatus, call_id: str, name: str, arguments: str
) -> dict[str, Any]:
    """Return a call as an item."""
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
    """Return a call of a tool that takes text as an item."""
    return {
        "id": f"ctc_{request}-{number}",
        "type": "custom_tool_call",
        "status": status,
        "call_id": call_id,
        "name": name,
        "input": text,
    }


def status_of(reason: FinishReason, arguments: str | None = None) -> ItemStatus:
    """Return how the last item of an answer ended; a call is complete when its `arguments` are."""
    if reason in ("stop", "tool_calls"):
        return "completed"
    return "completed" if arguments is not None and _is_object(arguments) else "incomplete"


def usage_object(usage: Usage) -> ResponseUsage:
    """Return a response's `usage`; caches are read without being asked, so none is written to."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def error_of(fault: HttpFault) -> ResponseError:
    """Return a failure as a response has it, by one of the dialect's codes."""
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
    """Return a response as it stands. `load_s` is how long the model took to load."""
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
        **parsed.said_back,
    }


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(orjson.loads(arguments), dict)
    except orjson.JSONDecodeError:
        return False
