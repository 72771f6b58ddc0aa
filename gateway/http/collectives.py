"""Computes the status of a collective test (an all-reduce between nodes, for example) from the
cluster's state and the readings of the ranks.

Pure. A test is removed from the state when it ends. Its readings are kept for ten minutes, so that
the result can still be reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from typing_extensions import TypedDict

from bus.hardware.collective_test import CollectiveReport, culprit, report_of
from bus.wire.instances import Instance
from bus.wire.messages.collectives import CollectiveReading
from gateway.dialects.encode import Dump

ENDED = "the test was cancelled before it finished"


class CollectiveError(TypedDict):
    """Why a test failed; `rank` and `node` are null unless one rank is at fault."""

    code: Literal["ended", "rank_lost"]
    message: str
    rank: int | None
    node: str | None


class CollectiveAnswer(TypedDict):
    """The status of a collective test; `report` covers the readings so far."""

    instance: str
    status: Literal["running", "done", "failed"]
    phase: str
    done: int
    rounds: int
    passed: bool
    report: Annotated[dict[str, Any], Dump(CollectiveReport)] | None
    error: CollectiveError | None


def standing_of(
    name: str, instance: Instance | None, readings: Sequence[CollectiveReading]
) -> CollectiveAnswer | None:
    """Return the status of a test; None if no test has this name. The status of a failed test has
    an `error`."""
    if instance is not None and instance.test is None:
        return None
    if instance is None and not readings:
        return None
    report = report_of(readings) if readings else None
    size = len(instance.shards) if instance is not None else readings[0].size
    done = len(readings) == size and all(reading.phase == "done" for reading in readings)
    last = min(readings, key=lambda reading: reading.done, default=None)
    answer: CollectiveAnswer = {
        "instance": name,
        "status": "done" if done else "running",
        "phase": "forming" if last is None or len(readings) < size else last.phase,
        "done": 0 if last is None else last.done,
        "rounds": 0 if last is None else last.rounds,
        "passed": report is not None and report.passed,
        "report": None if report is None else report.model_dump(mode="json"),
        "error": None,
    }
    if done:
        return answer
    if instance is not None and instance.status in ("placed", "ready"):
        return answer
    why = ENDED if instance is None or instance.status == "draining" else instance.why
    return {**answer, "status": "failed", "error": _error(why)}


def _error(why: str) -> CollectiveError:
    named = culprit(why)
    if named is None:
        return {"code": "ended", "message": why, "rank": None, "node": None}
    rank, node = named
    return {"code": "rank_lost", "message": why, "rank": rank, "node": node}
