"""Counts the usage of each client at one HTTP process, in memory, and makes the rows that preserve
these counts.

Pure: takes rows, and returns SQL and its values. Each HTTP process has its own rows, which contain
its number and its totals since the first start of the node. So no two processes write the same row.
A process counts only the `MOST_CLIENTS` clients that it has seen last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

from typing_extensions import TypedDict

from bus.models.tasks import ClientName
from gateway.records.statements import Statement

MOST_CLIENTS = 1000


@dataclass(frozen=True, slots=True)
class ClientTotals:
    """The total usage of a client. `requests` counts accepted requests, `failed` those of them that
    did not finish, and `refused` requests that were not accepted. `first_at_s` and `seen_at_s` are
    wall-clock."""

    requests: int = 0
    refused: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    first_at_s: float = 0.0
    seen_at_s: float = 0.0

    def __add__(self, other: ClientTotals) -> ClientTotals:
        began = [totals.first_at_s for totals in (self, other) if totals.seen_at_s]
        return ClientTotals(
            self.requests + other.requests,
            self.refused + other.refused,
            self.failed + other.failed,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            min(began, default=0.0),
            max(self.seen_at_s, other.seen_at_s),
        )


def seen_now(totals: ClientTotals, wall_s: float) -> ClientTotals:
    """Return `totals` with `wall_s` as the time at which the client was first and last seen."""
    return replace(totals, first_at_s=wall_s, seen_at_s=wall_s)


COLUMNS = tuple(field.name for field in fields(ClientTotals))
NOTHING = ClientTotals()
ClientRow = Sequence[Any]
"""A client as plain values: its kind, its name, and the fields of its `ClientTotals` in order."""
_REPLACE = (
    f"INSERT OR REPLACE INTO client (process, kind, name, {', '.join(COLUMNS)}) "
    f"VALUES ({', '.join('?' * (len(COLUMNS) + 3))})"
)
_PRUNE = """
DELETE FROM client WHERE process = ? AND seen_at_s < (
    SELECT seen_at_s FROM client WHERE process = ? ORDER BY seen_at_s DESC LIMIT 1 OFFSET ?
)
"""
_ALL = f"SELECT process, kind, name, {', '.join(COLUMNS)} FROM client"


class ClientUse:
    """The clients of one HTTP process, ordered by when they were last seen. `loaded`: the counts
    that an earlier process with this number stored are included."""

    def __init__(self) -> None:
        self.loaded = False
        self._totals: dict[ClientName, ClientTotals] = {}
        self._changed: set[ClientName] = set()

    def add(self, client: ClientName, totals: ClientTotals) -> None:
        """Add `totals` to the usage of a client. If there are too many clients, forget the client
        whose last request is the oldest."""
        self._totals[client] = self._totals.pop(client, NOTHING) + totals
        self._changed.add(client)
        if len(self._totals) > MOST_CLIENTS:
            forgotten = next(iter(self._totals))
            del self._totals[forgotten]
            self._changed.discard(forgotten)

    def load(self, rows: Iterable[ClientRow]) -> None:
        """Add the counts that an earlier process with this number stored to the counts of this
        process."""
        counted, stored = self._totals, summed_clients([rows])
        self._totals = dict(sorted(stored.items(), key=lambda item: item[1].seen_at_s))
        for client, totals in counted.items():
            self.add(client, totals)
        self.loaded = True

    def rows(self) -> list[ClientRow]:
        """Return all clients as plain values."""
        return [(*client, *astuple(totals)) for client, totals in self._totals.items()]

    def take_unwritten(self, process: int) -> list[Statement]:
        """Return the statements that store the clients whose usage has changed since the last call.
        The list is empty if no usage has changed."""
        changed, self._changed = self._changed, set()
        written = [
            Statement(_REPLACE, (process, *client, *astuple(self._totals[client])))
            for client in changed
        ]
        return (
            [*written, Statement(_PRUNE, (process, process, MOST_CLIENTS - 1))] if written else []
        )

    def write_again(self) -> None:
        """Mark all clients as unwritten, because the last write may have failed."""
        self._changed = set(self._totals)


def kept_clients() -> Statement:
    """Return the query for the stored usage of all processes. Each row has the number of a process,
    then a `ClientRow`."""
    return Statement(_ALL)


def summed_clients(parts: Iterable[Iterable[ClientRow]]) -> dict[ClientName, ClientTotals]:
    """Return the usage of each client, summed over several processes."""
    usage: dict[ClientName, ClientTotals] = {}
    for kind, name, *totals in (row for rows in parts for row in rows):
        client = ClientName(kind, name)
        usage[client] = usage.get(client, NOTHING) + ClientTotals(*totals)
    return usage


class ClientFigures(TypedDict):
    """The usage of a client, in the form of the API."""

    requests: int
    refused: int
    failed: int
    prompt_tokens: int
    completion_tokens: int
    mean_prompt_tokens: float
    mean_completion_tokens: float
    first_seen_at_s: float
    last_seen_at_s: float


def client_told(totals: ClientTotals) -> ClientFigures:
    """Return the usage of a client in the form of the API, with the mean number of tokens per
    request."""
    taken = max(1, totals.requests)
    return {
        "requests": totals.requests,
        "refused": totals.refused,
        "failed": totals.failed,
        "prompt_tokens": totals.prompt_tokens,
        "completion_tokens": totals.completion_tokens,
        "mean_prompt_tokens": round(totals.prompt_tokens / taken, 1),
        "mean_completion_tokens": round(totals.completion_tokens / taken, 1),
        "first_seen_at_s": round(totals.first_at_s, 3),
        "last_seen_at_s": round(totals.seen_at_s, 3),
    }
