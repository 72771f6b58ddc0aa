"""What an answer of a provider's tells in passing: the tokens it used, and whether it is whole.

Pure. Bytes are given on as they come, but of a stream only whole lines, so that what breaks off can
be followed by a word about that. A provider of OpenAI's kind tells the tokens of a stream only
where its client asks for that (`stream_options`); else the events that have a piece of the answer
are counted.
"""

from __future__ import annotations

import json
from typing import Any, cast

from bus.wire.messages.requests import Usage

DONE = b"[DONE]"
"""The last data of a stream of OpenAI's kind."""
MOST_LINE_BYTES = 4 << 20
"""A line that is longer is given on without being read."""


class ToldInPassing:
    """What one answer has told so far. `whole`: its end was seen; `finish` is why it ended."""

    def __init__(self, *, is_stream: bool) -> None:
        self.usage = Usage()
        self.whole = False
        self.finish: str | None = None
        self.in_event = False
        """Whether what was given on last leaves an event open."""
        self._is_stream = is_stream
        self._rest = b""
        self._events = 0
        self._told = False

    def spent(self) -> int:
        """Return how many tokens were used, as far as that is known."""
        return self.usage.prompt_tokens + self.usage.completion_tokens

    def passed(self, piece: bytes) -> bytes:
        """Take what came of a stream; return what of it, and of what was held back, is given on."""
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
        """Take the end of a stream; return what was held back."""
        held, self._rest = self._rest, b""
        if held:
            self._line(held.rstrip(b"\r"))
        return held

    def read_whole(self, body: bytes) -> None:
        """Take an answer that came in one piece."""
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
            told: Any = json.loads(data)
        except (ValueError, RecursionError):
            return
        if not isinstance(told, dict):
            return
        found = cast(dict[str, Any], told)
        if found.get("type") == "message_stop":
            self.whole = True
        self._read_usage(found.get("usage"))
        message = found.get("message")
        if isinstance(message, dict):
            self._read_usage(cast(dict[str, Any], message).get("usage"))
        delta = found.get("delta")
        for one in (found, delta, *objects_in(found.get("choices"))):
            if isinstance(one, dict):
                self._read_finish(cast(dict[str, Any], one))
        if self._is_stream and not self._told and any(map(_says, objects_in(found.get("choices")))):
            self._events += 1
            self.usage = self.usage.model_copy(update={"completion_tokens": self._events})

    def _read_finish(self, told: dict[str, Any]) -> None:
        reason = told.get("finish_reason") or told.get("stop_reason")
        if isinstance(reason, str):
            self.finish = reason[:64]
            # a server that forgets the last line has said all the same that it was done
            self.whole = self.whole or "finish_reason" in told

    def _read_usage(self, usage: object) -> None:
        if not isinstance(usage, dict):
            return
        told = cast(dict[str, Any], usage)
        cached = _count(told, "cache_read_input_tokens")
        written = _count(told, "cache_creation_input_tokens")
        details = told.get("prompt_tokens_details")
        if isinstance(details, dict):
            cached = _count(cast(dict[str, Any], details), "cached_tokens")
        known = self.usage
        prompt = _count(told, "prompt_tokens")
        if "input_tokens" in told:
            prompt = _count(told, "input_tokens") + cached + written
        made = _count(told, "completion_tokens") or _count(told, "output_tokens")
        self._told = self._told or bool(made)
        self.usage = Usage(
            prompt_tokens=prompt or known.prompt_tokens,
            completion_tokens=made or known.completion_tokens,
            cached_tokens=min(cached, prompt) or known.cached_tokens,
            reasoning_tokens=_reasoning(told) or known.reasoning_tokens,
        )


def data_of(line: bytes) -> bytes:
    """Return the data of a line of a stream; nothing where it has none."""
    return line[5:].strip() if line.startswith(b"data:") else b""


def objects_in(value: object) -> list[dict[str, Any]]:
    """Return the objects in a list; none where it is no list."""
    found = cast(list[Any], value) if isinstance(value, list) else []
    return [one for one in found if isinstance(one, dict)]


def _reasoning(usage: dict[str, Any]) -> int:
    details = usage.get("completion_tokens_details")
    if not isinstance(details, dict):
        return 0
    return _count(cast(dict[str, Any], details), "reasoning_tokens")


def _says(choice: dict[str, Any]) -> bool:
    """Return whether a choice of an event has a piece of an answer."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return False
    return any(value for name, value in cast(dict[str, Any], delta).items() if name != "role")


def _count(told: dict[str, Any], name: str) -> int:
    value = told.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
