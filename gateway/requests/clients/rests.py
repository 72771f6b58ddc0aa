"""Until when each client rests, and how many of its requests wait: here, and as the other HTTP
processes of the gateway last told.

Pure: `now` is the monotonic clock of the machine, which all its processes share. What two processes
take before they have heard of each other counts for neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bus.wire.tasks import ClientName

FRESH_S = 5.0
"""What a process told of requests that wait is believed for so long."""
MOST_RESTING = 1000
"""Clients that rest at a process at most; beyond these the one that began first is forgotten."""
RestRow = Sequence[Any]
"""A client as plain values: kind, name, until when it rests, and how many requests wait."""


class ClientRests:
    """The clients that rest or wait, of one gateway."""

    def __init__(self) -> None:
        self._until: dict[ClientName, float] = {}
        self._told: dict[int, tuple[float, dict[ClientName, tuple[float, int]]]] = {}

    def rest(self, client: ClientName, until: float) -> None:
        """Let a client rest until then, or as long as it does already."""
        self._until[client] = max(until, self._until.pop(client, until))
        if len(self._until) > MOST_RESTING:
            del self._until[next(iter(self._until))]

    def left_s(self, client: ClientName, now: float) -> float:
        """Return how long a client rests yet; 0 for one that does not."""
        told = (rows[client][0] for _, rows in self._told.values() if client in rows)
        return max(0.0, max((self._until.get(client, now), *told)) - now)

    def waiting_elsewhere(self, client: ClientName, now: float) -> int:
        """Return how many requests of a client wait at other processes."""
        fresh = (rows for at, rows in self._told.values() if now - at < FRESH_S)
        return sum(rows[client][1] for rows in fresh if client in rows)

    def clients(self) -> set[ClientName]:
        """Return the clients that rest or wait, as far as it is known."""
        return {*self._until, *(client for _, rows in self._told.values() for client in rows)}

    def heard(self, process: int, rows: Sequence[RestRow], now: float) -> None:
        """Take what another process tells, in place of what it told before."""
        found = {ClientName(kind, name): (until, waits) for kind, name, until, waits in rows}
        self._told[process] = (now, found)

    def rows(self, waiting: Mapping[ClientName, int], now: float) -> list[RestRow]:
        """Return what other processes have to know, and forget who has rested."""
        self._until = {client: until for client, until in self._until.items() if until > now}
        clients = sorted({*self._until, *waiting})
        return [[*one, self._until.get(one, 0.0), waiting.get(one, 0)] for one in clients]
