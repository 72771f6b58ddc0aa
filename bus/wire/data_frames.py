"""Data-plane frames: `[tag, *fields]` arrays for the dataclasses of `bus.wire.messages.tokens`.

Pure. What comes per token is checked for shape and type by hand (a pydantic model costs ten
times as much); `Submit` carries a request that pydantic validates in full. Whatever does
not fit raises `BadMessage`; nothing else can come out.
"""

from __future__ import annotations

from typing import Any, cast

from pydantic import ValidationError

from bus.wire.codec import MAX_DATA_BYTES, first_problem, pack, unpack
from bus.wire.errors import BadMessage, FailReason, FinishReason, Refusal
from bus.wire.ids import Boot, InstanceId, RequestId
from bus.wire.messages.requests import GenerationRequest, Usage
from bus.wire.messages.tokens import (
    CHANNELS,
    Accepted,
    Cancel,
    Channel,
    ChoiceEnd,
    Credit,
    Entry,
    Failed,
    Finished,
    Goodbye,
    Hello,
    Ping,
    Pong,
    PrefillProgress,
    Refused,
    StepEntries,
    Submit,
    ToGateway,
    TokenDelta,
    TokenLogprob,
    ToolCallDelta,
    TopLogprob,
    ToRunner,
    Welcome,
)


def pack_to_runner(message: ToRunner) -> bytes:
    """One frame for a runner."""
    match message:
        case Hello(gateway, boot, low, high):
            return pack(["hello", gateway, boot, low, high])
        case Submit(request, generation, credit, remaining_ms):
            return pack(["submit", request.model_dump(), generation, credit, remaining_ms])
        case Credit(request_id, choice, grant):
            return pack(["credit", request_id, choice, grant])
        case Cancel(request_id, why):
            return pack(["cancel", request_id, why])
        case Ping(boot):
            return pack(["ping", boot])


def unpack_to_runner(data: bytes) -> ToRunner:
    """A runner's incoming frame, checked, or `BadMessage`."""
    tag, fields = _tagged(data)
    match tag, fields:
        case "hello", [str(gateway), str(boot), int(low), int(high)]:
            return Hello(gateway, Boot(boot), low, high)
        case "submit", [dict(), int(generation), int(credit), int(remaining_ms)]:
            try:
                request = GenerationRequest.model_validate(fields[0])
            except ValidationError as error:
                raise BadMessage(f"submit: {first_problem(error)}") from error
            return Submit(request, generation, credit, remaining_ms)
        case "credit", [str(request), int(choice), int(grant)] if grant > 0:
            return Credit(RequestId(request), choice, grant)
        case "cancel", [str(request), "client" | "deadline" | "shutdown" as why]:
            return Cancel(RequestId(request), why)
        case "ping", [str(boot)]:
            return Ping(Boot(boot))
        case _:
            raise BadMessage(f"not a frame for a runner: {tag!r} with {len(fields)} fields")


def pack_to_gateway(message: ToGateway) -> bytes:
    """One frame for a gateway process."""
    match message:
        case StepEntries(step, entries):
            return pack(["step", step, [_entry_row(entry) for entry in entries]])
        case Welcome(instance, generation, boot, protocol):
            return pack(["welcome", instance, generation, boot, protocol])
        case Goodbye(text):
            return pack(["goodbye", text])
        case Accepted(request_id, position, prompt_tokens):
            return pack(["accepted", request_id, position, prompt_tokens])
        case Refused(request_id, refusal):
            return pack(["refused", request_id, refusal.model_dump(exclude_defaults=True)])
        case Pong(boot, step, owes):
            return pack(["pong", boot, step, owes])


def unpack_to_gateway(data: bytes) -> ToGateway:
    """A gateway's incoming frame, checked, or `BadMessage`."""
    tag, fields = _tagged(data)
    match tag, fields:
        case "step", [int(step), list()]:
            return StepEntries(step, tuple(map(_entry, fields[1])))
        case "welcome", [str(instance), int(generation), str(boot), int(protocol)]:
            return Welcome(InstanceId(instance), generation, Boot(boot), protocol)
        case "goodbye", [str(text)]:
            return Goodbye(text)
        case "accepted", [str(request), int(position), int(prompt_tokens)]:
            return Accepted(RequestId(request), position, prompt_tokens)
        case "refused", [str(request), dict()]:
            return Refused(RequestId(request), _validated(Refusal, fields[1]))
        case "pong", [str(boot), int(step), bool(owes)]:
            return Pong(Boot(boot), step, owes)
        case _:
            raise BadMessage(f"not a frame for a gateway: {tag!r} with {len(fields)} fields")


def _tagged(data: bytes) -> tuple[str, list[Any]]:
    raw = unpack(data, limit_bytes=MAX_DATA_BYTES)
    if not isinstance(raw, list) or not raw:
        raise BadMessage("a data frame is a non-empty array")
    items = cast(list[Any], raw)
    if not isinstance(items[0], str):
        raise BadMessage("a data frame begins with its tag")
    return items[0], items[1:]


