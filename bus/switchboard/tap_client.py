"""Talks to the tap, the switchboard's socket at which an operator watches the messages of both
planes.

`listen` yields the messages that match a shell-style pattern, decoded. A reader of the tap never
slows other readers: if it lags, the switchboard drops its messages.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from bus.links.transport import Link
from bus.process.endpoints import Endpoints
from bus.wire.codec import decode
from bus.wire.errors import BadMessage


@dataclass(frozen=True, slots=True)
class Tapped:
    """One message from the tap. `fields`: the message as plain data; `error`: why it can't be
    decoded."""

    topic: str
    node: str
    process: str
    boot: str
    seq: int
    fields: dict[str, Any]
    payload: bytes
    error: str | None = None


def literal_prefix(pattern: str) -> str:
    """Return the common prefix of all topics that match the pattern, for the subscription."""
    return re.split(r"[*?[]", pattern, maxsplit=1)[0]


def listen(
    endpoints: Endpoints, pattern: str, *, patience_s: float | None = None
) -> Generator[Tapped | None]:
    """Yield messages whose topic matches `pattern`, and None after each `patience_s` without a
    message (never if that is None). Ends when the caller closes the iterator."""
    link = Link("sub", high_water=1_000)
    try:
        link.connect(endpoints.tap)
        link.subscribe(literal_prefix(pattern))
        while True:
            if not link.socket.poll(None if patience_s is None else int(patience_s * 1000)):
                yield None
                continue
            frames = link.receive()
            if frames is None or len(frames) != 2:
                continue
            topic = frames[0].decode(errors="replace")
            if fnmatchcase(topic, pattern) or topic == pattern:
                yield decoded(topic, frames[1])
    finally:
        link.close()


def decoded(topic: str, payload: bytes) -> Tapped:
    """Return a decoded payload, or its error."""
    try:
        envelope = decode(payload)
    except BadMessage as error:
        return Tapped(topic, "", "", "", 0, {}, payload, str(error))
    return Tapped(
        topic,
        envelope.node,
        envelope.process,
        envelope.boot,
        envelope.seq,
        envelope.message.model_dump(mode="json"),
        payload,
    )
