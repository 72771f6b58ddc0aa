"""The types of `clients.toml`: defaults and limits of single clients.

Pure. A client is identified by the first of three names: the API key of its request, the request's
`x_client_id`, its source address. The name alone selects a profile; its kind does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Annotated, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from bus.models.tasks.reading import FileTable, Seconds, Wrong, read_table
from bus.wire.shares import MAX_PRIORITY, PRIORITIES

CLIENTS_FILE = "clients.toml"
MOST_PROFILES, MOST_WAITING = 500, 10_000
ClientKind = Literal["key", "client_id", "address"]
_UNPRINTED = (
    "use 1 to 200 printable characters: the name of an API key, an x_client_id or an address"
)


def _priority(value: object) -> object:
    """Convert a priority's name to its number; return any other value unchanged."""
    if not isinstance(value, str):
        return value
    if value not in PRIORITIES:
        raise ValueError(f"use one of {', '.join(PRIORITIES)} or a number from 0 to {MAX_PRIORITY}")
    return PRIORITIES[value]


Priority = Annotated[int, Field(strict=True, ge=0, le=MAX_PRIORITY), BeforeValidator(_priority)]


class ClientName(NamedTuple):
    """A client's name and the kind of that name."""

    kind: ClientKind
    name: str


class ClientProfile(FileTable):
    """The profile of a client. `priority`, `keep_alive_s` and `model` (or a task's name) apply to
    requests that do not set them; None: as for any client.

    `keep_alive_most_s` limits the keep-alive of its requests (None: as the settings say).
    `cooldown_s`: the minimum time to its next request, both after a request begins and after it
    ends. `max_waiting`: how many of its requests may wait for a model or a runner at a time (None:
    any number).
    """

    priority: Priority | None = None
    keep_alive_s: Seconds | None = None
    keep_alive_most_s: Seconds | None = None
    model: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    cooldown_s: Seconds = 0.0
    max_waiting: Annotated[int, Field(strict=True, ge=1, le=MOST_WAITING)] | None = None


NO_PROFILE = ClientProfile()


class ClientTable(FileTable):
    """The content of `clients.toml`."""

    clients: Annotated[dict[str, ClientProfile], Field(max_length=MOST_PROFILES)] = {}

    def profile(self, client: ClientName) -> ClientProfile:
        """Return the profile of a client; an empty one if it has none."""
        return self.clients.get(client.name, NO_PROFILE)

    @property
    def has_models(self) -> bool:
        """Return whether any client has a model of its own."""
        return any(profile.model is not None for profile in self.clients.values())


def read_clients(text: str) -> ClientTable:
    """Parse the text of a `clients.toml`. Raises ConfigError with the line."""
    return read_table(CLIENTS_FILE, ClientTable, _unsound, text)


def capped(seconds: float, most_s: float) -> float:
    """Return the keep-alive limited to `most_s`. In both parameters, negative or infinite seconds
    mean for ever."""
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
