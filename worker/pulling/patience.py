"""How long a pull waits after a failure, and when it gives up.

Pure: time arrives as `now`. Pauses double while nothing arrives. A pause that the hub requests is
observed, up to a limit, and does not count as silence. Any arrival resets the failures.
"""

from __future__ import annotations

from dataclasses import dataclass

from worker.pulling.listing import PullFailed


@dataclass(frozen=True, slots=True)
class PullTiming:
    """The limits of a pull, in seconds. A pull gives up after a silence of `silence_s`, or of
    `unheard_s` if the hub has never answered. The first pause after a failure is `pause_s`; later
    ones double up to `longest_s`. A pull fails if the hub requests a pause above `asked_s`, or
    refuses more than `busy` times because of its rate limit before bytes arrive again."""

    silence_s: float = 90.0
    unheard_s: float = 15.0
    pause_s: float = 0.5
    longest_s: float = 20.0
    asked_s: float = 300.0
    busy: int = 8


USUAL_TIMING = PullTiming()


class Patience:
    """Counts the failures of a pull since bytes last arrived."""

    def __init__(self, now: float, timing: PullTiming = USUAL_TIMING) -> None:
        self._timing = timing
        self._silent_since_at = now
        self._is_heard = False
        self._failures = 0
        self._busy = 0
        self.paused_until_at = now
        self.last: PullFailed | None = None

    def came(self, now: float) -> None:
        """Record that bytes arrived, which resets the failures."""
        self._silent_since_at = max(now, self._silent_since_at)
        self._is_heard = True
        self._failures = self._busy = 0
        self.last = None

    def failed(self, failure: PullFailed, now: float) -> PullFailed | None:
        """Record a failure: pause, or return the pull's final failure."""
        timing = self._timing
        if not failure.again:
            return failure
        self.last = failure
        self._is_heard = self._is_heard or failure.reason != "unreachable"
        self._failures += 1
        self._busy += failure.reason == "rate_limited"
        asked_s = failure.retry_after_s
        if self._busy > timing.busy or (asked_s or 0.0) > timing.asked_s:
            return failure
        pause_s = min(timing.longest_s, timing.pause_s * 2.0 ** (min(self._failures, 20) - 1))
        if asked_s is not None:
            pause_s = max(pause_s, asked_s)
            self._silent_since_at = max(self._silent_since_at, now + asked_s)
        self.paused_until_at = max(self.paused_until_at, now + pause_s)
        return self.judge(now)

    def judge(self, now: float) -> PullFailed | None:
        """Return the pull's final failure if nothing arrived for too long."""
        timing, silent_s = self._timing, now - self._silent_since_at
        borne_s = timing.silence_s if self._is_heard else min(timing.unheard_s, timing.silence_s)
        if silent_s < borne_s:
            return None
        if self.last is not None:
            return self.last
        text = (
            f"the hub sent nothing for {silent_s:.0f} s; the files received so far are "
            "kept; pull again to resume"
        )
        return PullFailed("unreachable", text)
