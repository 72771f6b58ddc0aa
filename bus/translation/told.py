"""Reads a server's answer while it is passed on to the client: its token counts, and whether it is
complete.

Pure. Bytes are passed on unchanged, but a stream is passed on in whole lines, so that an error
event can follow where the stream breaks off. A server of OpenAI's kind reports token counts of a
stream only if the client asks for them (`stream_options`). Otherwise each event with a part of the
answer counts as one token.
"""

from __future__ import annotations

import json
from typing import Any, cast

from bus.wire.messages.requests import Usage

DONE = b"[DONE]"
"""The last data of a stream of OpenAI's kind."""
MOST_LINE_BYTES = 4 << 20
"""A longer line is passed on without being read."""
MOST_TOKENS = 2**53
"""A larger token count is an error of the server, and is ignored."""


class ToldInPassing:
    """Reads one answer and has its state so far. `whole`: the end of the answer has arrived.
    `finish`: why it ended."""

    def __init__(self, *, is_stream: bool) -> None:
        self.usage = Usage()
        self.whole = False
        self.finish: str | None = None
        self.in_event = False
        """Whether the last event that was passed on still lacks the blank line that ends it."""
        self._is_stream = is_stream
        self._rest = b""
        self._events = 0
        self._has_usage = False

    def spent(self) -> int:
        """Return the tokens that the answer has used, as far as they are known."""
        return self.usage.prompt_tokens + self.usage.completion_tokens

    def passed(self, piece: bytes) -> bytes:
        """Add bytes of a stream; return the bytes to pass on, in whole lines."""
        self._rest += piece
        lines, newline, rest = self._rest.rpartition(b"\n")
        if not newline:
            if len(self._rest) > MOST_LINE_BYTES:
                held, self._rest, self.in_event = self._rest, b"", True
                return held
            return b""
        self._rest = rest
        for line in lines.split(b"\n"):
            self._line(line.rstrip(b"\r"))
        return lines + newline

    def ended(self) -> bytes:
        """End a stream. Return the bytes that were held back because their line was not
        complete."""
        held, self._rest = self._rest, b""
        if held:
            self._line(held.rstrip(b"\r"))
        return held

    def read_whole(self, body: bytes) -> None:
        """Read the token counts and the end of an answer that arrived in one piece."""
        self._object(body)
        self.whole = True

    def _line(self, line: bytes) -> None:
        self.in_event = bool(line)
        data = data_of(line)
        if data == DONE:
            self.whole = True
        elif data:
            self._object(data)

    def _object(self, data: bytes) -> None:
        try:
            value: Any = json.loads(data)
        except (ValueError, RecursionError):
            return
        if not isinstance(value, dict):
            return
        event = cast(dict[str, Any], value)
        if event.get("type") == "message_stop":
            self.whole = True
        self._read_usage(event.get("usage"))
        message = event.get("message")
        if isinstance(message, dict):
            self._read_usage(cast(dict[str, Any], message).get("usage"))
        delta = event.get("delta")
        choices = objects_in(event.get("choices"))
        for part in (event, delta, *choices):
            if isinstance(part, dict):
                self._read_finish(cast(dict[str, Any], part))
        if self._is_stream and not self._has_usage and any(map(_has_piece, choices)):
            self._events += 1
            self.usage = self.usage.model_copy(update={"completion_tokens": self._events})

    def _read_finish(self, part: dict[str, Any]) -> None:
        reason = part.get("finish_reason") or part.get("stop_reason")
        if isinstance(reason, str):
            self.finish = reason[:64]
            # a server that forgets the last line has still reported its end
            self.whole = self.whole or "finish_reason" in part

    def _read_usage(self, usage: object) -> None:
        if not isinstance(usage, dict):
            return
        counts = cast(dict[str, Any], usage)
        cached = _count(counts, "cache_read_input_tokens")
        written = _count(counts, "cache_creation_input_tokens")
        details = counts.get("prompt_tokens_details")
        if isinstance(details, dict):
            cached = _count(cast(dict[str, Any], details), "cached_tokens")
        before = self.usage
        prompt = _count(counts, "prompt_tokens")
        if "input_tokens" in counts:
            prompt = _count(counts, "input_tokens") + cached + written
        completion = _count(counts, "completion_tokens") or _count(counts, "output_tokens")
        self._has_usage = self._has_usage or bool(completion)
        self.usage = Usage(
            prompt_tokens=prompt or before.prompt_tokens,
            completion_tokens=completion or before.completion_tokens,
            cached_tokens=min(cached, prompt) or before.cached_tokens,
            reasoning_tokens=_reasoning(counts) or before.reasoning_tokens,
        )


def data_of(line: bytes) -> bytes:
    """Return the data of a line of a stream; empty if the line has no data."""
    return line[5:].strip() if line.startswith(b"data:") else b""


def objects_in(value: object) -> list[dict[str, Any]]:
    """Return the objects in a list; empty if the value is not a list."""
    items = cast(list[Any], value) if isinstance(value, list) else []
    return [item for item in items if isinstance(item, dict)]


def _reasoning(usage: dict[str, Any]) -> int:
    details = usage.get("completion_tokens_details")
    if not isinstance(details, dict):
        return 0
    return _count(cast(dict[str, Any], details), "reasoning_tokens")


def _has_piece(choice: dict[str, Any]) -> bool:
    """Return whether a choice of an event has a piece of the answer."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return bool(choice.get("text"))
    return any(value for name, value in cast(dict[str, Any], delta).items() if name != "role")


def _count(counts: dict[str, Any], name: str) -> int:
    value = counts.get(name)
    return value if type(value) is int and 0 < value < MOST_TOKENS else 0
