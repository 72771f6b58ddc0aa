"""Keeps the cooldown and the number of waiting requests of each client, over all HTTP processes of
a gateway.

Pure: `now` is the monotonic clock of the machine, which all its processes share. The processes send
each other reports. If two processes accept requests of one client at the same time, neither process
counts the other's request until the next report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bus.models.tasks import ClientName
from bus.wire.calls.processes import RestRow

FRESH_S = 5.0
"""A report of waiting requests is valid for this many seconds."""
MOST_RESTING = 1000
"""Limit of clients in cooldown at one process; beyond it, the oldest cooldown is forgotten."""


class ClientRests:
    """The clients of one gateway that are in cooldown or have waiting requests."""

    def __init__(self) -> None:
        self._until: dict[ClientName, float] = {}
        self._reports: dict[int, tuple[float, dict[ClientName, tuple[float, int]]]] = {}
        self.is_empty = True
        """Whether no client is in cooldown, as far as this process knows."""

    def rest(self, client: ClientName, until: float) -> None:
        """Begin a client's cooldown, or extend it."""
        self._until[client] = max(until, self._until.pop(client, until))
        self.is_empty = False
        if len(self._until) > MOST_RESTING:
            del self._until[next(iter(self._until))]

    def left_s(self, client: ClientName, now: float) -> float:
        """Return the seconds left of a client's cooldown; 0 if it has none."""
        elsewhere = (rows[client][0] for _, rows in self._reports.values() if client in rows)
        return max(0.0, max((self._until.get(client, now), *elsewhere)) - now)

    def waiting_elsewhere(self, client: ClientName, now: float) -> int:
        """Return how many requests of a client wait at other processes."""
        fresh = (rows for at, rows in self._reports.values() if now - at < FRESH_S)
        return sum(rows[client][1] for rows in fresh if client in rows)

    def clients(self) -> set[ClientName]:
        """Return the clients in cooldown or with waiting requests, at all processes."""
        return {*self._until, *(client for _, rows in self._reports.values() for client in rows)}

    def take_report(self, process: int, rows: Sequence[RestRow], now: float) -> None:
        """Replace the last report of another process."""
        by_client = {ClientName(kind, name): (until, waits) for kind, name, until, waits in rows}
        self._reports[process] = (now, by_client)
        self.is_empty = not (self._until or any(clients for _, clients in self._reports.values()))

    def rows(self, waiting: Mapping[ClientName, int], now: float) -> list[RestRow]:
        """Return the report for other processes. Drop cooldowns that have ended."""
        self._until = {client: until for client, until in self._until.items() if until > now}
        self.is_empty = not (self._until or any(clients for _, clients in self._reports.values()))
        clients = sorted({*self._until, *waiting})
        return [
            (client.kind, client.name, self._until.get(client, 0.0), waiting.get(client, 0))
            for client in clients
        ]
