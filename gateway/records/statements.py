"""An SQL statement with its values, which pure modules return and the records thread runs. Also the
error of a statement that cannot be run, and the clock for the age of records.

Rows have wall-clock times, so their age needs a wall clock. But a wall clock that jumps far ahead
must not make all records old enough to be deleted. So the table `age_clock` has a slow clock. It
moves towards the wall clock, forwards or backwards, at most `RATE` times as fast as time passes
while the node runs. The age of a row is computed with the earlier of the two clocks. After a time
in which the node was off, the slow clock catches up at the same rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bus.wire.errors import ShoalError

RATE = 4.0
"""With this rate, the slow clock keeps up on a node that runs only six hours a day."""
MOST_S = 120.0
"""At most this much time counts between two updates, because a longer gap means that the node was
off."""

AGE_NOW = "(SELECT min({now}, coalesce(now_s, {now})) FROM age_clock)"
"""SQL expression for the current time, from which the ages of rows are computed; `{now}` is the
parameter with the wall clock."""


@dataclass(frozen=True, slots=True)
class Statement:
    """An SQL statement and its values: a sequence for question marks, or a mapping for named
    parameters."""

    text: str
    values: Sequence[Any] | Mapping[str, Any] = ()


class RecordsUnavailable(ShoalError):
    """The records cannot be read or written now; retrying may help."""


def age_followed(wall_s: float, monotonic_s: float) -> Statement:
    """Return the statement that moves the slow clock towards the wall clock. All processes of a
    node pass the machine's monotonic clock, so time is counted only once. The first update after a
    restart of the machine counts no time, because the monotonic clock began anew."""
    passed = f"min({MOST_S}, max(0.0, :at - noted_at))"
    step = f"{RATE} * {passed}"
    return Statement(
        f"UPDATE age_clock SET now_s = coalesce(max(now_s - {step}, min(now_s + {step}, :wall)), "
        "(SELECT min(:wall, max(ended_at_s)) FROM request), :wall), noted_at = :at",
        {"wall": wall_s, "at": monotonic_s},
    )
