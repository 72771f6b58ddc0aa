"""Translates the events of Anthropic's messages API into entries. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bus.translation.hearing import AnswerEntries, object_of, place_of, plain_text
from bus.translation.target import Target
from bus.wire.ids import RequestId
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import Entry


class AnthropicHearing:
    """Translates the events of a message."""

    def __init__(self, target: Target, request_id: RequestId, choices: int) -> None:
        self._entries = AnswerEntries(target, request_id, choices)
        self._acts: Mapping[object, Callable[[Mapping[str, Any]], Iterator[Entry]]] = {
            "content_block_start": self._begun,
            "content_block_delta": self._delta,
            "content_block_stop": self._stopped,
            "message_delta": self._ended,
        }

    def take(self, event: Mapping[str, Any]) -> list[Entry]:
        """Return the entries of an event; no entry if the event is not about the answer. Raises
        BrokenStream and Filtered."""
        act = self._acts.get(place_of(event.get("type")))
        return [] if act is None else list(act(event))

    def end(self, usage: Usage) -> list[Entry]:
        """Return the remaining ends of choices and the last entry, `Finished`."""
        return list(self._entries.last(usage))

    def _begun(self, event: Mapping[str, Any]) -> Iterator[Entry]:
        block = object_of(event.get("content_block"))
        match block.get("type"):
            case "tool_use":
                place, call_id = place_of(event.get("index")), place_of(block.get("id"))
                yield from self._entries.begin_call(0, place, call_id, block.get("name"))
                if given := object_of(block.get("input")):
                    whole = json.dumps(given, ensure_ascii=False, separators=(",", ":"))
                    yield from self._entries.add_arguments(0, whole)
            case "thinking":
                yield from self._entries.add_text(0, "reasoning", block.get("thinking"))
            case _:
                yield from self._entries.add_text(0, "text", block.get("text"))

    def _delta(self, event: Mapping[str, Any]) -> Iterator[Entry]:
        delta = object_of(event.get("delta"))
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
        delta = object_of(event.get("delta"))
        reason, stop = delta.get("stop_reason"), delta.get("stop_sequence")
        if isinstance(reason, str):
            sequence = plain_text(stop) if isinstance(stop, str) else None
            yield from self._entries.end_choice(0, reason, sequence)
