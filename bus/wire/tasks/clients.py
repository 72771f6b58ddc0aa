"""The types of `clients.toml`: what counts for one client where its requests do not say.

Pure. A client is the API key of a request by its name, else what the request has as `x_client_id`,
else the address that it comes from; a profile counts for the client of its name, whichever of these
that is.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Annotated, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from bus.wire.shares import MAX_PRIORITY, PRIORITIES
from bus.wire.tasks.reading import FileTable, Seconds, Wrong, read_table

CLIENTS_FILE = "clients.toml"
MOST_PROFILES, MOST_WAITING = 500, 10_000
ClientKind = Literal["key", "client_id", "address"]
_UNPRINTED = (
    "use 1 to 200 printable characters: the name of an API key, an x_client_id or an address"
)


def _priority(said: object) -> object:
    """Return the number that a priority's word means; anything else as it is."""
    if not isinstance(said, str):
        return said
    if said not in PRIORITIES:
        raise ValueError(f"use one of {', '.join(PRIORITIES)} or a number from 0 to {MAX_PRIORITY}")
    return PRIORITIES[said]


Priority = Annotated[int, Field(strict=True, ge=0, le=MAX_PRIORITY), BeforeValidator(_priority)]


class ClientName(NamedTuple):
    """A client, and which of its names that is."""

    kind: ClientKind
    name: str


class ClientProfile(FileTable):
    """What counts for a client. `priority`, `keep_alive_s` and `model` (a task's name, too) are for
    requests that do not say theirs; None: as for any client.

    However long its requests wish a model to stay, it stays `keep_alive_most_s` for them (None: as
    the settings say). It may ask again `cooldown_s` after a request began and after it ended. At
    most `max_waiting` of its requests wait for a model or a runner at a time (None: any number).
    """

    priority: Priority | None = None
    keep_alive_s: Seconds | None = None
    keep_alive_most_s: Seconds | None = None
    model: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    cooldown_s: Seconds = 0.0
    max_waiting: Annotated[int, Field(strict=True, ge=1, le=MOST_WAITING)] | None = None


NO_PROFILE = ClientProfile()


class ClientTable(FileTable):
    """All that `clients.toml` says."""

    clients: Annotated[dict[str, ClientProfile], Field(max_length=MOST_PROFILES)] = {}

    def profile(self, client: ClientName) -> ClientProfile:
        """Return the profile of a client; one that says nothing where it has none."""
        return self.clients.get(client.name, NO_PROFILE)

    @property
    def has_models(self) -> bool:
        """Return whether any client has a model of its own."""
        return any(one.model is not None for one in self.clients.values())


def read_clients(text: str) -> ClientTable:
    """Return what the text of a `clients.toml` says. Raises ConfigError, which names the line."""
    return read_table(CLIENTS_FILE, ClientTable, _unsound, text)


def capped(seconds: float, most_s: float) -> float:
    """Return how long a wish keeps a model; below 0 and infinite mean for ever, in the wish and in
    the most that it may be."""
    if most_s < 0:
        return seconds
    return min(inf if seconds < 0 else seconds, most_s)


def _unsound(table: ClientTable) -> Iterator[Wrong]:
    for name, profile in table.clients.items():
        if not (name.isprintable() and 0 < len(name) <= 200):
            yield ["clients", name], _UNPRINTED
        most_s = profile.keep_alive_most_s
        if most_s is not None and (profile.keep_alive_s or 0.0) > most_s:
            yield ["clients", name, "keep_alive_s"], "more than keep_alive_most_s"
