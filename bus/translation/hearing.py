"""Translates a server's stream into the entries (parts of an answer) that a runner would send.

Pure. Text and thinking keep their order. A tool call's id and name precede its arguments, and calls
follow one another. The end of a choice comes after all its entries. The last entry is `Finished`. A
call without arguments has an empty object.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from bus.translation.target import Target
from bus.translation.told import DONE, data_of
from bus.translation.troubles import BrokenStream, Filtered
from bus.wire.errors import FinishReason
from bus.wire.ids import RequestId
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import (
    Channel,
    ChoiceEnd,
    Entry,
    Finished,
    TokenDelta,
    TokenLogprob,
    ToolCallDelta,
)

FILTERED = frozenset({"content_filter", "refusal"})
"""Reasons with which a server refuses to answer."""
ABORTED = frozenset({"abort", "error"})
"""Reasons with which an engine of the cluster reports that it gave up."""
_REASONS: Mapping[str, FinishReason] = {
    "length": "length",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "tool_use": "tool_calls",
}


class Hearing(Protocol):
    """Translates one answer while its events arrive."""

    def take(self, event: Mapping[str, Any]) -> list[Entry]:
        """Return the entries of an event. Raises BrokenStream, or Filtered if the server refuses to
        answer."""
        ...

    def end(self, usage: Usage) -> list[Entry]:
        """Return the entries that remain at the end: the ends of choices, then the last entry,
        `Finished`. Raises BrokenStream if an engine of the cluster left a choice without an end."""
        ...


def events_in(lines: bytes, name: str) -> Iterator[dict[str, Any]]:
    """Yield the events of whole lines of a stream. `name`: the server in messages. Raises
    BrokenStream if an event is not a JSON object."""
    for line in lines.split(b"\n"):
        data = data_of(line)
        if data in (b"", DONE):
            continue
        try:
            event: Any = json.loads(data)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            raise BrokenStream(f"{name} sent an event that is not a JSON object")
        yield cast(dict[str, Any], event)


def error_message(body: object) -> str | None:
    """Return the message of a server's error, in an event or in the body of a response; None if
    there is no message."""
    error = object_of(body).get("error")
    message = object_of(error).get("message", error)
    return message if isinstance(message, str) else None


def object_of(value: object) -> dict[str, Any]:
    """Return the value if it is an object, else an empty object."""
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def place_of(value: object) -> int | str | None:
    """Return the index or id of a part of an answer; None if the value is neither."""
    return value if isinstance(value, (int, str)) else None


def plain_text(value: object) -> str:
    """Return the value if it is a string, else "". Unpaired surrogates (halves of UTF-16
    characters), which UTF-8 cannot encode, are replaced by `?`."""
    text = value if isinstance(value, str) else ""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


@dataclass(slots=True)
class _Choice:
    """The state of one choice of the answer. `place` is the server's index of the open tool call;
    `seen` has the indexes and ids of all tool calls so far. `channel` is the channel (text or
    thinking) of the last text."""

    calls: int = 0
    place: object = None
    call_id: str = ""
    open: bool = False
    has_arguments: bool = False
    seen: set[object] = field(default_factory=set[object])
    ended: bool = False
    channel: Channel = "text"


class AnswerEntries:
    """Makes the numbered entries of one request with `choices` choices."""

    def __init__(self, target: Target, request_id: RequestId, choices: int) -> None:
        self._target = target
        self._request_id = request_id
        self._seq = 0
        self._choices = [_Choice() for _ in range(choices)]

    def choice(self, number: int) -> _Choice:
        """Return the state of a choice. Raises BrokenStream if the request has no such choice."""
        if not 0 <= number < len(self._choices):
            raise BrokenStream(f"{self._target.name} sent a choice that was not requested")
        return self._choices[number]

    def add_text(self, choice: int, channel: Channel, text: object) -> Iterator[Entry]:
        """Yield the entry for more text; nothing if `text` is empty or is not a string."""
        if piece := plain_text(text):
            yield from self.add_scored(choice, channel, piece, (), 1)

    def add_scored(
        self,
        choice: int,
        channel: Channel,
        text: str,
        scores: Sequence[TokenLogprob],
        tokens: int,
    ) -> Iterator[Entry]:
        """Yield the entry for more text with the log-probabilities of its tokens. `text` may be
        empty."""
        self.choice(choice).channel = channel
        yield from self.close_call(choice)
        seq = self._next()
        yield TokenDelta(self._request_id, seq, choice, channel, text, tokens, tuple(scores))

    def begin_call(
        self, choice: int, place: int | str | None, call_id: int | str | None, name: object
    ) -> Iterator[Entry]:
        """Yield the end of the previous tool call and the beginning of a new one."""
        yield from self.close_call(choice)
        state = self.choice(choice)
        if (call_id or place) in state.seen:
            raise BrokenStream(
                f"{self._target.name} continued a tool call that it had already ended"
            )
        number, state.calls = state.calls, state.calls + 1
        state.place, state.open, state.has_arguments = place, True, False
        state.seen |= {place, call_id}
        own_id = f"call_{self._request_id}_{choice}_{number}"
        state.call_id = plain_text(str(call_id)) if call_id else own_id
        yield self._call(choice, number, state.call_id, plain_text(name), "")

    def add_arguments(self, choice: int, arguments: object) -> Iterator[Entry]:
        """Yield the entry for more arguments of the open tool call. Raises BrokenStream if there is
        no call."""
        state = self.choice(choice)
        if piece := plain_text(arguments):
            if not state.calls:
                raise BrokenStream(f"{self._target.name} sent arguments before their tool call")
            state.has_arguments = True
            yield self._call(choice, state.calls - 1, None, None, piece)

    def close_call(self, choice: int) -> Iterator[Entry]:
        """Close the open tool call, if any. If it has no arguments, yield an empty object as its
        arguments."""
        state = self.choice(choice)
        if state.open and not state.has_arguments:
            yield self._call(choice, state.calls - 1, None, None, "{}")
        state.open = False

    def end_choice(self, choice: int, reason: str, stop: str | None = None) -> Iterator[Entry]:
        """Yield the end of a choice. Raises Filtered if the server refused to answer, and
        BrokenStream if an engine of the cluster gave up."""
        target = self._target
        if reason in FILTERED:
            raise Filtered(target.name, reason)
        if target.completes and reason in ABORTED:
            raise BrokenStream(f"{target.name} aborted its answer ({reason})")
        state = self.choice(choice)
        if state.ended:
            return
        if state.open and reason in ("length", "max_tokens"):
            state.open = False  # truncated arguments cannot be completed
        yield from self.close_call(choice)
        state.ended = True
        finish = _REASONS.get(reason, "stop")
        if finish == "stop" and state.calls and stop is None:
            finish = "tool_calls"
        yield ChoiceEnd(self._request_id, self._next(), choice, finish, stop)

    def last(self, usage: Usage) -> Iterator[Entry]:
        """End the choices that have no end yet, then yield the last entry, `Finished`. Raises
        BrokenStream if the server is an engine of the cluster, which must send every end itself."""
        if self._target.completes and not all(state.ended for state in self._choices):
            raise BrokenStream(f"{self._target.name} stopped before the end of its answer")
        for number in range(len(self._choices)):
            yield from self.end_choice(number, "stop")
        yield Finished(self._request_id, self._next(), usage)

    def _call(
        self, choice: int, number: int, call_id: str | None, name: str | None, arguments: str
    ) -> ToolCallDelta:
        seq = self._next()
        return ToolCallDelta(self._request_id, seq, choice, number, call_id, name, arguments, 1)

    def _next(self) -> int:
        self._seq += 1
        return self._seq - 1
