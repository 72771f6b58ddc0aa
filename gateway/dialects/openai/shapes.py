"""Parts that chat completions and completions share: errors, usage, timing, finish reasons, events.

Pure. `timing` is shoal's own object, next to `usage`. `seconds` is the time from entering the queue
to the last token; the other times are parts of it. `tokens_per_sec` divides all completion tokens
by `seconds`; `decode_tokens_per_sec` divides the tokens after the first by `decode_seconds`.

A stream has usage only if the client requests it, in the last chunk, with `choices: []`. Every
stream ends with `[DONE]`. `timing` is in the last chunk: the chunk with the usage or, without
usage, the chunk that ends the last choice. That chunk is held back until its request has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from bus.wire.errors import BadRequest, FinishReason
from bus.wire.ids import RequestId
from bus.wire.messages.requests import ProposalCost, Usage
from bus.wire.messages.tokens import ChoiceEnd, Failed, Finished, PrefillProgress
from gateway.dialects import faults, sse
from gateway.dialects.api_table import Page
from gateway.dialects.collect import total
from gateway.dialects.dialect import Parsed
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFault, in_words, overflow_of
from gateway.dialects.openai import answers
from gateway.dialects.openai.answers import (
    AnswerTiming,
    GenerationStats,
    ReasoningTokens,
    TokenUsage,
)

FINISHES: Mapping[FinishReason, Mapping[str, str]] = {
    "stop": {"finish_reason": "stop"},
    "length": {"finish_reason": "length"},
    "tool_calls": {"finish_reason": "tool_calls"},
    # the API has no reason for a cancelled request, and its clients accept no other
    "cancelled": {"finish_reason": "stop", "stop_reason": "cancelled"},
    # nor for memory pressure: the text is truncated, as at a limit
    "memory_pressure": {"finish_reason": "length", "stop_reason": "memory_pressure"},
}
"""The fields that each finish reason adds to a choice."""

MOST_LISTED, LISTED = 100, 20
FIELD_WORDS = {"thinking": "reasoning_effort"}
"""Maps shoal's names of request fields to their names in this API, for errors."""

_CHUNK_TAIL = b"}\n\n"
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "conflict_error",
    412: "conflict_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
    507: "insufficient_memory_error",
}


def error_object(fault: HttpFault) -> answers.Error:
    """Return `{"error": {...}}`. The numbers that explain a refusal are further members."""
    error: answers.ErrorText = {
        "message": _message_of(fault),
        "type": _TYPES.get(fault.status, "server_error"),
        "param": in_words(fault.field, FIELD_WORDS),
        "code": fault.code,
    }
    return {"error": cast(answers.ErrorText, {**fault.facts, **error})}


def _message_of(fault: HttpFault) -> str:
    """Return a failure's message. For a prompt that does not fit, the message has OpenAI's wording,
    which clients parse."""
    overflow = overflow_of(fault)
    if overflow is None:
        return fault.message
    prompt, limit = overflow
    return (
        f"This model's maximum context length is {limit} tokens. However, your messages resulted "
        f"in {prompt} tokens. Please reduce the length of the messages."
    )


def error_frames(fault: HttpFault) -> bytes:
    """Return the events that report a failure within a stream and end the stream."""
    return sse.frame(json_bytes(error_object(fault))) + sse.DONE


def usage_object(usage: Usage) -> TokenUsage:
    details: ReasoningTokens = {"reasoning_tokens": usage.reasoning_tokens}
    if usage.predicted_tokens:
        accepted = usage.accepted_predicted_tokens
        details["accepted_prediction_tokens"] = accepted
        details["rejected_prediction_tokens"] = usage.predicted_tokens - accepted
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": details,
    }


