"""Translates a provider's stream into the entries (parts of an answer) that a runner would send.

Pure. Text and thinking keep their order. A tool call's id and name precede its arguments, and calls
follow one another. The end of a choice comes after all its entries. The last entry is `Finished`. A
call without arguments has an empty object.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from bus.wire.errors import FinishReason
from bus.wire.ids import RequestId
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import (
    Channel,
    ChoiceEnd,
    Entry,
    Finished,
    TokenDelta,
    ToolCallDelta,
)
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.fetching.providers.call import ProviderFailed
from gateway.fetching.providers.told import DONE, data_of, objects_in

FILTERED = frozenset({"content_filter", "refusal"})
"""Reasons with which a provider refuses to answer."""
_REASONS: Mapping[str, FinishReason] = {
    "length": "length",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "tool_use": "tool_calls",
}


class Hearing(Protocol):
    """Translates one answer of a provider while its events arrive."""

    def take(self, event: Mapping[str, Any]) -> list[Entry]:
        """Return the entries of an event. Raises ProviderFailed, or HttpFaultRaised if the provider
        refuses to answer."""
        ...

    def end(self, usage: Usage) -> list[Entry]:
        """Return the entries that remain at the end: the ends of choices, then the last entry,
        `Finished`."""
        ...


def events_in(lines: bytes, provider: str) -> Iterator[dict[str, Any]]:
    """Yield the events of whole lines of a stream. Raises ProviderFailed if an event is not a JSON
    object."""
    for line in lines.split(b"\n"):
        data = data_of(line)
        if data in (b"", DONE):
            continue
        try:
            event: Any = json.loads(data)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            text = f"the provider '{provider}' sent an event that is not a JSON object"
            raise ProviderFailed("broken", text)
        yield cast(dict[str, Any], event)


@dataclass(slots=True)
class _Choice:
    """The state of one choice of the answer. `place` is the provider's index of the open tool call;
    `seen` has the indexes and ids of all tool calls."""

    calls: int = 0
    place: object = None
    call_id: str = ""
    open: bool = False
    has_arguments: bool = False
    seen: set[object] = field(default_factory=set[object])
    ended: bool = False


class _Entries:
    """Makes the numbered entries of one request."""

    def __init__(self, request_id: RequestId, provider: str) -> None:
        self._request_id = request_id
        self._provider = provider
        self._seq = 0
        self._choices: dict[int, _Choice] = {}

    def choice(self, number: int) -> _Choice:
        """Return the state of a choice. The first call for a number creates the state."""
        return self._choices.setdefault(number, _Choice())

    def add_text(self, choice: int, channel: Channel, text: object) -> Iterator[Entry]:
        """Yield a piece of text; nothing if `text` is empty or is not a string."""
        self.choice(choice)
        if isinstance(text, str) and text:
            yield from self.close_call(choice)
            yield TokenDelta(self._request_id, self._next(), choice, channel, text, 1)

    def begin_call(
        self, choice: int, place: object, call_id: object, name: object
    ) -> Iterator[Entry]:
        """Yield the end of the previous tool call and the beginning of a new one."""
        yield from self.close_call(choice)
        state = self.choice(choice)
        if (call_id or place) in state.seen:
            text = f"the provider '{self._provider}' continues a tool call that it had ended"
            raise ProviderFailed("broken", text)
        number, state.calls = state.calls, state.calls + 1
        state.place, state.open, state.has_arguments = place, True, False
        state.seen |= {place, call_id}
        state.call_id = str(call_id or f"call_{self._request_id}_{choice}_{number}")
        yield self._call(choice, number, state.call_id, str(name or ""), "")

    def add_arguments(self, choice: int, arguments: object) -> Iterator[Entry]:
        """Yield a piece of the open call's arguments."""
        state = self.choice(choice)
        if isinstance(arguments, str) and arguments:
            state.has_arguments = True
            yield self._call(choice, state.calls - 1, None, None, arguments)

    def close_call(self, choice: int) -> Iterator[Entry]:
        """Close the open call, if any; yield an empty object if it has no arguments."""
        state = self.choice(choice)
        if state.open and not state.has_arguments:
            yield self._call(choice, state.calls - 1, None, None, "{}")
        state.open = False

    def ended(self, choice: int, reason: str, stop: str | None = None) -> Iterator[Entry]:
        """Yield the end of a choice. Raises HttpFaultRaised if the provider refused to answer."""
        if reason in FILTERED:
            text = f"the provider '{self._provider}' refused to answer ({reason})"
            raise HttpFaultRaised(HttpFault(400, "content_filter", text))
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
        """Yield the missing ends of choices and the last entry, `Finished`."""
        for number in sorted(self._choices or {0: _Choice()}):
            yield from self.ended(number, "stop")
        yield Finished(self._request_id, self._next(), usage)

    def _call(
        self, choice: int, number: int, call_id: str | None, name: str | None, arguments: str
    ) -> ToolCallDelta:
        seq = self._next()
        return ToolCallDelta(self._request_id, seq, choice, number, call_id, name, arguments, 1)

    def _next(self) -> int:
        self._seq += 1
        return self._seq - 1


