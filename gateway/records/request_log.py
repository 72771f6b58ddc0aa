"""The request log: one row for each ended request, and the SQL that writes, deletes and queries
these rows.

Pure: returns SQL with its values, and reads the resulting rows. A row has only names, codes and
numbers, and no text of a prompt, an answer or a tool. Names are cut to `NAME_CHARS` characters.
Rows are ordered by the time of writing and not by the wall clock, because the wall clock can be set
back. The p-th percentile is the smallest value that at least p percent of the values do not exceed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, cast

from typing_extensions import TypedDict

from gateway.records.statements import AGE_NOW, Statement

NAME_CHARS = 200
ROW_BYTES = 200
"""Estimated bytes of a row and its index entry, without the names."""
PRUNED_ROWS = 512
"""For each limit, one pruning deletes at most this many rows, so that it does not take long."""
MOST_GROUPS = 100
"""Statistics have at most this many models and clients: those with the most requests."""

Kind = Literal["generate", "embed", "ask"]
"""The product of a request: text (`generate`), vectors (`embed`), or a fact about a prompt (`ask`),
such as its token count."""
Group = Literal["model", "client"]


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One ended request. Unknown values are None. `ended_at_s` is wall-clock. `load_s` is how long
    the request waited for its model to load, `queue_s` how long it waited at the runner. `ttft_s`
    and `seconds` are counted from the arrival. `node` is the node of the instance's rank 0.
    `finish` lists the distinct finish reasons of the choices. `error` is an error code, or None if
    the request finished.
    """

    request: str
    ended_at_s: float
    kind: Kind
    dialect: str
    seconds: float
    status: int
    model: str | None = None
    client: str | None = None
    key: str | None = None
    priority: int | None = None
    streamed: bool = False
    instance: str | None = None
    node: str | None = None
    load_s: float | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    ttft_s: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    finish: str | None = None
    error: str | None = None


COLUMNS = tuple(field.name for field in fields(RequestRow))
_INSERT = (
    f"INSERT INTO request ({', '.join(COLUMNS)}, row_bytes) "
    f"VALUES ({', '.join('?' * (len(COLUMNS) + 1))})"
)


@dataclass(frozen=True, slots=True)
class LogBounds:
    """Limits of the request log: rows, bytes and age."""

    rows: int
    bytes: int
    age_s: float


@dataclass(frozen=True, slots=True)
class RecentQuery:
    """Filter for the last requests, latest first, at most `limit`."""

    limit: int = 50
    model: str | None = None
    client: str | None = None
    errors_only: bool = False
    since_s: float | None = None


def inserted(row: RequestRow) -> Statement:
    values = [_bounded(getattr(row, name)) for name in COLUMNS]
    names_bytes = sum(len(value.encode()) for value in values if isinstance(value, str))
    return Statement(_INSERT, (*values, ROW_BYTES + names_bytes))


def _bounded(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    # a lone surrogate cannot be stored
    return value[:NAME_CHARS].encode(errors="replace").decode()


def pruned(bounds: LogBounds, now_s: float) -> tuple[Statement, ...]:
    """Return the statements that delete the oldest rows if the log exceeds its limits, at most
    `PRUNED_ROWS` for each limit."""
    return pruned_from("request", bounds, now_s)


def pruned_from(table: str, bounds: LogBounds, now_s: float) -> tuple[Statement, ...]:
    """Return the same statements as `pruned`, for any table that has a tally table (its number of
    rows and bytes)."""
    return (
        Statement(
            f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE ended_at_s < "
            f"{AGE_NOW.format(now=':now')} - :age ORDER BY ended_at_s LIMIT {PRUNED_ROWS})",
            {"now": now_s, "age": bounds.age_s},
        ),
        Statement(
            f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} ORDER BY id LIMIT "
            f"(SELECT max(0, min({PRUNED_ROWS}, rows - :rows)) FROM {table}_tally))",
            {"rows": bounds.rows},
        ),
        # the oldest rows, until the surplus bytes are deleted
        Statement(
            f"DELETE FROM {table} WHERE id IN (SELECT id FROM (SELECT id, "
            "sum(row_bytes) OVER (ORDER BY id) - row_bytes AS before FROM (SELECT id, row_bytes "
            f"FROM {table} ORDER BY id LIMIT (SELECT iif(bytes > :bytes, {PRUNED_ROWS}, 0) "
            f"FROM {table}_tally))) WHERE before < (SELECT bytes FROM {table}_tally) - :bytes)",
            {"bytes": bounds.bytes},
        ),
    )


