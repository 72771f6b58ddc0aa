"""Talks to the disk, and to the gateway's other HTTP processes: knows clients, their limits and
their usage.

This module finds out which client sent a request, reads the client's profile (`clients.toml`),
counts the client's usage and checks its limits. Usage is counted in memory and written to the
records at most once in `FLUSH_S`. A cooldown is immediately reported to the other processes, so
that they apply it as well.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, cast

from bus.calls import ProcessCalls, table
from bus.links.reactor import Reactor
from bus.models.tasks import ClientName, ClientProfile, capped
from bus.process.clock import wall
from bus.process.logs import Log
from bus.wire.calls.jobs import Noted
from bus.wire.calls.processes import (
    ClientsRead,
    ClientUseRow,
    NoteRests,
    ReadClients,
    RestRow,
    WaitingRow,
)
from bus.wire.cards import ModelCard
from bus.wire.shares import Sharer
from gateway import records
from gateway.access.api_keys import ApiKeys
from gateway.access.cooldowns import ClientRests
from gateway.access.profiles import asked_too_soon, too_many_waiting
from gateway.dialects.faults import HttpFaultRaised
from gateway.requests.dispatcher import Dispatcher
from gateway.requests.tasks import open_profiles
from gateway.view.options import Options

FLUSH_S = 60.0
TELL_S, REPEAT_S = 0.25, 1.0
"""A changed report is sent to the other processes after `TELL_S` at the earliest; an unchanged
report is repeated after `REPEAT_S`."""


class ClientTold(records.ClientFigures):
    """A client, as the API reports it. `known_by` is null if the client has a profile but has sent
    no request. `rests_s` is the remaining cooldown in seconds."""

    client: str
    known_by: str | None
    waiting: int
    rests_s: float
    profile: dict[str, Any] | None


class AskingClients:
    """Knows the clients of one HTTP process: names, profiles, limits and usage."""

    def __init__(
        self,
        options: Options,
        *,
        reactor: Reactor,
        near: ProcessCalls,
        node_records: records.NodeRecords,
        keys: ApiKeys,
        dispatcher: Dispatcher,
        log: Log,
    ) -> None:
        self.book = open_profiles(options.clients_file, log, tells=near.number == 0)
        self._options = options
        self._now = reactor.now
        self._near = near
        near.answer(table.READ_CLIENTS, lambda _: self.report())
        near.answer(table.NOTE_RESTS, self._note_rests)
        self._records = node_records
        self._keys = keys
        self._dispatcher = dispatcher
        self._use = records.ClientUse()
        self.cooldowns = ClientRests()
        self._sent: list[RestRow] = []
        self._sent_at = 0.0
        self._writing = asyncio.ensure_future(self._load())
        reactor.every(TELL_S, self._tell)
        reactor.every(FLUSH_S, self._flush)

    # --- clients and limits ----------------------------------------------------------------------

    def named(self, sharer: Sharer) -> ClientName:
        """Return the client that sent a request. A client is known by its API key; without a key by
        its client id, else by its address."""
        key, client_id, address, *_ = sharer
        if key:
            record = self._keys.book.keys.get(key)
            return ClientName("key", key if record is None else record.name)
        if client_id:
            # a lone surrogate cannot be written to a file
            return ClientName("client_id", client_id.encode(errors="replace").decode())
        return ClientName("address", address)

    def profile(self, client: ClientName) -> ClientProfile:
        """Return a client's profile; an empty profile if it has none."""
        return self.book.table.profile(client)

    def stays_s(self, client: ClientName, card: ModelCard | None, wish_s: float) -> float:
        """Return how many seconds a model stays loaded for a client: the requested `wish_s`, but at
        most the limit of the client's profile. Below 0 means forever."""
        most_s = self.profile(client).keep_alive_most_s
        if most_s is None:
            most_s = self._options.keep_alive_most_s["text" if card is None else card.makes]
        return capped(wish_s, most_s)

    def check(self, client: ClientName) -> None:
        """Raise HttpFaultRaised (429) for a client in its cooldown, or at its limit of waiting
        requests."""
        now, most = self._now(), self.profile(client).max_waiting
        if left_s := self.cooldowns.left_s(client, now):
            raise HttpFaultRaised(asked_too_soon(client, left_s))
        if most is None:
            return
        waiting = self._waiting()[client] + self.cooldowns.waiting_elsewhere(client, now)
        if waiting >= most:
            raise HttpFaultRaised(too_many_waiting(client, waiting, most))

    # --- usage -----------------------------------------------------------------------------------

    def rests(self, client: ClientName, cooldown_s: float) -> None:
        """Start a client's cooldown at all processes of this gateway. `cooldown_s` 0 starts
        none."""
        if cooldown_s > 0:
            self.cooldowns.rest(client, self._now() + cooldown_s)
            self._tell()

    def ended(self, client: ClientName, totals: records.ClientTotals) -> None:
        """Add an ended request to a client's usage."""
        self._use.add(client, records.seen_now(totals, wall()))

    def report(self) -> ClientsRead:
        """Return the clients of this process, for the other processes."""
        waiting = [(*client, count) for client, count in self._waiting().items()]
        return ClientsRead(
            is_loaded=self._use.loaded,
            use=cast(tuple[ClientUseRow, ...], tuple(self._use.rows())),
            waiting=cast(tuple[WaitingRow, ...], tuple(waiting)),
        )

    async def all_clients(self) -> list[ClientTold]:
        """Return all clients of this gateway, the latest request first. Clients that have a profile
        but have sent no request come last."""
        parts = await self._near.ask_each(
            self._options.processes, table.READ_CLIENTS, ReadClients()
        )
        totals_by_client = await self._summed(parts)
        now, waiting = self._now(), Counter[ClientName]()
        for kind, name, count in (row for part in parts.values() for row in part.waiting):
            waiting[ClientName(kind, name)] += count
        for client in (*waiting, *self.cooldowns.clients()):
            # it has open requests, and none has ended yet
            totals_by_client.setdefault(client, records.ClientTotals())
        seen = sorted(totals_by_client.items(), key=lambda item: -(item[1].seen_at_s or inf))
        rows: list[ClientTold] = [
            {
                "client": client.name,
                "known_by": client.kind,
                **records.client_told(totals),
                "waiting": waiting[client],
                "rests_s": round(self.cooldowns.left_s(client, now), 3),
                "profile": self._profile_told(client.name),
            }
            for client, totals in seen
        ]
        unseen = set(self.book.table.clients) - {client.name for client in totals_by_client}
        return [*rows, *(self._unseen_told(name) for name in sorted(unseen))]

    async def stop(self) -> None:
        """Write the unwritten usage to the records."""
        await self._writing
        await self._write()

    # --- below -----------------------------------------------------------------------------------

    def _unseen_told(self, name: str) -> ClientTold:
        return {
            "client": name,
            "known_by": None,
            **records.client_told(records.ClientTotals()),
            "waiting": 0,
            "rests_s": 0.0,
            "profile": self._profile_told(name),
        }

    def _profile_told(self, name: str) -> dict[str, Any] | None:
        profile = self.book.table.clients.get(name)
        return None if profile is None else profile.model_dump(exclude_defaults=True)

    async def _summed(
        self, parts: Mapping[int, ClientsRead]
    ) -> dict[ClientName, records.ClientTotals]:
        """Return the usage of each client, summed over all processes. If a process did not report,
        its stored usage is used."""
        rows: list[Sequence[Sequence[Any]]] = [part.use for part in parts.values()]
        whole = {number for number, part in parts.items() if part.is_loaded}
        stored: Sequence[Sequence[Any]] = ()
        with contextlib.suppress(records.RecordsUnavailable):
            stored = await self._stored()
        rows.append([row for number, *row in stored if number not in whole])
        return records.summed_clients(rows)

    def _waiting(self) -> Counter[ClientName]:
        """Return the number of waiting requests per client in this process. A body with several
        prompts counts once."""
        waits = {
            id(request.inbox): request.sharer
            for request in self._dispatcher.requests.values()
            if not request.begun
        }
        return Counter(map(self.named, waits.values()))

    def _tell(self) -> None:
        profiles, now = self.book.table, self._now()
        if not profiles.clients and not self._sent and self.cooldowns.is_empty:
            return
        bounded = any(client.max_waiting is not None for client in profiles.clients.values())
        waiting = self._waiting() if bounded else Counter[ClientName]()
        rows = self.cooldowns.rows(
            {name: count for name, count in waiting.items() if profiles.profile(name).max_waiting},
            now,
        )
        if rows == self._sent and not (rows and now - self._sent_at >= REPEAT_S):
            return
        self._sent, self._sent_at = rows, now
        rests = NoteRests(number=self._near.number, rows=tuple(rows))
        self._near.tell_others(self._options.processes, table.NOTE_RESTS, rests)

    def _note_rests(self, call: NoteRests) -> Noted:
        self.cooldowns.take_report(call.number, call.rows, self._now())
        return Noted()

    def _flush(self) -> None:
        if self._writing.done():
            self._writing = asyncio.ensure_future(self._write())

    async def _load(self) -> None:
        if not self._options.records_file:
            self._use.loaded = True
            return
        try:
            stored = await self._stored()
        except records.RecordsUnavailable:
            return  # `_write` tries again
        self._use.load([row for number, *row in stored if number == self._near.number])

    async def _stored(self) -> Sequence[Sequence[Any]]:
        """Return the stored usage, as rows that begin with the number of the process. Raises
        RecordsUnavailable."""
        return await self._records.ask(lambda file: file.read([records.kept_clients()])[0])

    async def _write(self) -> None:
        """Write the usage of changed clients; after a failure the next flush tries again."""
        if not self._use.loaded:
            await self._load()
        statements = self._use.take_unwritten(self._near.number) if self._use.loaded else []
        if not statements or not self._options.records_file:
            return
        try:
            await self._records.write(statements)
        except records.RecordsUnavailable:
            self._use.write_again()
