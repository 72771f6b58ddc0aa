"""Talks to the log: knows whether one HTTP process can write the records of its node.

The beginning and the end of each problem are logged once. `problems` lists a problem as long as it
lasts.
"""

from __future__ import annotations

from bus.process.logs import Log

CLOCK_SLACK_S = 300.0


class RecordsCondition:
    """Whether the file can be written, and whether its records are dated in the future."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._why = ""
        self._ahead_s = 0.0

    @property
    def is_ailing(self) -> bool:
        """Return whether the last write failed."""
        return bool(self._why)

    @property
    def problems(self) -> list[str]:
        """Return the current problems as messages to users. The list is empty if the file is
        healthy."""
        problems: list[str] = []
        if why := self._why:
            text = "cannot write records, so answers are not stored and jobs wait"
            problems.append(f"{text}: {why}; shoal keeps retrying")
        if ahead_s := self._ahead_s:
            text = "the clock was set back, or was ahead: records are dated up to"
            problems.append(
                f"{text} {ahead_s:.0f} s in the future, and are deleted that much later"
            )
        return problems

    def failed(self, why: str) -> None:
        """Record that a write failed."""
        if not self._why:
            self._log.critical(
                "cannot write records; requests wait in memory to be logged, and answers are "
                "not stored",
                why=why,
            )
        self._why = why or "without a reason"

    def worked(self, not_logged: int) -> None:
        """Record that a write succeeded. `not_logged` is the number of requests dropped so far,
        because too many rows waited."""
        if self._why:
            self._why = ""
            self._log.info("writing records again", not_logged=not_logged)

    def latest(self, ahead_s: float) -> None:
        """Record by how many seconds the latest log row is ahead of the clock."""
        is_ahead = ahead_s > CLOCK_SLACK_S
        if is_ahead and not self._ahead_s:
            self._log.warning(
                "the clock was set back, or was ahead: some logged requests end in the future",
                seconds=round(ahead_s),
            )
        self._ahead_s = ahead_s if is_ahead else 0.0
