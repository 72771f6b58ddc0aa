"""Sends the tokens of one step of llama-server together.

llama-server sends one event for each row of a step, one event after the other. A message to the
gateways for each of them would cost the runner and the gateway more than the token itself.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial
from typing import Generic, TypeVar

Row = TypeVar("Row")
GATHER_S = 0.002
"""The longest time that the first event of a step waits for the others."""


class StepGatherer(Generic[Row]):
    """Calls `send` once all rows that took part in the last step have sent an event, or after
    `GATHER_S`. `later` runs a callback after some seconds."""

    def __init__(
        self, send: Callable[[], None], later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        self._send = send
        self._later = later
        self._came: set[Row] = set()
        self._expected: set[Row] = set()
        self._step = 0
        self._waits = False

    def add(self, row: Row, running: Set[Row]) -> None:
        """Process an event of a row. `running` are the rows that may still send events."""
        self._came.add(row)
        if self._came >= self._expected & running:
            self._end_step()
        elif not self._waits:
            self._waits = True
            self._later(GATHER_S, partial(self._overdue, self._step))

    def _overdue(self, step: int) -> None:
        if step == self._step:
            self._end_step()

    def _end_step(self) -> None:
        self._step += 1
        self._waits, self._expected, self._came = False, self._came, set()
        self._send()
