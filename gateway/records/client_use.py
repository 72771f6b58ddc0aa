"""What each client has asked for at one HTTP process: counts in memory, and the rows that keep them
over a restart.

Pure: SQL and its values out, rows in. Each HTTP process has rows of its own under its number, with
all that it ever counted, so that none adds to what another has written. Of a process's clients the
`MOST_CLIENTS` that were seen last are kept.
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
    """What a client has asked for. `requests` were taken, and `failed` of them did not finish;
    `refused` were not taken. Seen first and last is wall-clock."""

    requests: int = 0
    refused: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    first_at_s: float = 0.0
    seen_at_s: float = 0.0

    def __add__(self, other: ClientTotals) -> ClientTotals:
        began = [one.first_at_s for one in (self, other) if one.seen_at_s]
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
    """Return totals of something that was seen at this time."""
    return replace(totals, first_at_s=wall_s, seen_at_s=wall_s)


COLUMNS = tuple(field.name for field in fields(ClientTotals))
NOTHING = ClientTotals()
ClientRow = Sequence[Any]
"""A client as plain values: kind, name, and its totals in their order."""
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
    """The clients of one HTTP process, those that were seen last at the end. `loaded`: what an
    earlier process of this number had counted is among it."""

    def __init__(self) -> None:
        self.loaded = False
        self._totals: dict[ClientName, ClientTotals] = {}
        self._changed: set[ClientName] = set()

    def add(self, client: ClientName, totals: ClientTotals) -> None:
        """Add to what a client has asked for."""
        self._totals[client] = self._totals.pop(client, NOTHING) + totals
        self._changed.add(client)
        if len(self._totals) > MOST_CLIENTS:
            forgotten = next(iter(self._totals))
            del self._totals[forgotten]
            self._changed.discard(forgotten)

    def load(self, rows: Iterable[ClientRow]) -> None:
        """Go on from what was kept of this process, beneath what it has counted meanwhile."""
        counted, kept = self._totals, summed_clients([rows])
        self._totals = dict(sorted(kept.items(), key=lambda one: one[1].seen_at_s))
        for client, totals in counted.items():
            self.add(client, totals)
        self.loaded = True

    def rows(self) -> list[ClientRow]:
        """Return all clients as plain values."""
        return [(*client, *astuple(totals)) for client, totals in self._totals.items()]

    def take_unwritten(self, process: int) -> list[Statement]:
        """Return what writes the clients that have changed since the last time; none for none."""
        changed, self._changed = self._changed, set()
        written = [
            Statement(_REPLACE, (process, *client, *astuple(self._totals[client])))
            for client in changed
        ]
        return (
            [*written, Statement(_PRUNE, (process, process, MOST_CLIENTS - 1))] if written else []
        )

    def write_again(self) -> None:
        """Take all clients for unwritten, where it is not known what was written."""
        self._changed = set(self._totals)


def kept_clients() -> Statement:
    """Return what asks for all rows: the number of a process, then a `ClientRow`."""
    return Statement(_ALL)


def summed_clients(parts: Iterable[Iterable[ClientRow]]) -> dict[ClientName, ClientTotals]:
    """Return what each client has asked for at several processes together."""
    found: dict[ClientName, ClientTotals] = {}
    for kind, name, *totals in (row for rows in parts for row in rows):
        client = ClientName(kind, name)
        found[client] = found.get(client, NOTHING) + ClientTotals(*totals)
    return found


class ClientFigures(TypedDict):
    """What a client has asked for."""

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
    """Return totals as clients of the API are told, with the mean tokens of a request."""
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
