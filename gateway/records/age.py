"""The clock by which kept rows grow old: a wall clock that no jump can carry far.

Pure: SQL and its values. Rows have wall-clock stamps, so their age needs a wall clock; but one
that jumps 400 days ahead must not delete all that is kept. The file's own clock (`age_clock`)
follows the wall at most `RATE` times as fast as time passes while the node runs, in either
direction. Rows are deleted by the earlier of the two clocks. Time while the node was off is caught
up at that rate.
"""

from __future__ import annotations

from gateway.records.statements import Statement

RATE = 4.0
"""So a node that runs six hours a day keeps up."""
MOST_S = 120.0
"""The most that counts as passed between two notes: while the node was off there were none."""

NOW = "(SELECT min({now}, coalesce(now_s, {now})) FROM age_clock)"
"""SQL for the time by which rows are old; `{now}` is the parameter with the wall clock."""


def followed(wall_s: float, monotonic_s: float) -> Statement:
    """Return what has the file's clock follow the wall clock. All processes of a node note the same
    monotonic clock, so that time counts once; after a restart of the machine nothing counts."""
    passed = f"min({MOST_S}, max(0.0, :at - noted_at))"
    step = f"{RATE} * {passed}"
    return Statement(
        f"UPDATE age_clock SET now_s = coalesce(max(now_s - {step}, min(now_s + {step}, :wall)), "
        "(SELECT min(:wall, max(ended_at_s)) FROM request), :wall), noted_at = :at",
        {"wall": wall_s, "at": monotonic_s},
    )
