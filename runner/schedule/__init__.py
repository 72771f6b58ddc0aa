"""Decides which rows run in the next step: the `Scheduler` and its parts. A row is one choice of
one request.

Pure: time arrives as `now`. It works on tokens and bytes, never on arrays.
"""

from runner.schedule.intake import Arrival
from runner.schedule.prefixes import DiskFigures
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
    "DiskFigures",
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