class OpenAIHearing:
    """Translates the chunks of a chat completion."""

    def __init__(self, request_id: RequestId, provider: str) -> None:
        self._entries = _Entries(request_id, provider)

    def take(self, event: Mapping[str, Any]) -> list[Entry]:
        """Return the entries of a chunk."""
        return [entry for choice in objects_in(event.get("choices")) for entry in self._of(choice)]

    def end(self, usage: Usage) -> list[Entry]:
        """Return the remaining ends of choices and the last entry, `Finished`."""
        return list(self._entries.last(usage))

    def _of(self, choice: dict[str, Any]) -> Iterator[Entry]:
        entries, delta = self._entries, _object(choice.get("delta"))
        index = choice.get("index")
        number = index if isinstance(index, int) else 0
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        yield from entries.add_text(number, "reasoning", thought)
        yield from entries.add_text(number, "text", delta.get("content"))
        yield from entries.add_text(number, "text", delta.get("refusal"))
        for call in objects_in(delta.get("tool_calls")):
            yield from self._part_of_call(number, call)
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            yield from entries.ended(number, reason)

    def _part_of_call(self, number: int, call: dict[str, Any]) -> Iterator[Entry]:
        """Yield the entries for a part of a tool call. Some servers give all calls the same index,
        and other servers give calls no index. So a part with another id begins another call."""
        state, function = self._entries.choice(number), _object(call.get("function"))
        call_id, index = call.get("id"), call.get("index")
        is_other = bool(call_id) and call_id != state.call_id
        if not state.open or is_other or (index is not None and index != state.place):
            yield from self._entries.begin_call(number, index, call_id, function.get("name"))
        yield from self._entries.add_arguments(number, function.get("arguments"))


class AnthropicHearing:
    """Translates the events of a message."""

    def __init__(self, request_id: RequestId, provider: str) -> None:
        self._entries = _Entries(request_id, provider)
        self._acts: Mapping[object, Callable[[Mapping[str, Any]], Iterator[Entry]]] = {
            "content_block_start": self._begun,
            "content_block_delta": self._delta,
            "content_block_stop": self._stopped,
            "message_delta": self._ended,
        }

    def take(self, event: Mapping[str, Any]) -> list[Entry]:
        """Return the entries of an event; no entry if the event is not about the answer."""
        act = self._acts.get(event.get("type"))
        return [] if act is None else list(act(event))

    def end(self, usage: Usage) -> list[Entry]:
        """Return the remaining ends of choices and the last entry, `Finished`."""
        return list(self._entries.last(usage))

    def _begun(self, event: Mapping[str, Any]) -> Iterator[Entry]:
        block = _object(event.get("content_block"))
        match block.get("type"):
            case "tool_use":
                place = event.get("index")
                yield from self._entries.begin_call(0, place, block.get("id"), block.get("name"))
                if given := _object(block.get("input")):
                    yield from self._entries.add_arguments(0, json_bytes(given).decode())
            case "thinking":
                yield from self._entries.add_text(0, "reasoning", block.get("thinking"))
            case _:
                yield from self._entries.add_text(0, "text", block.get("text"))

    def _delta(self, event: Mapping[str, Any]) -> Iterator[Entry]:
        delta = _object(event.get("delta"))
        match delta.get("type"):
            case "text_delta":
                yield from self._entries.add_text(0, "text", delta.get("text"))
            case "thinking_delta":
                yield from self._entries.add_text(0, "reasoning", delta.get("thinking"))
            case "input_json_delta":
                if self._entries.choice(0).place == event.get("index"):
                    yield from self._entries.add_arguments(0, delta.get("partial_json"))
            case _:
                return

    def _stopped(self, event: Mapping[str, Any]) -> Iterator[Entry]:
        if self._entries.choice(0).place == event.get("index"):
            yield from self._entries.close_call(0)

    def _ended(self, event: Mapping[str, Any]) -> Iterator[Entry]:
        delta = _object(event.get("delta"))
        reason, stop = delta.get("stop_reason"), delta.get("stop_sequence")
        if isinstance(reason, str):
            yield from self._entries.ended(0, reason, stop if isinstance(stop, str) else None)


def _object(value: object) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}
