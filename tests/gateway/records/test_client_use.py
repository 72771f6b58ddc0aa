"""Counts of clients: added up, bounded, kept in rows of their process and taken up again."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

import pytest

from bus.models.tasks import ClientName
from gateway.records import ClientTotals, ClientUse, client_told, kept_clients, summed_clients
from gateway.records.client_use import MOST_CLIENTS, seen_now
from gateway.records.schema import statements_from
from gateway.records.statements import Statement

ANN, BEN = ClientName("key", "ann"), ClientName("address", "10.0.0.1")


@pytest.fixture
def table() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    for statement in statements_from(0):
        connection.execute(statement)
    yield connection
    connection.close()


def run(table: sqlite3.Connection, statements: Sequence[Statement]) -> None:
    for one in statements:
        table.execute(one.text, one.values)


def rows(table: sqlite3.Connection, process: int) -> list[Sequence[object]]:
    found = table.execute(kept_clients().text).fetchall()
    return [row for number, *row in found if number == process]


def asked(seconds: float, tokens: int = 10) -> ClientTotals:
    return seen_now(ClientTotals(1, 0, 0, 7, tokens), seconds)


def test_counts_add_up_and_are_seen_first_and_last() -> None:
    use = ClientUse()
    use.add(ANN, asked(5.0))
    use.add(ANN, seen_now(ClientTotals(refused=1), 9.0))
    use.add(BEN, asked(7.0, 4))
    found = summed_clients([use.rows(), use.rows()])
    assert found[ANN] == ClientTotals(2, 2, 0, 14, 20, 5.0, 9.0)
    told = client_told(found[BEN])
    assert (told["mean_prompt_tokens"], told["mean_completion_tokens"]) == (7.0, 4.0)
    assert client_told(ClientTotals())["mean_prompt_tokens"] == 0.0


def test_rows_are_replaced_by_all_that_was_counted(table: sqlite3.Connection) -> None:
    use = ClientUse()
    assert use.take_unwritten(0) == []
    use.add(ANN, asked(5.0))
    run(table, use.take_unwritten(0))
    use.add(ANN, asked(6.0))
    use.add(BEN, asked(6.0))
    run(table, use.take_unwritten(0))
    assert use.take_unwritten(0) == [], "nothing has changed"
    assert summed_clients([rows(table, 0)]) == summed_clients([use.rows()])
    use.write_again()
    assert len(use.take_unwritten(0)) == 3


def test_a_later_process_goes_on_from_its_own_rows(table: sqlite3.Connection) -> None:
    before, beside = ClientUse(), ClientUse()
    before.add(ANN, asked(5.0))
    beside.add(ANN, asked(6.0))
    run(table, [*before.take_unwritten(0), *beside.take_unwritten(1)])
    again = ClientUse()
    again.add(ANN, asked(9.0))
    assert not again.loaded
    again.load(rows(table, 0))
    assert again.loaded and summed_clients([again.rows()])[ANN].requests == 2
    run(table, again.take_unwritten(0))
    whole = summed_clients([rows(table, 0), rows(table, 1)])
    assert whole[ANN] == ClientTotals(3, 0, 0, 21, 30, 5.0, 9.0)


def test_only_those_seen_last_are_kept(table: sqlite3.Connection) -> None:
    use = ClientUse()
    for number in range(MOST_CLIENTS):
        use.add(ClientName("client_id", f"c{number}"), asked(float(number + 1)))
    run(table, use.take_unwritten(0))
    use.add(ClientName("client_id", "c0"), asked(2000.0))
    use.add(ANN, asked(2001.0))
    names = {name for _, name, *_ in use.rows()}
    assert len(names) == MOST_CLIENTS and {"ann", "c0"} <= names and "c1" not in names
    run(table, use.take_unwritten(0))
    assert {str(name) for _, name, *_ in rows(table, 0)} == names
