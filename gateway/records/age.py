"""The clock that determines the age of records: a wall clock that no jump can carry far.

Pure: SQL and its values. Rows have wall-clock stamps, so their age needs a wall clock. But a clock
that jumps 400 days ahead must not delete all records. The file's own clock (`age_clock`) follows
the wall clock, in either direction, at most `RATE` times as fast as time passes while the node
runs. Rows are deleted by the earlier of the two clocks. Time while the node was off is caught up at
that rate.
"""

from __future__ import annotations

from gateway.records.statements import Statement

RATE = 4.0
"""At this rate a node that runs six hours a day keeps up."""
MOST_S = 120.0
"""Limit of the time counted between two updates: while the node was off there were none."""

NOW = "(SELECT min({now}, coalesce(now_s, {now})) FROM age_clock)"
"""SQL for the time that row ages are compared to; `{now}` is the parameter with the wall clock."""


def followed(wall_s: float, monotonic_s: float) -> Statement:
    """Return the statement that moves the file's clock towards the wall clock. All processes of a
    node pass the same monotonic clock, so that time counts once. After a restart of the machine no
    time counts."""
    passed = f"min({MOST_S}, max(0.0, :at - noted_at))"
    step = f"{RATE} * {passed}"
    return Statement(
        f"UPDATE age_clock SET now_s = coalesce(max(now_s - {step}, min(now_s + {step}, :wall)), "
        "(SELECT min(:wall, max(ended_at_s)) FROM request), :wall), noted_at = :at",
        {"wall": wall_s, "at": monotonic_s},
    )
