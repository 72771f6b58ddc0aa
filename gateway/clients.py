"""Talks to the disk, and to the other HTTP processes of this gateway, about clients: who they are,
what counts for them (`clients.toml`), what they have asked for, and whether they may ask now.

What clients have asked for is counted in memory, and written to the records at most once in
`FLUSH_S`; nothing is done for a request but counting it. Other processes hear at once who rests,
so that a client which asks one request after the other rests at all of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from bus.links.reactor import Reactor
from bus.process.clock import wall
from bus.process.logs import Log
from bus.wire.cards import ModelCard
from bus.wire.shares import Sharer
from bus.wire.tasks import ClientName, ClientProfile, capped
from gateway import records
from gateway.cluster.api_keys import ApiKeys
from gateway.cluster.http_processes import HttpProcesses
from gateway.cluster.options import Options
from gateway.dialects.faults import HttpFaultRaised
from gateway.requests.clients import ClientRests, RestRow, asked_too_soon, too_many_waiting
from gateway.requests.dispatcher import Dispatcher
from gateway.requests.tasks import open_profiles

FLUSH_S = 60.0
TELL_S, REPEAT_S = 0.25, 1.0
"""How often other processes may hear who rests or waits, and how often while that stays so."""


class ClientTold(records.ClientFigures):
    """A client; `known_by` is null for one that has a profile and was never seen. `rests_s` is how
    long it rests on."""

    client: str
    known_by: str | None
    waiting: int
    rests_s: float
    profile: dict[str, Any] | None


class AskingClients:
    """The clients of one HTTP process."""

    def __init__(
        self,
        options: Options,
        *,
        reactor: Reactor,
        near: HttpProcesses,
        kept: records.NodeRecords,
        keys: ApiKeys,
        dispatcher: Dispatcher,
        log: Log,
    ) -> None:
        self.book = open_profiles(options.clients_file, reactor, log, tells=near.number == 0)
        self._options = options
        self._now = reactor.now
        self._near = near
        self._kept = kept
        self._keys = keys
        self._dispatcher = dispatcher
        self._use = records.ClientUse()
        self._rests = ClientRests()
        self._told: list[RestRow] = []
        self._told_at = 0.0
        self._writing = asyncio.ensure_future(self._load())
        reactor.every(TELL_S, self._tell)
        reactor.every(FLUSH_S, self._flush)

    # --- who asks --------------------------------------------------------------------------------

    def named(self, sharer: Sharer) -> ClientName:
        """Return the client of a request: its API key, else its client id, else its address."""
        key, client_id, address, *_ = sharer
        if key:
            found = self._keys.book.keys.get(key)
            return ClientName("key", key if found is None else found.name)
        if client_id:
            # half of a pair is no character: no file holds one
            return ClientName("client_id", client_id.encode(errors="replace").decode())
        return ClientName("address", address)

    def profile(self, client: ClientName) -> ClientProfile:
        """Return what counts for a client."""
        return self.book.table.profile(client)

    def stays_s(self, client: ClientName, card: ModelCard | None, wish_s: float) -> float:
        """Return how long a client's wish keeps the model of a card; below 0 means for ever."""
        most_s = self.profile(client).keep_alive_most_s
        if most_s is None:
            most_s = self._options.keep_alive_most_s["text" if card is None else card.makes]
        return capped(wish_s, most_s)

    def check(self, client: ClientName) -> None:
        """Raise HttpFaultRaised (429) for a client that rests, or of which enough requests wait."""
        now, most = self._now(), self.profile(client).max_waiting
        if left_s := self._rests.left_s(client, now):
            raise HttpFaultRaised(asked_too_soon(client, left_s))
        if most is None:
            return
        waiting = self._waiting()[client] + self._rests.waiting_elsewhere(client, now)
        if waiting >= most:
            raise HttpFaultRaised(too_many_waiting(client, waiting, most))

    # --- what is asked ---------------------------------------------------------------------------

    def rests(self, client: ClientName, cooldown_s: float) -> None:
        """Have a client rest from now on, at each process of this gateway; 0: it does not."""
        if cooldown_s > 0:
            self._rests.rest(client, self._now() + cooldown_s)
            self._tell()

    def ended(self, client: ClientName, totals: records.ClientTotals) -> None:
        """Count what a client asked for, when that has ended."""
        self._use.add(client, records.seen_now(totals, wall()))

    def own_rows(self) -> list[Any]:
        """Return whether what was kept of this process is known here, what all its clients have
        asked for, and how many requests of each wait."""
        waiting = [[*client, count] for client, count in self._waiting().items()]
        return [self._use.loaded, self._use.rows(), waiting]

    def heard(self, process: int, rows: Sequence[RestRow]) -> None:
        """Take what another process tells of clients that rest or wait there."""
        self._rests.heard(process, rows, self._now())

    async def told(self) -> list[ClientTold]:
        """Return all clients of this gateway, those that were seen last first, then those that have
        a profile and were never seen."""
        parts = await self._near.client_rows(self._options.processes)
        found = await self._summed(parts)
        now, waiting = self._now(), Counter[ClientName]()
        for kind, name, count in (row for *_, rows in parts.values() for row in rows):
            waiting[ClientName(kind, name)] += count
        for client in (*waiting, *self._rests.clients()):
            found.setdefault(client, records.ClientTotals())  # it has asked, and nothing has ended
        seen = sorted(found.items(), key=lambda one: -(one[1].seen_at_s or inf))
        rows: list[ClientTold] = [
            {
                "client": client.name,
                "known_by": client.kind,
                **records.client_told(totals),
                "waiting": waiting[client],
                "rests_s": round(self._rests.left_s(client, now), 3),
                "profile": self._profile_told(client.name),
            }
            for client, totals in seen
        ]
        unseen = set(self.book.table.clients) - {client.name for client in found}
        return [*rows, *(self._unseen_told(name) for name in sorted(unseen))]

    async def stop(self) -> None:
        """Write what is not written."""
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
        self, parts: Mapping[int, list[Any]]
    ) -> dict[ClientName, records.ClientTotals]:
        """Return what each client has asked for at all processes; what is kept of those that did
        not tell it themselves is theirs, too."""
        rows = [own for _, own, _ in parts.values()]
        whole = {number for number, (loaded, *_) in parts.items() if loaded}
        try:
            kept = await self._kept.ask(lambda file: file.read([records.kept_clients()])[0])
        except records.RecordsUnavailable:
            kept = []
        rows.append([row for number, *row in kept if number not in whole])
        return records.summed_clients(rows)

    def _waiting(self) -> Counter[ClientName]:
        """Return how many requests wait that clients have made here; a body counts once."""
        waits = {
            id(request.inbox): request.sharer
            for request in self._dispatcher.requests.values()
            if not request.begun
        }
        return Counter(map(self.named, waits.values()))

    def _tell(self) -> None:
        table, now = self.book.table, self._now()
        bounded = any(client.max_waiting is not None for client in table.clients.values())
        waiting = self._waiting() if bounded else Counter[ClientName]()
        rows = self._rests.rows(
            {one: count for one, count in waiting.items() if table.profile(one).max_waiting}, now
        )
        if rows == self._told and not (rows and now - self._told_at >= REPEAT_S):
            return
        self._told, self._told_at = rows, now
        self._near.tell_rests(self._options.processes, rows)

    def _flush(self) -> None:
        if self._writing.done():
            self._writing = asyncio.ensure_future(self._write())

    async def _load(self) -> None:
        if not self._options.records_file:
            self._use.loaded = True
            return
        try:
            kept = await self._kept.ask(lambda file: file.read([records.kept_clients()])[0])
        except records.RecordsUnavailable:
            return  # before anything is written it is tried again
        self._use.load([row for number, *row in kept if number == self._near.number])

    async def _write(self) -> None:
        """Write the clients that have changed; what cannot be written waits for the next time."""
        if not self._use.loaded:
            await self._load()
        statements = self._use.take_unwritten(self._near.number) if self._use.loaded else []
        if not statements or not self._options.records_file:
            return
        try:
            await self._kept.write(statements)
        except records.RecordsUnavailable:
            self._use.write_again()
