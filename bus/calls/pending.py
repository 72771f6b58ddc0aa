"""One call that waits for its reply: what to send, and the pieces that have arrived.

Pure: time arrives as `now`. The caller sends `message` again every `REPEAT_S` until the reply is
complete, the call is refused, or `is_late`.
"""

from __future__ import annotations

from bus.wire.messages.gateways import CALL_REPLY_BYTES, CallAnswered, CallAsked, CallRefusal

ANSWER_S = 5.0
"""Longest wait for the first byte of a reply, and for each further piece."""
WHOLE_S = 30.0
REPEAT_S = 0.4
ATTEMPTS_EACH = 4
"""How often one process of a node is asked before the next process is asked."""


class PendingCall:
    """A call whose reply is not complete yet. `whole_s` limits the whole call. If `is_slow`, the
    wait for a piece is extended while the node reports that it is computing the reply."""

    def __init__(self, message: CallAsked, now: float, whole_s: float, *, is_slow: bool) -> None:
        self.reply: bytes | None = None
        self.refusal: CallRefusal | None = None
        self.waited_s = 0.0
        """The limit that has passed, once `is_late`."""
        self._message = message
        self._whole_s = whole_s
        self._end_at = now + whole_s
        self._is_slow = is_slow
        self._patient_until = now + ANSWER_S
        self._is_computed = False
        self._attempt = 0
        self._edition = ""
        self._content = bytearray()

    @property
    def message(self) -> CallAsked:
        """Return the message that asks for the next piece."""
        return self._message.model_copy(
            update={"offset": len(self._content), "attempt": self._attempt}
        )

    @property
    def has_ended(self) -> bool:
        """Return whether the reply is complete or refused."""
        return self.reply is not None or self.refusal is not None

    def take(self, answer: CallAnswered, now: float) -> bool:
        """Add an answer. Return True if the caller should continue at once: ask for the next piece,
        or end. False: it should keep waiting."""
        if answer.refused is not None:
            self.refusal = answer.refused
            return True
        if not answer.edition:
            self._is_computed = True
            return False
        if answer.edition != self._edition:
            # another process computes the reply now, and its bytes may differ
            self._edition = answer.edition
            self._content.clear()
            if answer.offset:
                return True
        if answer.offset != len(self._content):
            return False
        self._content += answer.content
        self._patient_until = now + ANSWER_S
        if len(self._content) >= min(answer.total_bytes, CALL_REPLY_BYTES):
            self.reply = bytes(self._content)
        return True

    def repeat(self, now: float) -> None:
        """Record that no piece arrived within `REPEAT_S` after the last message. The next message
        counts as another attempt, unless the node reported that it is computing the reply."""
        if not self._is_computed:
            self._attempt += 1
        elif self._is_slow:
            self._patient_until = now + ANSWER_S
        self._is_computed = False

    def is_late(self, now: float) -> bool:
        """Return whether the call or the wait for its next piece has taken too long; `waited_s` is
        then the limit that has passed."""
        if now >= self._end_at:
            self.waited_s = self._whole_s
        elif now >= self._patient_until:
            self.waited_s = ANSWER_S
        return self.waited_s > 0
