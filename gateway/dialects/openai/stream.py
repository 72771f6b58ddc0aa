"""What every stream of OpenAI's older endpoints has in common: how it ends.

Pure. Usage comes only when asked, last, with `choices: []`; every stream ends with `[DONE]`, and
after its end there is nothing more.
"""

from __future__ import annotations

from bus.wire.ids import RequestId
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import Failed, Finished, PrefillProgress
from gateway.dialects import faults, sse
from gateway.dialects.collect import total
from gateway.dialects.dialect import Parsed
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFault
from gateway.dialects.openai.shapes import answer_head, error_frames, whole_answer


class OpenAIStream:
    """The answer to one or more requests, whose chunks are called `kind`."""

    def __init__(self, parsed: Parsed, kind: str) -> None:
        self._parsed = parsed
        self._kind = kind
        self._usages: dict[RequestId, Usage] = {}
        self._closed = False

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
        return error_frames(fault)

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
        return sse.frame(json_bytes(answer_head(self._parsed, self._kind)))[: -len(b"}\n\n")]

    def _of_request(self, entry: PrefillProgress | Finished | Failed) -> bytes:
        """Return the bytes of an entry that is not of one choice; empty where it shows nothing."""
        match entry:
            case PrefillProgress():
                return sse.comment(f"prefill {entry.done}/{entry.total}")
            case Finished():
                self._usages[entry.request_id] = entry.usage
                return b""
            case Failed():
                return self.error(faults.of_failed(entry))
