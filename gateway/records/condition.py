"""Talks to the log: how the records of a node are, as one HTTP process finds them; each change is
said once, and what is amiss is told for as long as it is.
"""

from __future__ import annotations

from bus.process.logs import Log

CLOCK_SLACK_S = 300.0


class RecordsCondition:
    """Whether the file can be written, and whether what is kept is of a time to come."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._why = ""
        self._ahead_s = 0.0

    @property
    def is_ailing(self) -> bool:
        """Return whether the file could not be written, the last time."""
        return bool(self._why)

    @property
    def problems(self) -> list[str]:
        """Return what people are to know of the file as it is now; none where all is well."""
        found: list[str] = []
        if why := self._why:
            text = "cannot write records, so answers are not stored and jobs wait"
            found.append(f"{text}: {why}; shoal keeps retrying")
        if ahead_s := self._ahead_s:
            text = "the clock was set back, or was ahead: records are dated up to"
            found.append(f"{text} {ahead_s:.0f} s in the future, and are deleted that much later")
        return found

    def failed(self, why: str) -> None:
        """Note that the file could not be written."""
        if not self._why:
            self._log.critical(
                "cannot write records; requests wait in memory to be logged, and answers are "
                "not stored",
                why=why,
            )
        self._why = why or "without a reason"

    def worked(self, not_logged: int) -> None:
        """Note that the file was written; so many requests found no room in memory until now."""
        if self._why:
            self._why = ""
            self._log.info("writing records again", not_logged=not_logged)

    def latest(self, ahead_s: float) -> None:
        """Note by how many seconds the latest that is logged is ahead of the clock."""
        is_ahead = ahead_s > CLOCK_SLACK_S
        if is_ahead and not self._ahead_s:
            self._log.warning(
                "the clock was set back, or was ahead: some logged requests end in the future",
                seconds=round(ahead_s),
            )
        self._ahead_s = ahead_s if is_ahead else 0.0