def beyond(bounds: LogBounds, now_s: float) -> Statement:
    """Return a query that yields 1 if the log still exceeds its limits, else 0."""
    return Statement(
        "SELECT rows > :rows OR bytes > :bytes OR EXISTS (SELECT 1 FROM request "
        f"WHERE ended_at_s < {AGE_NOW.format(now=':now')} - :age) FROM request_tally",
        {"rows": bounds.rows, "bytes": bounds.bytes, "now": now_s, "age": bounds.age_s},
    )


def recent(query: RecentQuery) -> Statement:
    """Return the query for the last requests."""
    wanted: list[tuple[str, Any]] = []
    if query.model is not None:
        wanted.append(("model = ?", query.model))
    if query.client is not None:
        wanted.append(("client = ?", query.client))
    if query.since_s is not None:
        wanted.append(("ended_at_s >= ?", query.since_s))
    conditions = [text for text, _ in wanted] + ["error IS NOT NULL"] * query.errors_only
    where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
    return Statement(
        f"SELECT {', '.join(COLUMNS)} FROM request {where}ORDER BY id DESC LIMIT ?",
        (*(value for _, value in wanted), query.limit),
    )


LATEST = Statement("SELECT max(ended_at_s) FROM request")
"""The query for the latest end of a request in the log."""


def shown(values: Sequence[Any]) -> dict[str, Any]:
    """Return a row of the query `recent` as a dict by column names."""
    row = dict(zip(COLUMNS, values, strict=True))
    row["streamed"] = bool(row["streamed"])
    return row


# --- statistics ------------------------------------------------------------------------------

MEASURES: Mapping[str, str] = {
    "ttft_s": "ttft_s",
    "seconds": "seconds",
    "queue_s": "queue_s",
    "load_s": "load_s",
    "decode_tokens_per_s": (
        "CASE WHEN decode_s > 0 AND completion_tokens > 1 "
        "THEN (completion_tokens - 1) / decode_s END"
    ),
}
"""The measures for which percentiles are computed. Each is an SQL expression over the row of a
finished request; null if the row does not have the values."""
PERCENTS = (50, 95)
_IN_WINDOW = "ended_at_s BETWEEN :since AND :until AND kind != 'ask'"
_COUNTS = (
    "count(*), count(*) - count(error), sum(prompt_tokens), sum(cached_tokens), "
    "sum(completion_tokens)"
)
COUNTED = ("requests", "finished", "prompt_tokens", "cached_tokens", "completion_tokens")


@dataclass(frozen=True, slots=True)
class StatsQuestion:
    """The queries for the statistics of a time window. They must be run in one transaction."""

    statements: tuple[Statement, ...]
    window_s: float
    until_s: float


def stats(window_s: float, now_s: float) -> StatsQuestion:
    """Return the queries for the requests that ended in the last `window_s` seconds. Requests that
    only examined a prompt are left out."""
    texts = [
        f"SELECT {_COUNTS} FROM request WHERE {_IN_WINDOW}",
        f"SELECT error, count(*) FROM request WHERE {_IN_WINDOW} AND error IS NOT NULL "
        "GROUP BY error ORDER BY 2 DESC, 1",
    ]
    for group in ("model", "client"):
        texts.append(
            f"SELECT {group}, {_COUNTS} FROM request WHERE {_IN_WINDOW} GROUP BY {group} "
            f"ORDER BY 2 DESC, 1 LIMIT {MOST_GROUPS}"
        )
        texts.append(
            f"SELECT {group}, error, count(*) FROM request WHERE {_IN_WINDOW} AND error IS NOT "
            f"NULL AND {_in_top_groups(group)} GROUP BY {group}, error ORDER BY 3 DESC, 2"
        )
        texts += [_percentiles(group, measure) for measure in MEASURES.values()]
    window = {"since": now_s - window_s, "until": now_s}
    return StatsQuestion(tuple(Statement(text, window) for text in texts), window_s, now_s)


