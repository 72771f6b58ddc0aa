"""Credit: how many entries a runner may still send for each choice of a request.

Pure. An entry with text, prompt tokens or a part of a tool call takes one credit; other entries are
free. When half a window of entries was sent to the client, the runner gets credit for as many new
ones. So if a client reads slowly, at most one window of entries is held in memory, and other
clients are not slowed down. (HTTP/2 and ZeroMQ's guide describe the same flow control.)
"""

from __future__ import annotations

from bus.wire.messages.tokens import (
    CREDIT_WINDOW,
    ChoiceEnd,
    Entry,
    Failed,
    Finished,
    PrefillProgress,
    TokenDelta,
)

TOP_UP = CREDIT_WINDOW // 2


class CreditBook:
    """The credit of one request's choices.

    Invariant for each choice: 0 <= left <= window, and granted = received + left.
    """

    def __init__(self, choices: int) -> None:
        self._left = [CREDIT_WINDOW] * choices
        self._sent = [0] * choices
        self._ended = [False] * choices
        self.is_used = False
        """Whether a part of the answer has come."""

    def takes(self, entry: Entry) -> bool:
        """Count an entry. Return False if its choice does not exist or has no credit left."""
        is_delta = type(entry) is TokenDelta  # the hot path
        if not is_delta and isinstance(entry, Finished | Failed | PrefillProgress):
            return True
        choice = entry.choice
        if not 0 <= choice < len(self._left):
            return False
        self.is_used = True
        if not is_delta and isinstance(entry, ChoiceEnd):
            self._ended[choice] = True
            return True
        self._left[choice] -= 1
        return self._left[choice] >= 0

    def sent(self, choice: int, count: int) -> int:
        """Count entries that were sent to the client. Return the credit to grant now: 0 until half
        a window was sent."""
        self._sent[choice] += count
        grant = self._sent[choice]
        if grant < TOP_UP or self._ended[choice]:
            return 0
        self._sent[choice] = 0
        self._left[choice] += grant
        return grant

    @property
    def may_move(self) -> bool:
        """Return whether the runner could send an entry now: a choice has credit, or only the
        terminal entry is missing."""
        return all(self._ended) or any(
            left > 0 and not ended for left, ended in zip(self._left, self._ended, strict=True)
        )
