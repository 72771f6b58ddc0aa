"""Server-sent events: the bytes of each event in a stream.

Pure. Every frame is a complete event. A payload is JSON on one line, so the only line breaks are
the frame's own.
"""

from __future__ import annotations

CONTENT_TYPE = "text/event-stream"
HEADERS: tuple[tuple[str, str], ...] = (
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),
)
"""Headers of a stream. They keep proxies from buffering it."""

LAST = "[DONE]"
"""The data of the event that ends an OpenAI stream."""
DONE = f"data: {LAST}\n\n".encode()
KEEP_ALIVE = b": keep-alive\n\n"


def frame(payload: bytes) -> bytes:
    """Return one unnamed event. `payload` must hold no line break."""
    return b"data: " + payload + b"\n\n"


def named_frame(event: str, payload: bytes) -> bytes:
    """Return one event with its name. Neither may hold a line break."""
    return b"event: " + event.encode() + b"\ndata: " + payload + b"\n\n"


def placed_frame(place: str, event: str, payload: bytes) -> bytes:
    """Return one event with its name and its id (`place`); a client can resume the stream after
    that id. Neither may hold a line break."""
    return b"id: " + place.encode() + b"\n" + named_frame(event, payload)


def comment(text: str) -> bytes:
    """Return a comment line, which clients ignore. It keeps the connection open and shows progress
    to a person."""
    return b": " + " ".join(text.split()).encode() + b"\n\n"
