"""The request log: a row for each request that has ended, and what may be asked of the rows.

Pure: SQL and its values in, rows out. A row has no word of a prompt, an answer or a tool: names,
codes and numbers alone, each name of `NAME_CHARS` at most. Rows are ordered by when they were
written, not by the clock, which may be set. A percentile is the smallest value that at least so
many of a hundred values do not exceed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, cast

from typing_extensions import TypedDict

from gateway.records import age
from gateway.records.statements import Statement

NAME_CHARS = 200
ROW_BYTES = 200
"""What a row takes beside its names, its place in the index included."""
PRUNED_ROWS = 512
"""The most that one pruning removes for each reason, so that none takes long."""
MOST_GROUPS = 100
"""The models or clients that statistics tell of, those with the most requests."""

Kind = Literal["generate", "embed", "ask"]
"""What was asked for: text, vectors, or something about a prompt."""
Group = Literal["model", "client"]


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One request that has ended. What is not known is None.

    `ended_at_s` is wall-clock. `load_s` is how long it waited for its model, `queue_s` at the
    runner, `ttft_s` and `seconds` count from its arrival. `node` is the lead's. `finish` has the
    reasons of its choices, each once; `error` is a code, None where it finished.
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
    """The most that the log may hold."""

    rows: int
    bytes: int
    age_s: float


@dataclass(frozen=True, slots=True)
class RecentQuery:
    """Which of the last requests are asked for; the latest first, `limit` at most."""

    limit: int = 50
    model: str | None = None
    client: str | None = None
    errors_only: bool = False
    since_s: float | None = None


def inserted(row: RequestRow) -> Statement:
    """Return what writes a row."""
    values = [_bounded(getattr(row, name)) for name in COLUMNS]
    names_bytes = sum(len(one.encode()) for one in values if isinstance(one, str))
    return Statement(_INSERT, (*values, ROW_BYTES + names_bytes))


def _bounded(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    # half of a pair is no character: a file holds none, and what is no character says nothing
    return value[:NAME_CHARS].encode(errors="replace").decode()


def pruned(bounds: LogBounds, now_s: float) -> tuple[Statement, ...]:
    """Return what removes the rows beyond the bounds, `PRUNED_ROWS` for each bound at most; the
    oldest go first."""
    return pruned_from("request", bounds, now_s)


def pruned_from(table: str, bounds: LogBounds, now_s: float) -> tuple[Statement, ...]:
    """Return what removes the rows of a table beyond the bounds, as `pruned` does; the table has a
    tally beside it."""
    return (
        Statement(
            f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE ended_at_s < "
            f"{age.NOW.format(now=':now')} - :age ORDER BY ended_at_s LIMIT {PRUNED_ROWS})",
            {"now": now_s, "age": bounds.age_s},
        ),
        Statement(
            f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} ORDER BY id LIMIT "
            f"(SELECT max(0, min({PRUNED_ROWS}, rows - :rows)) FROM {table}_tally))",
            {"rows": bounds.rows},
        ),
        # the oldest rows, as long as those before them are not yet as many bytes as are too many
        Statement(
            f"DELETE FROM {table} WHERE id IN (SELECT id FROM (SELECT id, "
            "sum(row_bytes) OVER (ORDER BY id) - row_bytes AS before FROM (SELECT id, row_bytes "
            f"FROM {table} ORDER BY id LIMIT (SELECT iif(bytes > :bytes, {PRUNED_ROWS}, 0) "
            f"FROM {table}_tally))) WHERE before < (SELECT bytes FROM {table}_tally) - :bytes)",
            {"bytes": bounds.bytes},
        ),
    )


def beyond(bounds: LogBounds, now_s: float) -> Statement:
    """Return the question whether (1, else 0) rows are left that another pruning is to remove."""
    return Statement(
        "SELECT rows > :rows OR bytes > :bytes OR EXISTS (SELECT 1 FROM request "
        f"WHERE ended_at_s < {age.NOW.format(now=':now')} - :age) FROM request_tally",
        {"rows": bounds.rows, "bytes": bounds.bytes, "now": now_s, "age": bounds.age_s},
    )


def recent(query: RecentQuery) -> Statement:
    """Return the question for the last requests."""
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
"""The question for the latest end that is logged."""


def shown(values: Sequence[Any]) -> dict[str, Any]:
    """Return a row of `recent` by the names of its columns."""
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
"""What percentiles are told of, each as it is read from a row that finished; null where the row
has none."""
PERCENTS = (50, 95)
_IN_WINDOW = "ended_at_s BETWEEN :since AND :until AND kind != 'ask'"
_COUNTS = (
    "count(*), count(*) - count(error), sum(prompt_tokens), sum(cached_tokens), "
    "sum(completion_tokens)"
)
COUNTED = ("requests", "finished", "prompt_tokens", "cached_tokens", "completion_tokens")


@dataclass(frozen=True, slots=True)
class StatsQuestion:
    """The questions that statistics of a window are made of, to be asked all at one moment."""

    statements: tuple[Statement, ...]
    window_s: float
    until_s: float


def stats(window_s: float, now_s: float) -> StatsQuestion:
    """Return the questions for the requests that ended in the last `window_s`; questions about
    prompts left out."""
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
            f"NULL AND {_is_told(group)} GROUP BY {group}, error ORDER BY 3 DESC, 2"
        )
        texts += [_percentiles(group, measure) for measure in MEASURES.values()]
    window = {"since": now_s - window_s, "until": now_s}
    return StatsQuestion(tuple(Statement(text, window) for text in texts), window_s, now_s)


def _is_told(group: Group) -> str:
    """Return the condition that a row's group is among those with the most requests."""
    name = f"coalesce({group}, '')"  # null is in no list
    return (
        f"{name} IN (SELECT {name} FROM request WHERE {_IN_WINDOW} GROUP BY {group} "
        f"ORDER BY count(*) DESC, {group} LIMIT {MOST_GROUPS})"
    )


