"""When counts of clients are written, and by which of a gateway's processes."""

from __future__ import annotations

import asyncio
import io
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from bus.models.tasks import ClientName
from bus.process.logs import Log
from bus.wire.calls.processes import ClientsRead, ClientUseRow
from gateway.access import AskingClients
from gateway.access.clients import FLUSH_S
from gateway.records import ClientTotals, LogBounds, NodeRecords
from gateway.view.options import Options

ANN = ClientName("key", "ann")
ONE = ClientTotals(1, 0, 0, 7, 10)
USED: ClientUseRow = ("key", "ann", 5, 0, 0, 0, 0, 1.0, 2.0)


class Process:
    """One HTTP process: its clients over real records; a clock that stands, timers called by hand,
    and the other processes as told."""

    def __init__(self, folder: Path, number: int = 0) -> None:
        self.log = Log(node="n1", process=f"gateway:{number}", stream=io.StringIO())
        self.path = folder / "records.sqlite"
        self.records = NodeRecords(self.path, LogBounds(10, 1 << 20, 1e9), self.log)
        self.timers: dict[float, Callable[[], None]] = {}
        self.others: dict[int, ClientsRead] = {}
        self.told: list[list[Any]] = []
        self.now = 100.0
        near = SimpleNamespace(
            number=number,
            answer=lambda *_: None,
            tell_others=lambda _processes, _call, rests: self.told.append(
                json.loads(json.dumps(rests.rows))
            ),
            ask_each=self._rows,
        )
        file = folder / "clients.toml"
        file.write_text("[clients.ann]\nkeep_alive_most_s = 60\n")
        options = SimpleNamespace(
            clients_file=str(file),
            records_file=str(self.path),
            processes=2,
            keep_alive_most_s={"text": 100.0, "embedding": -1.0},
        )
        self.clients = AskingClients(
            cast(Options, options),
            reactor=cast(Any, SimpleNamespace(every=self.timers.__setitem__, now=lambda: self.now)),
            near=cast(Any, near),
            node_records=self.records,
            keys=cast(Any, SimpleNamespace(book=SimpleNamespace(keys={}))),
            dispatcher=cast(Any, SimpleNamespace(requests={})),
            log=self.log,
        )

    async def _rows(self, *_: Any) -> dict[int, ClientsRead]:
        return {0: self.clients.report(), **self.others}

    async def settled(self) -> None:
        """Wait until what was begun of loading and writing is done."""
        for _ in range(500):
            if len(pending := asyncio.all_tasks() - {asyncio.current_task()}) == 0:  # type: ignore[arg-type]
                return
            await asyncio.wait(pending)

    async def flush(self) -> None:
        self.timers[FLUSH_S]()
        await self.settled()

    async def stop(self) -> None:
        await self.clients.stop()
        self.records.close()

    def kept(self) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.path)
        try:
            asked = "SELECT process, name, requests FROM client ORDER BY process, name"
            return connection.execute(asked).fetchall()
        finally:
            connection.close()

    async def requests(self) -> dict[str, int]:
        return {one["client"]: one["requests"] for one in await self.clients.all_clients()}


def test_counts_are_written_once_a_minute_and_at_the_end(tmp_path: Path) -> None:
    async def trace() -> None:
        process = Process(tmp_path)
        await process.settled()
        for _ in range(3):
            process.clients.ended(ANN, ONE)
        await process.settled()
        assert FLUSH_S >= 60 and process.kept() == [], "nothing is written for a request"
        await process.flush()
        assert process.kept() == [(0, "ann", 3)]
        process.clients.ended(ANN, ONE)
        assert await process.requests() == {"ann": 4}
        await process.stop()
        assert process.kept() == [(0, "ann", 4)]

    asyncio.run(trace())


def test_a_process_that_was_killed_loses_what_was_not_written(tmp_path: Path) -> None:
    async def trace() -> None:
        killed = Process(tmp_path)
        await killed.settled()
        killed.clients.ended(ANN, ONE)
        await killed.flush()
        killed.clients.ended(ANN, ONE)
        killed.records.close()
        again = Process(tmp_path)
        await again.settled()
        assert await again.requests() == {"ann": 1}
        again.clients.ended(ANN, ONE)
        await again.stop()
        assert again.kept() == [(0, "ann", 2)]

    asyncio.run(trace())


def test_of_a_process_that_does_not_tell_what_is_kept_counts(tmp_path: Path) -> None:
    async def trace() -> None:
        other = Process(tmp_path, number=1)
        other.clients.ended(ANN, ONE)
        await other.stop()
        process = Process(tmp_path)
        process.clients.ended(ANN, ONE)
        await process.settled()
        assert await process.requests() == {"ann": 2}, "it is gone, and its rows are there"
        process.others = {1: ClientsRead(is_loaded=True, use=(USED,), waiting=(("key", "ann", 2),))}
        assert await process.requests() == {"ann": 6}, "it tells all that it counted"
        assert [one["waiting"] for one in await process.clients.all_clients()] == [2]
        process.others = {1: ClientsRead(is_loaded=False, use=(USED,))}
        assert await process.requests() == {"ann": 7}, "it has not read its rows yet"
        await process.stop()

    asyncio.run(trace())


def test_a_wish_is_bounded_by_the_profile_else_by_the_kind(tmp_path: Path) -> None:
    async def trace() -> None:
        process = Process(tmp_path)
        stays_s, ben = process.clients.stays_s, ClientName("address", "10.0.0.1")
        text, embeds = (cast(Any, SimpleNamespace(makes=kind)) for kind in ("text", "embedding"))
        assert [stays_s(ANN, card, 500.0) for card in (text, embeds, None)] == [60.0] * 3
        assert [stays_s(ben, card, 500.0) for card in (text, embeds, None)] == [100.0, 500.0, 100.0]
        assert (stays_s(ben, text, -1.0), stays_s(ben, embeds, -1.0)) == (100.0, -1.0)
        assert stays_s(ben, text, 0.0) == 0.0
        await process.stop()

    asyncio.run(trace())


def test_others_hear_at_once_who_rests(tmp_path: Path) -> None:
    async def trace() -> None:
        process = Process(tmp_path)
        process.clients.rests(ANN, 0.0)
        assert process.told == [], "it does not rest"
        process.clients.rests(ANN, 5.0)
        assert process.told == [[["key", "ann", 105.0, 0]]]
        await process.stop()

    asyncio.run(trace())
