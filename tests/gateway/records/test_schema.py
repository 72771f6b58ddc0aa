"""The records file's tables: from any version that ever was to today's."""

from __future__ import annotations

import sqlite3

import pytest

from gateway.records.schema import MIGRATIONS, VERSION, statements_from


def tables(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    return connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()


def brought(connection: sqlite3.Connection, version: int) -> None:
    for statement in statements_from(version):
        connection.execute(statement)


@pytest.mark.parametrize("version", range(VERSION + 1))
def test_a_file_of_each_version_ends_as_a_fresh_one_does(version: int) -> None:
    fresh, old = sqlite3.connect(":memory:"), sqlite3.connect(":memory:")
    brought(fresh, 0)
    for added in MIGRATIONS[:version]:
        for statement in added:
            old.execute(statement)
    brought(old, version)
    assert tables(old) == tables(fresh)
    fresh.close()
    old.close()


@pytest.mark.parametrize("version", [-1, VERSION + 1])
def test_a_version_that_is_not_known_is_refused(version: int) -> None:
    with pytest.raises(ValueError, match="unknown version"):
        statements_from(version)
