"""What clients of each dialect are told of a model's output, plain and streamed, and its history.

Pure. An output goes the way that it goes in a node: the reader of its family, the entries of the
data plane, a dialect's renderer; then back as the history of the next request.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from bus.wire.errors import FinishReason
from bus.wire.ids import RequestId, TokenId
from bus.wire.messages.requests import GenerationRequest, Usage
from bus.wire.messages.tokens import ChoiceEnd, Entry, Finished, TokenDelta, ToolCallDelta
from gateway.dialects.anthropic.dialect import AnthropicMessages
from gateway.dialects.collect import Collector
from gateway.dialects.dialect import Dialect, ParseContext, Parsed
from gateway.dialects.ollama.dialect import OllamaChat
from gateway.dialects.openai.chat import OpenAIChat
from gateway.dialects.openai.responses import OpenAIResponses
from runner.engine import RowId, SampledToken
from runner.text.choice import ChoiceText
from runner.text.families import Family
from runner.text.prepared import CallPiece, Piece, SpanState, TextPiece
from runner.text.stops import automaton
from tests.harness.sse_frames import FrameReader

Body = dict[str, Any]


@dataclass
class Told:
    """What a client has at the end: its calls are (name, arguments as JSON text)."""

    reasoning: str = ""
    text: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def objects(self) -> Told:
        """Return the same with the arguments as they are when JSON is written one way."""
        calls = [(name, json.dumps(json.loads(text or "{}"))) for name, text in self.calls]
        return Told(self.reasoning, self.text, calls)

    @property
    def all(self) -> str:
        """Return all texts of it."""
        texts = [" ".join(_texts(name, arguments)) for name, arguments in self.calls]
        return " ".join([self.reasoning, self.text, *texts])


def _texts(name: str, arguments: str) -> list[str]:
    found = [name]
    left: list[Any] = [json.loads(arguments)]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            found += value
            left += value.values()
        elif isinstance(value, list):
            left += value
        else:
            found.append(str(value))
    return found


class _Pieces:
    """A detokeniser whose tokens are the pieces of one text."""

    held = ""

    def __init__(self, pieces: Sequence[str]) -> None:
        self._pieces = pieces

    def add(self, token: int) -> str:
        return self._pieces[token]

    def flush(self) -> str:
        return ""


def read(
    family: Family,
    tools: Sequence[Mapping[str, Any]],
    pieces: Sequence[str],
    *,
    opening: SpanState,
    reason: FinishReason,
) -> tuple[list[Piece], FinishReason]:
    """Return what a choice makes of an output that came in these pieces."""
    reader = family.reader(
        tools, reads_thinking=True, reads_tools=True, opening=opening, stops=automaton(())
    )
    choice = ChoiceText(
        request_id=RequestId("r"),
        choice=0,
        detokeniser=cast(Any, _Pieces(pieces)),
        reader=reader,
        stop_token_ids=frozenset(),
        one_call=False,
        token_text=None,
    )
    found: list[Piece] = []
    for number in range(len(pieces)):
        found += choice.push(SampledToken(RowId(1), TokenId(number))).pieces
    ended = choice.finish(reason)
    return [*found, *ended.pieces], ended.finish_reason


def told(pieces: Sequence[Piece]) -> Told:
    """Return what the pieces say together."""
    found = Told()
    for piece in pieces:
        if isinstance(piece, CallPiece) and piece.name is not None:
            found.calls.append((piece.name, piece.arguments))
        elif isinstance(piece, CallPiece):
            name, arguments = found.calls[piece.call]
            found.calls[piece.call] = (name, arguments + piece.arguments)
        elif isinstance(piece, TextPiece) and piece.channel == "reasoning":
            found.reasoning += piece.text
        elif isinstance(piece, TextPiece):
            found.text += piece.text
    return found


def entries(ours: RequestId, pieces: Sequence[Piece], reason: FinishReason) -> list[Entry]:
    """Return the entries that a runner sends."""
    made: list[Entry] = []
    for piece in pieces:
        if isinstance(piece, CallPiece):
            made.append(ToolCallDelta(ours, len(made), 0, piece.call, piece.call_id, piece.name,
                                      piece.arguments, piece.tokens))  # fmt: skip
        elif isinstance(piece, TextPiece):
            made.append(TokenDelta(ours, len(made), 0, piece.channel, piece.text, piece.tokens))
    made.append(ChoiceEnd(ours, len(made), 0, reason, None))
    return [*made, Finished(ours, len(made), Usage())]


# --- the dialects -----------------------------------------------------------------------------


def _chat_body(tools: Sequence[Mapping[str, Any]]) -> Body:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": list(tools)}


def _chat_whole(answer: Body) -> Told:
    message = answer["choices"][0]["message"]
    calls = [one["function"] for one in message.get("tool_calls") or ()]
    return Told(
        message.get("reasoning_content") or "",
        message["content"] or "",
        [(one["name"], one["arguments"]) for one in calls],
    )


def _chat_stream(stream: bytes) -> Told:
    found = Told()
    for event in _events(stream):
        delta: Body = event["choices"][0]["delta"] if event["choices"] else {}
        found.reasoning += delta.get("reasoning_content") or ""
        found.text += delta.get("content") or ""
        for one in delta.get("tool_calls") or ():
            _add(found, one["index"], one["function"])
    return found


def _add(found: Told, index: int, function: Body) -> None:
    if index == len(found.calls):
        found.calls.append((function["name"], ""))
    name, arguments = found.calls[index]
    found.calls[index] = (name, arguments + function.get("arguments", ""))


def _chat_history(body: Body, answer: Body) -> Body:
    message = answer["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": one["id"], "content": "done"}
        for one in message.get("tool_calls") or ()
    ]
    last = {"role": "user", "content": "go on"}
    return {**body, "messages": [*body["messages"], message, *results, last]}


def _responses_body(tools: Sequence[Mapping[str, Any]]) -> Body:
    flat = [{"type": "function", **one["function"]} for one in tools]
    return {"model": "m", "input": [{"role": "user", "content": "hi"}], "tools": flat}


def _responses_whole(answer: Body) -> Told:
    found = Told()
    for item in answer["output"]:
        if item["type"] == "function_call":
            found.calls.append((item["name"], item["arguments"]))
        elif item["type"] == "reasoning":
            found.reasoning += "".join(one["text"] for one in item["content"])
        else:
            found.text += "".join(one["text"] for one in item["content"])
    return found


def _responses_stream(stream: bytes) -> Told:
    found = Told()
    events = _events(stream)
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_text.delta":
            found.text += event["delta"]
        elif kind == "reasoning_text.delta":
            found.reasoning += event["delta"]
        elif kind == "output_item.added" and event["item"]["type"] == "function_call":
            found.calls.append((event["item"]["name"], ""))
        elif kind == "function_call_arguments.delta":
            name, arguments = found.calls[-1]
            found.calls[-1] = (name, arguments + event["delta"])
    assert _responses_whole(events[-1]["response"]) == found
    return found


def _responses_history(body: Body, answer: Body) -> Body:
    calls = [item for item in answer["output"] if item["type"] == "function_call"]
    results = [
        {"type": "function_call_output", "call_id": one["call_id"], "output": "done"}
        for one in calls
    ]
    last = {"role": "user", "content": "go on"}
    return {**body, "input": [*body["input"], *answer["output"], *results, last]}


def _messages_body(tools: Sequence[Mapping[str, Any]]) -> Body:
    named = [
        {"name": one["function"]["name"], "input_schema": one["function"]["parameters"]}
        for one in tools
    ]
    return {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}],
            "tools": named}  # fmt: skip


def _messages_whole(answer: Body) -> Told:
    found = Told()
    for block in answer["content"]:
        match block["type"]:
            case "text":
                found.text += block["text"]
            case "thinking":
                found.reasoning += block["thinking"]
            case _:
                found.calls.append((block["name"], json.dumps(block["input"])))
    return found


def _messages_stream(stream: bytes) -> Told:
    found = Told()
    for event in _events(stream):
        if event["type"] == "content_block_start":
            if event["content_block"]["type"] == "tool_use":
                found.calls.append((event["content_block"]["name"], ""))
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            found.text += delta.get("text", "")
            found.reasoning += delta.get("thinking", "")
            if "partial_json" in delta:
                name, arguments = found.calls[-1]
                found.calls[-1] = (name, arguments + delta["partial_json"])
    return found


def _messages_history(body: Body, answer: Body) -> Body:
    results = [
        {"type": "tool_result", "tool_use_id": one["id"], "content": "done"}
        for one in answer["content"]
        if one["type"] == "tool_use"
    ]
    turn = {"role": "assistant", "content": answer["content"]}
    last = {"role": "user", "content": [*results, {"type": "text", "text": "go on"}]}
    return {**body, "messages": [*body["messages"], turn, last]}


def _ollama_whole(answer: Body) -> Told:
    return _ollama_told([answer])


def _ollama_stream(stream: bytes) -> Told:
    return _ollama_told([json.loads(line) for line in stream.decode().split("\n") if line])


def _ollama_told(lines: Sequence[Body]) -> Told:
    found = Told()
    for line in lines:
        message = line["message"]
        found.text += message["content"]
        found.reasoning += message.get("thinking", "")
        calls = [one["function"] for one in message.get("tool_calls", ())]
        found.calls += [(one["name"], json.dumps(one["arguments"])) for one in calls]
    return found


def _ollama_history(body: Body, answer: Body) -> Body:
    message = answer["message"]
    results = [
        {"role": "tool", "tool_name": one["function"]["name"], "content": "done"}
        for one in message.get("tool_calls", ())
    ]
    last = {"role": "user", "content": "go on"}
    return {**body, "messages": [*body["messages"], message, *results, last]}


def _events(stream: bytes) -> list[Body]:
    frames = FrameReader().feed(stream)
    return [json.loads(frame.data) for frame in frames if frame.data != "[DONE]"]


@dataclass(frozen=True)
class Way:
    """One dialect: a body with tools, what a client reads, and the body that goes on."""

    dialect: Dialect
    body: Callable[[Sequence[Mapping[str, Any]]], Body]
    whole: Callable[[Body], Told]
    stream: Callable[[bytes], Told]
    history: Callable[[Body, Body], Body]

    @property
    def name(self) -> str:
        """Return the dialect's name."""
        return self.dialect.name

    def parsed(self, body: Body) -> Parsed:
        """Return what the gateway makes of a body. Raises BadRequest."""
        ids = (RequestId(f"r{count}") for count in itertools.count())
        return self.dialect.parse(json.dumps(body).encode(), ParseContext(ids=ids, now_s=1.0))

    def answer(self, parsed: Parsed, made: Sequence[Entry]) -> Body:
        """Return the plain answer."""
        collector = Collector(parsed.requests)
        collector.add(made)
        return json.loads(self.dialect.render_whole(parsed, collector.collected))

    def streamed(self, parsed: Parsed, made: Sequence[Entry]) -> Told:
        """Return what a client of the stream has at the end."""
        renderer = self.dialect.stream(parsed)
        stream = renderer.open()
        for entry in made:
            stream += renderer.render([entry])
        return self.stream(stream + renderer.close())

    def next_request(self, body: Body, answer: Body) -> GenerationRequest:
        """Return the request of a client that goes on from an answer. Raises BadRequest."""
        return self.parsed(self.history(body, answer)).requests[0]


WAYS = (
    Way(OpenAIChat(), _chat_body, _chat_whole, _chat_stream, _chat_history),
    Way(OpenAIResponses(), _responses_body, _responses_whole, _responses_stream,
        _responses_history),
    Way(AnthropicMessages(), _messages_body, _messages_whole, _messages_stream,
        _messages_history),
    Way(OllamaChat(), _chat_body, _ollama_whole, _ollama_stream, _ollama_history),
)  # fmt: skip
