"""Server-sent events: how bytes are framed for a browser's or a client's event reader.

Pure. A frame is complete or not sent: payloads are JSON on one line, so a frame never holds
a line break but its own. `FrameReader` is the other side: it reassembles frames whatever
pieces the network made of them.
"""

from __future__ import annotations

from dataclasses import dataclass

CONTENT_TYPE = "text/event-stream"
HEADERS: tuple[tuple[str, str], ...] = (
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),
)
"""What keeps proxies from holding a stream back."""

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


def frame(payload: bytes) -> bytes:
    """One unnamed event. `payload` must hold no line break."""
    return b"data: " + payload + b"\n\n"


def comment(text: str) -> bytes:
    """A line that readers skip: keeps a connection warm, shows progress to a human."""
    return b": " + " ".join(text.split()).encode() + b"\n\n"


@dataclass(frozen=True, slots=True)
class Frame:
    """One event as its reader sees it. `data` lines are joined by line feeds."""

    data: str
    event: str | None = None


class FrameReader:
    """Turns pieces of a stream into frames, in order. Comments are dropped.

    Line ends may be LF, CRLF or CR. An unfinished frame stays inside until its blank line
    comes; what never ends is never given out.
    """

    def __init__(self) -> None:
        self._pending = b""
        self._data: list[str] = []
        self._event: str | None = None

    def feed(self, piece: bytes) -> list[Frame]:
        """The frames that `piece` completes."""
        pending = self._pending + piece
        # a CR at the very end may be half of a CRLF: wait for the next piece
        held = b"\r" if pending.endswith(b"\r") else b""
        whole = pending[: len(pending) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = whole.split(b"\n")
        self._pending = rest + held
        return [made for line in lines if (made := self._take(line.decode())) is not None]

    def _take(self, line: str) -> Frame | None:
        if not line:
            made = Frame("\n".join(self._data), self._event) if self._data else None
            self._data, self._event = [], None
            return made
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        return None
