"""Parts that Anthropic's whole and streamed answers share: errors, usage, stop reasons, and the
message's first fields.

Pure. As in Anthropic's API, `input_tokens` excludes the prompt tokens from the prefix cache, which
are counted separately.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bus.wire.errors import FinishReason
from bus.wire.messages.requests import Usage
from gateway.dialects.anthropic.answers import AnthropicError, AnthropicErrorText, AnthropicUsage
from gateway.dialects.dialect import Parsed
from gateway.dialects.faults import HttpFault, in_words, overflow_of

SIGNATURE = "shoal"
"""The signature of every thinking block. Clients require a signature and send it back. A provider
would sign here; this text carries no information."""

_OUR_CALL, _CALL = "call_", "toolu_"
"""Prefixes of call ids: inside shoal, and in Anthropic's API."""

ID_KEY = "request_id"
"""The key of the request's id in the body of an error."""

STOP_REASONS: Mapping[FinishReason, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    # the API has no reason for a cancelled request, and its clients accept no other
    "cancelled": "end_turn",
    # nor for memory pressure: the text is truncated, as at a limit
    "memory_pressure": "max_tokens",
}

FIELD_WORDS = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "tools[].parameters": "tools[].input_schema",
}
"""Maps shoal's names of request fields to their names in this API, for errors."""

DETAILS = {"thread": {"error_code": "thread_unsupported_request"}}
"""`details` of an error about a field. Clients read them to decide which other kind of request to
send."""

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error_object(fault: HttpFault) -> AnthropicError:
    """Return `{"type": "error", "error": {...}}`. Clients show only the message, so the message
    names the field at fault."""
    other = "invalid_request_error" if fault.status < 500 else "api_error"
    kind = _TYPES.get(fault.status, other)
    error: AnthropicErrorText = {"type": kind, "message": _message_of(fault)}
    if fault.status == 400 and fault.field in DETAILS:
        error["details"] = DETAILS[fault.field]
    return {"type": "error", "error": error}


def usage_object(usage: Usage) -> AnthropicUsage:
    """Return Anthropic's `usage`. Caching is automatic, so no tokens count as cache creation."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


def call_object(call_id: str, name: str, arguments: object) -> dict[str, Any]:
    """Return the block of a call. Clients send its id back with the tool's result."""
    ours = call_id.startswith(_OUR_CALL)
    shown = _CALL + call_id.removeprefix(_OUR_CALL) if ours else call_id
    return {"type": "tool_use", "id": shown, "name": name, "input": arguments}


def end_object(reason: FinishReason, stop: str | None) -> dict[str, str | None]:
    """Return why an answer ended, and the stop sequence if one ended it."""
    if reason == "stop" and stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    return {"stop_reason": STOP_REASONS[reason], "stop_sequence": None}


def message_object(
    parsed: Parsed,
    content: list[dict[str, Any]],
    end: Mapping[str, str | None],
    usage: Usage,
) -> dict[str, Any]:
    """Return a message, complete or still without content."""
    return {
        "id": parsed.answer_id,
        "type": "message",
        "role": "assistant",
        "model": parsed.model,
        "content": content,
        **end,
        "usage": usage_object(usage),
    }


def _message_of(fault: HttpFault) -> str:
    """Return the text of an error. For a prompt that does not fit, it has the wording that clients
    parse."""
    overflow = overflow_of(fault)
    if overflow is not None:
        prompt, limit = overflow
        return f"prompt is too long: {prompt} tokens > {limit} maximum"
    field = in_words(fault.field, FIELD_WORDS)
    if field is None or field in fault.message:
        return fault.message
    return f"{field}: {fault.message}"