def _percentiles(group: Group, measure: str) -> str:
    # whole numbers: of 0.95 * 60 a float is not sure whether it is 57
    picked = ", ".join(
        f"min(CASE WHEN rank * 100 >= total * {percent} THEN value END)" for percent in PERCENTS
    )
    return (
        f"SELECT name, {picked} FROM (SELECT name, value, "
        "row_number() OVER (PARTITION BY name ORDER BY value) AS rank, "
        "count(*) OVER (PARTITION BY name) AS total FROM "
        f"(SELECT {group} AS name, {measure} AS value FROM request WHERE {_IN_WINDOW} "
        f"AND error IS NULL AND {_is_told(group)}) WHERE value IS NOT NULL) GROUP BY name"
    )


class Counted(TypedDict):
    """How many requests there were, and their tokens; `errors` by their codes."""

    requests: int
    finished: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    errors: dict[str, int]


class Percentiles(TypedDict):
    """The median of a measure, and its 95th percentile."""

    p50: float
    p95: float


class GroupTold(Counted):
    """The requests of a model or a client (null: it has no name), and what those that finished
    took; null where none has the measure."""

    name: str | None
    ttft_s: Percentiles | None
    seconds: Percentiles | None
    queue_s: Percentiles | None
    load_s: Percentiles | None
    decode_tokens_per_s: Percentiles | None


class StatsTold(Counted):
    """The requests that ended in a window of seconds."""

    window_s: float
    until_s: float
    models: list[GroupTold]
    clients: list[GroupTold]


def told(question: StatsQuestion, answers: Sequence[Sequence[Sequence[Any]]]) -> StatsTold:
    """Return statistics as they are told, from the answers to their questions, in order."""
    left = iter(answers)
    (counts,) = next(left)
    found: dict[str, Any] = {
        "window_s": question.window_s,
        "until_s": question.until_s,
        **_counted(counts),
        "errors": {str(code): int(count) for code, count in next(left)},
    }
    for group in ("models", "clients"):
        rows, errors = next(left), next(left)
        percentiles = {name: next(left) for name in MEASURES}
        found[group] = [
            {
                "name": name,
                **_counted(counts),
                "errors": {code: count for of, code, count in errors if of == name},
                **{one: _of(name, rows) for one, rows in percentiles.items()},
            }
            for name, *counts in rows
        ]
    return cast(StatsTold, found)


def _counted(counts: Iterable[Any]) -> dict[str, int]:
    return {name: count or 0 for name, count in zip(COUNTED, counts, strict=True)}


def _of(name: str | None, rows: Sequence[Sequence[Any]]) -> dict[str, float] | None:
    """Return a group's percentiles of one measure, None where no row of it has that."""
    for of, *values in rows:
        if of == name:
            return {f"p{percent}": one for percent, one in zip(PERCENTS, values, strict=True)}
    return None
