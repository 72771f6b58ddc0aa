"""How a store and its askers write to each other: envelopes of one speaker, numbered.

Pure. Not shared between threads.
"""

from __future__ import annotations

from bus.client import Speaker
from bus.wire.codec import Envelope, encode
from bus.wire.messages.wire import Message


class Voice:
    """Messages of one speaker as frames."""

    def __init__(self, speaker: Speaker) -> None:
        self._speaker = speaker
        self._seq = 0

    def say(self, message: Message) -> bytes:
        """The message in the speaker's next envelope, as one frame."""
        self._seq += 1
        speaker = self._speaker
        envelope = Envelope(speaker.node, speaker.process, speaker.boot, self._seq, message)
        return encode(envelope)
