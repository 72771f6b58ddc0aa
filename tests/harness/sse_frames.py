"""The reader's side of server-sent events: frames, whatever pieces the network made of them."""

from __future__ import annotations

from dataclasses import dataclass


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