def _validated(model: type[Any], data: object) -> Any:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise BadMessage(f"{model.__name__}: {first_problem(error)}") from error


def _entry_row(entry: Entry) -> list[Any]:
    match entry:
        case TokenDelta(request, seq, choice, channel, text, tokens, logprobs):
            row: list[Any] = ["t", request, seq, choice, channel, text, tokens]
            if logprobs:
                row.append([[p.token_id, p.text, p.logprob, list(p.top)] for p in logprobs])
            return row
        case ToolCallDelta(request, seq, choice, call, call_id, name, arguments, tokens):
            return ["c", request, seq, choice, call, call_id, name, arguments, tokens]
        case ChoiceEnd(request, seq, choice, finish_reason, stop):
            return ["e", request, seq, choice, finish_reason, stop]
        case PrefillProgress(request, seq, done, total):
            return ["p", request, seq, done, total]
        case Finished(request, seq, usage):
            return ["f", request, seq, usage.model_dump(exclude_defaults=True)]
        case Failed(request, seq, reason, message, usage, details):
            spent = usage.model_dump(exclude_defaults=True)
            return ["x", request, seq, reason, message, spent, details]


_FINISH: frozenset[str] = frozenset(FinishReason.__args__)
_FAIL: frozenset[str] = frozenset(FailReason.__args__)


def _entry(row: list[Any]) -> Entry:
    if not isinstance(row, list):  # pyright: ignore[reportUnnecessaryIsInstance] - from the wire
        raise BadMessage("an entry is an array")
    if len(row) == 7 and row[0] == "t":
        # the hot path: the first case below, but three times as fast as a pattern
        _, request, seq, choice, channel, text, tokens = row
        if (
            type(request) is str
            and type(seq) is int
            and type(choice) is int
            and type(channel) is str
            and channel in CHANNELS
            and type(text) is str
            and type(tokens) is int
        ):
            return TokenDelta(RequestId(request), seq, choice, cast(Channel, channel), text, tokens)
    match row:
        case [
            "t",
            str(request),
            int(seq),
            int(choice),
            str(channel),
            str(text),
            int(tokens),
            *more,
        ]:
            if channel not in CHANNELS:
                raise BadMessage(f"unknown channel {channel!r}")
            logprobs = _logprobs(more[0]) if more else ()
            return TokenDelta(
                RequestId(request), seq, choice, cast(Channel, channel), text, tokens, logprobs
            )
        case [
            "c",
            str(request),
            int(seq),
            int(choice),
            int(call),
            call_id,
            name,
            str(args),
            int(n),
        ]:
            if not (call_id is None or isinstance(call_id, str)):
                raise BadMessage("a tool call's id must be text or null")
            if not (name is None or isinstance(name, str)):
                raise BadMessage("a tool call's name must be text or null")
            return ToolCallDelta(RequestId(request), seq, choice, call, call_id, name, args, n)
        case ["e", str(request), int(seq), int(choice), str(finish), str() | None as stop]:
            if finish not in _FINISH:
                raise BadMessage(f"unknown finish reason {finish!r}")
            return ChoiceEnd(RequestId(request), seq, choice, cast(FinishReason, finish), stop)
        case ["p", str(request), int(seq), int(done), int(total)]:
            return PrefillProgress(RequestId(request), seq, done, total)
        case ["f", str(request), int(seq), dict()]:
            return Finished(RequestId(request), seq, _validated(Usage, row[3]))
        case ["x", str(request), int(seq), str(reason), str(message), dict(), dict()]:
            if reason not in _FAIL:
                raise BadMessage(f"unknown reason {reason!r}")
            spent = _validated(Usage, row[5])
            return Failed(RequestId(request), seq, cast(FailReason, reason), message, spent, row[6])
        case _:
            raise BadMessage(f"not an entry: {str(row)[:80]}")


def _logprobs(raw: object) -> tuple[TokenLogprob, ...]:
    if not isinstance(raw, list):
        raise BadMessage("log-probabilities are an array")
    found: list[TokenLogprob] = []
    for item in cast(list[Any], raw):
        match item:
            case [int(token), str(text), float() | int() as logprob, list()]:
                found.append(
                    TokenLogprob(token, text, float(logprob), _top(cast(list[Any], item[3])))
                )
            case _:
                raise BadMessage("not a log-probability")
    return tuple(found)


def _top(raw: list[Any]) -> tuple[TopLogprob, ...]:
    found: list[TopLogprob] = []
    for item in raw:
        match item:
            case [int(token), str(text), float() | int() as logprob]:
                found.append((token, text, float(logprob)))
            case _:
                raise BadMessage("not a likely token")
    return tuple(found)
