"""Parse a process's log lines and format them for people.

Pure. Our own lines are JSON (`bus.process.logs`). Other output of a process or a library is passed
on unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from gateway.cli.output.printable import printable_line

SHOWN_APART = ("time", "level", "message", "node", "process")
STYLES: Mapping[str, str] = {
    "debug": "dim",
    "info": "",
    "warning": "yellow",
    "error": "red",
    "critical": "bold red",
}


@dataclass(frozen=True, slots=True)
class LogLine:
    """One parsed line. `at` is seconds since the epoch; None if the line has no time."""

    at: float | None
    level: str
    process: str
    message: str
    fields: Mapping[str, Any]

    def text(self) -> str:
        """Return `12:03:59.120 warning  worker       message key=value`, in local time."""
        if self.at is None:
            return f"{'':12} {'':8} {self.process:12} {self.message}"
        # local time, because people compare a log with their own clock
        clock = datetime.fromtimestamp(self.at, UTC).astimezone()
        extra = "".join(f" {key}={value}" for key, value in self.fields.items())
        stamp = clock.strftime("%H:%M:%S.") + f"{clock.microsecond // 1000:03d}"
        return printable_line(f"{stamp} {self.level:8} {self.process:12} {self.message}{extra}")


def parse_line(line: str, process: str) -> LogLine:
    """Parse a line of `process`'s log file."""
    try:
        record = json.loads(line) if line.startswith("{") else None
    except ValueError:
        record = None
    if not isinstance(record, dict) or "message" not in record:
        return LogLine(None, "info", process, line, {})
    fields = cast(dict[str, Any], record)
    return LogLine(
        at=_seconds(fields.get("time")),
        level=str(fields.get("level", "info")),
        process=str(fields.get("process") or process),
        message=str(fields["message"]),
        fields={key: value for key, value in fields.items() if key not in SHOWN_APART},
    )


def _seconds(moment: object) -> float | None:
    try:
        return datetime.fromisoformat(moment).timestamp() if isinstance(moment, str) else None
    except ValueError:
        return None


def tail(text: str, process: str, lines: int) -> str:
    """Return the last `lines` lines of a log, readable. Consecutive lines with the same message
    count as one."""
    shown: list[list[Any]] = []
    for line in filter(str.strip, text.splitlines()):
        parsed = parse_line(line, process)
        if shown and shown[-1][0].message == parsed.message:
            shown[-1] = [parsed, shown[-1][1] + 1]
        else:
            shown.append([parsed, 1])
    return "\n".join(
        line.text() + (f"  ({times} times)" if times > 1 else "") for line, times in shown[-lines:]
    )
