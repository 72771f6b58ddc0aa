"""What every stream of OpenAI's older endpoints has in common: how it ends.

Pure. Usage comes only when asked, last, with `choices: []`; every stream ends with `[DONE]`, and
after its end there is nothing more. `timing` is in the last chunk: the usage's, else the one that
ends the last choice, which is held back for that until its request has ended. A chunk without
choices that was not asked for would break clients.
"""

from __future__ import annotations

from bus.wire.ids import RequestId
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import ChoiceEnd, Failed, Finished, PrefillProgress
from gateway.dialects import faults, sse
from gateway.dialects.collect import total
from gateway.dialects.dialect import Parsed
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFault
from gateway.dialects.openai.shapes import (
    answer_head,
    error_frames,
    timing_object,
    whole_answer,
)

_CHUNK_TAIL = b"}\n\n"


class OpenAIStream:
    """The answer to one or more requests, whose chunks are called `kind`."""

    def __init__(self, parsed: Parsed, kind: str) -> None:
        self._parsed = parsed
        self._kind = kind
        self._usages: dict[RequestId, Usage] = {}
        self._closed = False
        self._open_choices = {
            (one.request_id, choice) for one in parsed.requests for choice in range(one.n)
        }
        self._last_chunk = b""

    @property
    def ended(self) -> bool:
        """Return whether every request's terminal has been rendered, or an error."""
        return self._closed or len(self._usages) == len(self._parsed.requests)

    def comment(self, text: str) -> bytes:
        """Return a comment line; empty once the stream has ended."""
        return b"" if self.ended else sse.comment(text)

    def error(self, fault: HttpFault) -> bytes:
        """Return the error and `[DONE]`; other requests' answers end with it."""
        if self._closed:
            return b""
        self._closed = True
        return self._ended_chunk() + error_frames(fault)

    def close(self) -> bytes:
        """Return the usage when it was asked for, then `[DONE]`."""
        if self._closed:
            return b""
        self._closed = True
        if self._parsed.include_usage and self._usages:
            usage = total(list(self._usages.values()))
            return sse.frame(whole_answer(self._parsed, self._kind, (), usage)) + sse.DONE
        return sse.DONE

    def _start(self) -> bytes:
        """Return a chunk up to its choices, for these to follow."""
        return sse.frame(json_bytes(answer_head(self._parsed, self._kind)))[: -len(_CHUNK_TAIL)]

    def _end_of_choice(self, end: ChoiceEnd, chunk: bytes) -> bytes:
        """Return the chunk that ends a choice, which is given up to the end of its choices; nothing
        yet where it is the last chunk of all."""
        self._open_choices.discard((end.request_id, end.choice))
        if self._open_choices or self._parsed.include_usage:
            return chunk + _CHUNK_TAIL
        before, self._last_chunk = self._ended_chunk(), chunk
        return before

    def _ended_chunk(self, members: bytes = b"") -> bytes:
        """Return the chunk that was held back, with more members; nothing where there is none."""
        chunk, self._last_chunk = self._last_chunk, b""
        return chunk + members + _CHUNK_TAIL if chunk else b""

    def _of_request(self, entry: PrefillProgress | Finished | Failed) -> bytes:
        """Return the bytes of an entry that is not of one choice; empty where it shows nothing."""
        match entry:
            case PrefillProgress():
                return sse.comment(f"prefill {entry.done}/{entry.total}")
            case Finished():
                self._usages[entry.request_id] = entry.usage
                timing = timing_object(total(list(self._usages.values())))
                return self._ended_chunk(b',"timing":' + json_bytes(timing)) if self.ended else b""
            case Failed():
                return self.error(faults.of_failed(entry))
