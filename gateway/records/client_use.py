"""Usage of each client at one HTTP process: counts in memory, and the rows that preserve them.

Pure: SQL and its values out, rows in. Each HTTP process has its own rows under its number, with its
totals since the first start, so that no process adds to another's rows. A process keeps the
`MOST_CLIENTS` clients seen last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

from typing_extensions import TypedDict

from bus.wire.tasks import ClientName
from gateway.records.statements import Statement

MOST_CLIENTS = 1000


@dataclass(frozen=True, slots=True)
class ClientTotals:
    """A client's usage. `requests` were accepted, `failed` of them did not finish; `refused` were
    not accepted. `first_at_s` and `seen_at_s` are wall-clock."""

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
    """Return totals first and last seen at this time."""
    return replace(totals, first_at_s=wall_s, seen_at_s=wall_s)


COLUMNS = tuple(field.name for field in fields(ClientTotals))
NOTHING = ClientTotals()
ClientRow = Sequence[Any]
"""A client as plain values: kind, name, and its totals in order."""
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
    """The clients of one HTTP process, ordered by when they were last seen. `loaded`: the counts of
    an earlier process of this number are included."""

    def __init__(self) -> None:
        self.loaded = False
        self._totals: dict[ClientName, ClientTotals] = {}
        self._changed: set[ClientName] = set()

    def add(self, client: ClientName, totals: ClientTotals) -> None:
        """Add to a client's usage."""
        self._totals[client] = self._totals.pop(client, NOTHING) + totals
        self._changed.add(client)
        if len(self._totals) > MOST_CLIENTS:
            forgotten = next(iter(self._totals))
            del self._totals[forgotten]
            self._changed.discard(forgotten)

    def load(self, rows: Iterable[ClientRow]) -> None:
        """Add the stored counts of this process number to the counts since its start."""
        counted, stored = self._totals, summed_clients([rows])
        self._totals = dict(sorted(stored.items(), key=lambda item: item[1].seen_at_s))
        for client, totals in counted.items():
            self.add(client, totals)
        self.loaded = True

    def rows(self) -> list[ClientRow]:
        """Return all clients as plain values."""
        return [(*client, *astuple(totals)) for client, totals in self._totals.items()]

    def take_unwritten(self, process: int) -> list[Statement]:
        """Return the statements for the clients that changed since the last call; empty if none
        did."""
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
    """Return the query for all rows: the number of a process, then a `ClientRow`."""
    return Statement(_ALL)


def summed_clients(parts: Iterable[Iterable[ClientRow]]) -> dict[ClientName, ClientTotals]:
    """Return each client's usage over several processes."""
    usage: dict[ClientName, ClientTotals] = {}
    for kind, name, *totals in (row for rows in parts for row in rows):
        client = ClientName(kind, name)
        usage[client] = usage.get(client, NOTHING) + ClientTotals(*totals)
    return usage


class ClientFigures(TypedDict):
    """A client's usage."""

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
    """Return totals in the API's form, with the mean tokens of a request."""
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
