"""Server-sent events: how bytes are framed for a browser's or a client's event reader.

Pure. A frame is complete or not sent: payloads are JSON on one line, so a frame never holds
a line break but its own.
"""

from __future__ import annotations

CONTENT_TYPE = "text/event-stream"
HEADERS: tuple[tuple[str, str], ...] = (
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),
)
"""What keeps proxies from holding a stream back."""

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
    """Return one event with its name and its id, from which a reader goes on. None may hold a line
    break."""
    return b"id: " + place.encode() + b"\n" + named_frame(event, payload)


def comment(text: str) -> bytes:
    """Return a line that readers skip: keeps a connection warm, shows progress to a human."""
    return b": " + " ".join(text.split()).encode() + b"\n\n"
