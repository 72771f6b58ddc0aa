"""Credit: how many entries a runner may still send, per choice of a request.

Pure. The unit is one text, prompt or tool-call entry; other entries are free. What was *sent to the
client* is granted again, half a window at a time, so that a slow reader holds at most a
window here and slows only itself. (Flow control as in HTTP/2 and ZeroMQ's guide.)
"""

from __future__ import annotations

from bus.wire.messages.tokens import CREDIT_WINDOW

TOP_UP = CREDIT_WINDOW // 2


class CreditBook:
    """The credit of one request's choices.

    Invariant: 0 <= left <= window; granted = received + left for each choice.
    """

    def __init__(self, choices: int) -> None:
        self._left = [CREDIT_WINDOW] * choices
        self._sent = [0] * choices
        self._ended = [False] * choices

    def received(self, choice: int) -> bool:
        """Count an entry of this choice; return False when it had no credit left for it."""
        self._left[choice] -= 1
        return self._left[choice] >= 0

    def ended(self, choice: int) -> None:
        """Note that nothing more will come of this choice."""
        self._ended[choice] = True

    def sent(self, choice: int, count: int) -> int:
        """Count entries that left for the client; return what to grant now, often 0."""
        self._sent[choice] += count
        grant = self._sent[choice]
        if grant < TOP_UP or self._ended[choice]:
            return 0
        self._sent[choice] = 0
        self._left[choice] += grant
        return grant

    @property
    def may_move(self) -> bool:
        """Return whether the runner could send: a choice has credit, or the terminal is due."""
        return all(self._ended) or any(
            left > 0 and not ended for left, ended in zip(self._left, self._ended, strict=True)
        )