def timing_object(usage: Usage) -> AnswerTiming:
    """Return the times of an answer in seconds: from entering the queue to the last token, and the
    parts of that time. Also the tokens per second, over that time and over decoding alone."""
    seconds = usage.queue_s + usage.prefill_s + usage.decode_s
    after_first = max(usage.completion_tokens - 1, 0)
    timing: AnswerTiming = {
        "seconds": round(seconds, 6),
        "queue_seconds": round(usage.queue_s, 6),
        "prefill_seconds": round(usage.prefill_s, 6),
        "decode_seconds": round(usage.decode_s, 6),
        "tokens_per_sec": _per_second(usage.completion_tokens, seconds),
        "decode_tokens_per_sec": _per_second(after_first, usage.decode_s),
    }
    if usage.drafts:
        timing["drafted_tokens"] = usage.drafted_tokens
        timing["accepted_draft_tokens"] = usage.accepted_tokens
        timing["drafters"] = {
            drafter: {
                "drafts": drafts,
                "drafted_tokens": tokens,
                "accepted_tokens": accepted,
                **_proposal_cost(usage.proposals.get(drafter)),
            }
            for drafter, (drafts, tokens, accepted) in usage.drafters.items()
        }
    if usage.resumes:
        timing["resumes"] = usage.resumes
        timing["paused_seconds"] = round(usage.paused_s, 6)
    return timing


def _proposal_cost(cost: ProposalCost | None) -> answers.ProposalTiming:
    """Return what the drafts of a drafter cost; nothing if it has no network here."""
    return {} if cost is None else {"passes": cost[0], "peak_bytes": cost[1]}


def generation_stats(
    usage: Usage, *, ttft_s: float | None, peak_bytes: int | None
) -> GenerationStats:
    """Return the speed of an answer, under the names of exo's benchmarks."""
    return {
        "prompt_tps": _per_second(usage.prompt_tokens - usage.cached_tokens, usage.prefill_s),
        "generation_tps": timing_object(usage)["decode_tokens_per_sec"],
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "generation_tokens": usage.completion_tokens,
        "ttft_s": None if ttft_s is None else round(ttft_s, 6),
        "peak_memory_usage": None if peak_bytes is None else {"inBytes": peak_bytes},
    }


def page_of(
    objects: Sequence[Mapping[str, Any]], query: Mapping[str, str], *, order: str = "asc"
) -> Page:
    """Return one page of `objects`, which are given oldest first. `query` may have `limit`, `order`
    and `after`; `order` is the default order. Raises BadRequest naming an invalid field."""
    limit, order = page_query(query, order)
    rest = objects if order == "asc" else objects[::-1]
    after = query.get("after")
    if after is not None:
        places = [place for place, item in enumerate(rest) if item["id"] == after]
        if not places:
            raise nothing_after(after)
        rest = rest[places[0] + 1 :]
    shown = rest[:limit]
    return Page(shown, has_more=len(rest) > len(shown))


def page_query(query: Mapping[str, str], order: str) -> tuple[int, str]:
    """Return the `limit` and the order of a query; the parameter `order` is the default order.
    Raises BadRequest naming an invalid field."""
    limit, order = query.get("limit", str(LISTED)), query.get("order", order)
    digits = limit.isascii() and limit.isdigit() and len(limit) <= 3
    if not (digits and 1 <= int(limit) <= MOST_LISTED):
        raise BadRequest(f"limit must be a number from 1 to {MOST_LISTED}", field="limit")
    if order not in ("asc", "desc"):
        raise BadRequest("order must be 'asc' or 'desc'", field="order")
    return int(limit), order


def nothing_after(after: str) -> BadRequest:
    """Return the refusal of a query whose `after` is not the id of any object in the list."""
    return BadRequest(f"after: the list has no object with the id '{after[:80]}'", field="after")


def list_object(page: Page) -> answers.ItemList:
    shown = page.shown
    return {
        "object": "list",
        "data": cast(list[dict[str, Any]], shown),
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": page.has_more,
    }


def _per_second(tokens: int, seconds: float) -> float:
    return round(tokens / seconds, 3) if seconds > 0 else 0.0


