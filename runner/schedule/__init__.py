"""Which rows run next: the `Scheduler`, and what it decides with.

Pure: time arrives as `now`. Knows tokens and bytes, never an array.
"""

from runner.schedule.intake import Arrival
from runner.schedule.rows import (
    RowCost,
    RowEvent,
    RowFailed,
    RowFinished,
    RowKey,
    RowPrefilled,
    RowScored,
    RowStarted,
    RowToken,
)
from runner.schedule.scheduler import STEPS_AHEAD, Placed, Scheduler, SchedulerLoad
from runner.schedule.table import ScheduleSettings

__all__ = [
    "STEPS_AHEAD",
    "Arrival",
    "Placed",
    "RowCost",
    "RowEvent",
    "RowFailed",
    "RowFinished",
    "RowKey",
    "RowPrefilled",
    "RowScored",
    "RowStarted",
    "RowToken",
    "ScheduleSettings",
    "Scheduler",
    "SchedulerLoad",
]