def _in_top_groups(group: Group) -> str:
    """Return the SQL condition that a row's model (or client) is among the models (or clients) with
    the most requests."""
    name = f"coalesce({group}, '')"  # null matches no list
    return (
        f"{name} IN (SELECT {name} FROM request WHERE {_IN_WINDOW} GROUP BY {group} "
        f"ORDER BY count(*) DESC, {group} LIMIT {MOST_GROUPS})"
    )


def _percentiles(group: Group, measure: str) -> str:
    # whole numbers: as a float, 0.95 * 60 may not be exactly 57
    picked = ", ".join(
        f"min(CASE WHEN rank * 100 >= total * {percent} THEN value END)" for percent in PERCENTS
    )
    return (
        f"SELECT name, {picked} FROM (SELECT name, value, "
        "row_number() OVER (PARTITION BY name ORDER BY value) AS rank, "
        "count(*) OVER (PARTITION BY name) AS total FROM "
        f"(SELECT {group} AS name, {measure} AS value FROM request WHERE {_IN_WINDOW} "
        f"AND error IS NULL AND {_in_top_groups(group)}) WHERE value IS NOT NULL) GROUP BY name"
    )


class Counted(TypedDict):
    """Numbers of requests and tokens; `errors` by code."""

    requests: int
    finished: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    errors: dict[str, int]


class Percentiles(TypedDict):
    """The median and the 95th percentile of a measure, in its unit."""

    p50: float
    p95: float


class GroupTold(Counted):
    """The requests of one model or one client, with percentiles over the finished requests. A null
    name means that the requests named none. A percentile is null if no row has the measure."""

    name: str | None
    ttft_s: Percentiles | None
    seconds: Percentiles | None
    queue_s: Percentiles | None
    load_s: Percentiles | None
    decode_tokens_per_s: Percentiles | None


class StatsTold(Counted):
    """Statistics of the requests that ended in a time window, whose length is in seconds."""

    window_s: float
    until_s: float
    models: list[GroupTold]
    clients: list[GroupTold]


def stats_of(question: StatsQuestion, answers: Sequence[Sequence[Sequence[Any]]]) -> StatsTold:
    """Return the statistics from the rows of the queries, in order."""
    left = iter(answers)
    (counts,) = next(left)
    document: dict[str, Any] = {
        "window_s": question.window_s,
        "until_s": question.until_s,
        **_counted(counts),
        "errors": {str(code): int(count) for code, count in next(left)},
    }
    for group in ("models", "clients"):
        rows, errors = next(left), next(left)
        percentiles = {name: next(left) for name in MEASURES}
        document[group] = [
            {
                "name": name,
                **_counted(counts),
                "errors": {code: count for of, code, count in errors if of == name},
                **{measure: _of(name, rows) for measure, rows in percentiles.items()},
            }
            for name, *counts in rows
        ]
    return cast(StatsTold, document)


def _counted(counts: Iterable[Any]) -> dict[str, int]:
    return {name: count or 0 for name, count in zip(COUNTED, counts, strict=True)}


def _of(name: str | None, rows: Sequence[Sequence[Any]]) -> dict[str, float] | None:
    """Return the percentiles of one measure for one model or client; None if none of its rows has
    the measure."""
    for of, *values in rows:
        if of == name:
            return {f"p{percent}": value for percent, value in zip(PERCENTS, values, strict=True)}
    return None