def finish_bytes(finish: Mapping[str, str]) -> bytes:
    """Return one of `FINISHES` as JSON for a stream: the fields of an object, without braces."""
    return json_bytes(finish)[1:-1]


def answer_head(parsed: Parsed, object_name: str) -> dict[str, Any]:
    """Return the first fields of every answer and of each of its chunks."""
    return {
        "id": parsed.answer_id,
        "object": object_name,
        "created": int(parsed.created_at_s),
        "model": parsed.model,
        "system_fingerprint": parsed.fingerprint,
        **parsed.echoed_fields,
    }


def whole_answer(
    parsed: Parsed, object_name: str, choices: Sequence[dict[str, Any]], usage: Usage
) -> bytes:
    """Return an answer in one piece. If `choices` is empty, the result is the chunk of a stream
    that has the usage."""
    return json_bytes(
        {
            **answer_head(parsed, object_name),
            "choices": choices,
            "usage": usage_object(usage),
            "timing": timing_object(usage),
        }
    )


class OpenAIStream:
    """The streamed answer to one or more requests; `kind` is the object name of its chunks."""

    def __init__(self, parsed: Parsed, kind: str) -> None:
        self._parsed = parsed
        self._kind = kind
        self._usages: dict[RequestId, Usage] = {}
        self._closed = False
        self._open_choices = {
            (request.request_id, choice)
            for request in parsed.requests
            for choice in range(request.n)
        }
        self._last_chunk = b""

    @property
    def ended(self) -> bool:
        """Return whether the end of every request, or an error, has been rendered."""
        return self._closed or len(self._usages) == len(self._parsed.requests)

    def comment(self, text: str) -> bytes:
        """Return a comment line; empty once the stream has ended."""
        return b"" if self.ended else sse.comment(text)

    def error(self, fault: HttpFault) -> bytes:
        """Return the error and `[DONE]`. This also ends the answers of all other requests of the
        stream."""
        if self._closed:
            return b""
        self._closed = True
        return self._ended_chunk() + error_frames(fault)

    def close(self) -> bytes:
        """Return the usage if the body asked for it, then `[DONE]`."""
        if self._closed:
            return b""
        self._closed = True
        if self._parsed.include_usage and self._usages:
            usage = total(list(self._usages.values()))
            return sse.frame(whole_answer(self._parsed, self._kind, (), usage)) + sse.DONE
        return sse.DONE

    def _start(self) -> bytes:
        """Return the first bytes of a chunk, up to its choices."""
        return sse.frame(json_bytes(answer_head(self._parsed, self._kind)))[: -len(_CHUNK_TAIL)]

    def _end_of_choice(self, end: ChoiceEnd, chunk: bytes) -> bytes:
        """Return the chunk that ends a choice. `chunk` has its bytes up to the end of its choices.
        The very last chunk of the stream is held back and not returned."""
        self._open_choices.discard((end.request_id, end.choice))
        if self._open_choices or self._parsed.include_usage:
            return chunk + _CHUNK_TAIL
        before, self._last_chunk = self._ended_chunk(), chunk
        return before

    def _ended_chunk(self, members: bytes = b"") -> bytes:
        """Return the chunk that was held back, with more fields; empty if no chunk was held
        back."""
        chunk, self._last_chunk = self._last_chunk, b""
        return chunk + members + _CHUNK_TAIL if chunk else b""

    def _of_request(self, entry: PrefillProgress | Finished | Failed) -> bytes:
        """Return the bytes of an entry that belongs to no single choice. They are empty if the
        stream does not show such an entry."""
        match entry:
            case PrefillProgress():
                return sse.comment(f"prefill {entry.done}/{entry.total}")
            case Finished():
                self._usages[entry.request_id] = entry.usage
                timing = timing_object(total(list(self._usages.values())))
                return self._ended_chunk(b',"timing":' + json_bytes(timing)) if self.ended else b""
            case Failed():
                return self.error(faults.of_failed(entry))
