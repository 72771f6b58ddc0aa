"""Answers clients in every dialect: a full body is read, and the same entries are rendered as a
stream, as a whole, and as an error.

What is told is what a client sent and got, byte for byte, and the request that was made of it.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

from bus.wire.ids import RequestId
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import (
    ChoiceEnd,
    Entry,
    Failed,
    Finished,
    TokenDelta,
    TokenLogprob,
    ToolCallDelta,
)
from gateway.dialects.collect import Collector
from gateway.dialects.dialect import Dialect, ParseContext
from gateway.dialects.faults import HttpFault
from gateway.dialects.ollama.dialect import OllamaChat, OllamaGenerate
from gateway.dialects.openai.chat import OpenAIChat
from gateway.dialects.openai.completions import OpenAICompletions
from gateway.dialects.registry import envelope_of
from tests.recorded.specimens import full

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look", "description": "d", "parameters": {"type": "object"}},
}
OPENAI: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.5,
    "top_p": 0.25,
    "top_k": 7,
    "min_p": 0.125,
    "seed": 3,
    "frequency_penalty": 0.5,
    "presence_penalty": -0.5,
    "logit_bias": {"5": 1.5},
    "stop": ["\n\n", "END"],
    "user": "somebody",
}
CHAT: dict[str, Any] = {
    **OPENAI,
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "bob"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
    ],
    "max_completion_tokens": 99,
    "logprobs": True,
    "top_logprobs": 2,
    "tools": [TOOL],
    "tool_choice": "required",
    "parallel_tool_calls": False,
}
OPTIONS = {
    "temperature": 0.5,
    "top_p": 0.25,
    "top_k": 7,
    "seed": 3,
    "num_predict": 9,
    "stop": ["E"],
}
BODIES: tuple[tuple[Dialect, dict[str, Any]], ...] = (
    (OpenAIChat(), CHAT),
    (OpenAICompletions(), {**OPENAI, "prompt": "a", "max_tokens": 9, "logprobs": 2}),
    (
        OllamaChat(),
        {
            "model": "m",
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [TOOL],
            "options": OPTIONS,
            "keep_alive": "5m",
            "think": True,
            "format": "json",
        },
    ),
    (OllamaGenerate(), {"model": "m", "prompt": "a", "system": "be brief", "options": OPTIONS}),
)


def answers() -> dict[str, Any]:
    """Tell, for each dialect, what it reads and what it answers."""
    return {dialect.name: _answered(dialect, body) for dialect, body in BODIES}


def _answered(dialect: Dialect, body: dict[str, Any]) -> dict[str, Any]:
    ids = (RequestId(f"req-n1-h0-b00f0001-{count:x}") for count in itertools.count())
    context = ParseContext(ids=ids, now_s=1_700_000_000.5, fingerprint="shoal-0")
    parsed = dialect.parse(json.dumps(body).encode(), context)
    request = parsed.requests[0]
    calls = bool(body.get("tools"))
    entries = _entries(request.request_id, calls=calls)
    stream = dialect.stream(parsed, load_s=0.5)
    streamed = [stream.open(), *(stream.render([entry]) for entry in entries), stream.close()]
    broken = dialect.stream(parsed)
    failed = Failed(request.request_id, 1, "runner_lost", "it is gone", full(Usage), {})
    broke = [broken.open(), broken.comment("wait"), broken.render([failed]), broken.close()]
    collector = Collector(parsed.requests)
    collector.add(entries)
    whole = dialect.render_whole(parsed, collector.collected, load_s=0.5)
    path = "/api/" if dialect.name.startswith("ollama") else "/v1/"
    fault = HttpFault(404, "model_not_found", "no", field="model")
    error = envelope_of(path).answer(fault)
    return {
        "request": request.model_dump(mode="json"),
        "intent": parsed.intent,
        "type": dialect.stream_content_type,
        "streamed": [part.decode() for part in streamed],
        "broken": [part.decode() for part in broke],
        "whole": json.loads(whole),
        "error": [error.status, dict(error.headers), json.loads(error.body)],
    }


def _entries(ours: RequestId, *, calls: bool) -> list[Entry]:
    token = TokenLogprob(5, " fish", -0.5, ((5, " fish", -0.5), (6, " cat", -1.25)))
    called: list[Entry] = [
        ToolCallDelta(ours, 3, 0, 0, "call_1", "look", "", 1),
        ToolCallDelta(ours, 4, 0, 0, None, None, '{"at": 1}', 2),
    ]
    return [
        TokenDelta(ours, 0, 0, "reasoning", "hm", 1),
        TokenDelta(ours, 1, 0, "text", "one", 1, (token,)),
        TokenDelta(ours, 2, 0, "text", " fish", 1, (token,)),
        *(called if calls else []),
        ChoiceEnd(ours, 5, 0, "tool_calls" if calls else "stop", None),
        Finished(ours, 6, full(Usage)),
    ]
