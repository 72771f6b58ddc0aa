"""The replies of one process to calls of other nodes, kept until all pieces are fetched.

Pure: time arrives as `now`. A process computes a reply once. It keeps the reply until `HELD_S`
after the last message that asks for a piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from bus.calls.pending import ATTEMPTS_EACH
from bus.wire.ids import NodeId
from bus.wire.messages.gateways import (
    CALL_PIECE_BYTES,
    CALL_REPLY_BYTES,
    CallAnswered,
    CallAsked,
    CallRefusal,
)

HELD_S = 10.0
HELD_REPLIES = 256
HELD_BYTES = 64 << 20
FULL = CallRefusal(
    message="too many calls are open", status=503, code="overloaded", retry_after_s=1.0
)


@dataclass(slots=True)
class HeldReply:
    """A reply that is stored while the caller fetches it piece by piece. `content` is None while
    the reply is being computed, and if it is refused."""

    edition: str
    asked_at: float
    content: bytes | None = None
    refused: CallRefusal | None = None

    @property
    def is_computed(self) -> bool:
        """Return whether the computation has ended."""
        return self.content is not None or self.refused is not None

    def end(self, content: bytes) -> None:
        """Store the computed reply; if it is too large, store a refusal instead."""
        if len(content) > CALL_REPLY_BYTES:
            size = f"{len(content)} bytes; the limit is {CALL_REPLY_BYTES}"
            self.refused = CallRefusal(message=f"the reply is too large: {size}")
        else:
            self.content = content

    def answer(self, message: CallAsked) -> CallAnswered:
        """Return the answer to a message: the piece that it asks for, the refusal, or the report
        that the reply is being computed."""
        if self.content is None or self.refused is not None:
            return CallAnswered(call_id=message.call_id, refused=self.refused)
        return CallAnswered(
            call_id=message.call_id,
            edition=self.edition,
            offset=message.offset,
            total_bytes=len(self.content),
            content=self.content[message.offset : message.offset + CALL_PIECE_BYTES],
        )


class HeldReplies:
    """The stored replies of one HTTP process. `number` is its number among the `processes` HTTP
    processes of the node."""

    def __init__(self, number: int, processes: int) -> None:
        self._number = number
        self._processes = processes
        self._held: dict[tuple[NodeId, str], HeldReply] = {}

    def is_due(self, message: CallAsked) -> bool:
        """Return whether this process has to answer this attempt of a call. The call's id selects
        the process that is asked first; after every `ATTEMPTS_EACH` attempts it is the next
        process's turn."""
        turn = crc32(message.call_id.encode()) + message.attempt // ATTEMPTS_EACH
        return turn % self._processes == self._number

    def find(self, asker: NodeId, call_id: str, now: float) -> HeldReply | None:
        """Return the stored reply of a call; None if this process has not begun to compute it."""
        held = self._held.get((asker, call_id))
        if held is not None:
            held.asked_at = now
        return held

    def begin(self, asker: NodeId, call_id: str, edition: str, now: float) -> HeldReply:
        """Return a new, empty reply for a call. If this process stores too many replies, the new
        reply is a refusal and is not stored."""
        held = HeldReply(edition, now)
        size_bytes = sum(len(reply.content or b"") for reply in self._held.values())
        if len(self._held) >= HELD_REPLIES or size_bytes >= HELD_BYTES:
            held.refused = FULL
        else:
            self._held[asker, call_id] = held
        return held

    def forget(self, now: float) -> None:
        """Drop the replies that no message asked for in the last `HELD_S`."""
        oldest_at = now - HELD_S
        for key, held in list(self._held.items()):
            if held.is_computed and held.asked_at < oldest_at:
                del self._held[key]
