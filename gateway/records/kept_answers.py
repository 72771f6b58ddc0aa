"""The SQL statements and queries for stored answers, which later requests can continue.

Pure: returns SQL and its values. Each answer belongs to one owner (an API key), and no other owner
can find it. If several answers share an item of a conversation, the item is stored once; it is
deleted together with the last of these answers. The number, the bytes and the age of answers are
limited. If the number (or the bytes) exceeds the limit, answers of the owner who has the most
answers (or bytes) are deleted, oldest first. So an owner with many answers never displaces those of
an owner with few. A conversation counts as an answer whose age begins at its last use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from bus.wire.ids import RequestId
from gateway.dialects.dialect import KeptAnswer
from gateway.dialects.encode import json_bytes
from gateway.records.statements import AGE_NOW, Statement
from gateway.view.options import Options

LARGEST_BYTES = 8 << 20
"""Limit of an answer with its items; a larger one is not stored."""
ROW_BYTES, ITEM_BYTES, PLACE_BYTES = 200, 100, 24
"""Estimated overhead in bytes, in addition to the content: of an answer, of an item, and of an
item's place in an answer."""
PRUNED_ROWS = 512
"""For each limit, one pruning deletes at most this many rows, so that it does not take long."""
PRUNINGS = 3
"""Prunings by bytes in one round. One pruning may not suffice, because deleting an answer does not
free the items that other answers share."""


NEXT_USE = (
    "(SELECT 1 + max(coalesce((SELECT max(id) FROM answer), 0), "
    "coalesce((SELECT max(used) FROM conversation), 0)))"
)
"""SQL for the next number of a sequence. The numbers order answers and conversations by age, even
if the clock was wrong."""
_KEPT = ("answer", "conversation")


@dataclass(frozen=True, slots=True)
class AnswerBounds:
    """Limits for the number, the bytes and the age of answers; number and bytes are those of all
    owners together."""

    rows: int
    bytes: int
    age_s: float


@dataclass(frozen=True, slots=True)
class ListedQuery:
    """Filter and order for a list of answers. The list has at most `limit` answers that come after
    the answer `after` (its `listed` bytes), were made by this model, and have all these labels."""

    limit: int
    descends: bool
    after: bytes | None = None
    model: str | None = None
    labels: tuple[tuple[str, str], ...] = ()


def answer_bounds(options: Options) -> AnswerBounds:
    """Return the limits that a node's options set for stored answers."""
    return AnswerBounds(
        rows=options.answer_rows,
        bytes=options.answer_bytes,
        age_s=options.answer_days * 86_400,
    )


def size_of(answer: KeptAnswer) -> int:
    """Return how many bytes an answer and its items take."""
    beside = len(answer.listed) + len(answer.labels)
    return len(answer.answer) + beside + sum(map(len, answer.items))


def added(owner: str, request: RequestId, answer: KeptAnswer, now_s: float) -> list[Statement]:
    """Return the statements that store an answer. They replace an answer of the same request."""
    order = [blake2b(item, digest_size=16).hexdigest() for item in answer.items]
    items = dict(zip(order, answer.items, strict=True))
    row_bytes = size_of(answer) - sum(map(len, answer.items)) + ROW_BYTES + PLACE_BYTES * len(order)
    values = (request, owner, now_s, answer.answer, answer.listed, answer.labels)
    return [
        Statement("DELETE FROM answer WHERE request = ?", (request,)),
        Statement(
            "INSERT INTO answer (id, request, owner, kept_at_s, answer, listed, labels, row_bytes, "
            f"size_bytes) VALUES ({NEXT_USE}, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*values, row_bytes, size_of(answer) + ROW_BYTES),
        ),
        *(
            Statement(
                "INSERT OR IGNORE INTO item (owner, digest, content, item_bytes) "
                "VALUES (?, ?, ?, ?)",
                (owner, digest, item, len(item) + ITEM_BYTES),
            )
            for digest, item in items.items()
        ),
        # CROSS: each digest is looked up; the planner would scan all items of the owner
        Statement(
            "INSERT INTO answer_item (answer, place, item) "
            "SELECT (SELECT id FROM answer WHERE request = :request), told.key, item.id "
            "FROM json_each(:order) AS told "
            "CROSS JOIN item ON item.owner = :owner AND item.digest = told.value",
            {"request": request, "owner": owner, "order": json_bytes(order).decode()},
        ),
    ]


def pruned(bounds: AnswerBounds, now_s: float) -> list[Statement]:
    """Return the statements that delete answers and conversations beyond the limits. Each run
    deletes only some of them."""
    before, values = f"{AGE_NOW.format(now=':now')} - :age", {"now": now_s, "age": bounds.age_s}
    rows = f"(SELECT max(0, min({PRUNED_ROWS}, total - :rows, lead)) FROM {_lead('rows')})"
    some = f"(SELECT iif(total > :bytes, {PRUNED_ROWS}, 0) FROM {_lead('bytes')})"
    sized = (
        "SELECT kind, id, sum(size_bytes) OVER (ORDER BY used, kind) - size_bytes AS before FROM "
        f"({_oldest('bytes', some)})"
    )
    enough = f"(SELECT min(total - :bytes, lead) FROM {_lead('bytes')})"
    sizes = [
        Statement(
            f"DELETE FROM {kind} WHERE id IN (SELECT id FROM ({sized}) "
            f"WHERE kind = '{kind}' AND before < {enough})",
            {"bytes": bounds.bytes},
        )
        for kind in _KEPT
    ]
    return [
        Statement(
            f"DELETE FROM answer WHERE id IN (SELECT id FROM answer WHERE kept_at_s < {before} "
            f"ORDER BY kept_at_s LIMIT {PRUNED_ROWS})",
            values,
        ),
        Statement(
            "DELETE FROM conversation WHERE id IN (SELECT id FROM conversation WHERE "
            f"changed_at_s < {before} ORDER BY changed_at_s LIMIT {PRUNED_ROWS})",
            values,
        ),
        # the second statement deletes what the first left of the oldest of both kinds
        *(
            Statement(
                f"DELETE FROM {kind} WHERE id IN (SELECT id FROM ({_oldest('rows', rows)}) "
                f"WHERE kind = '{kind}')",
                {"rows": bounds.rows},
            )
            for kind in _KEPT
        ),
        *sizes * PRUNINGS,
    ]


def _oldest(measure: str, most: str) -> str:
    """Return the query for the oldest rows, at most `most`, of the owner who has the most answers
    and conversations by `measure` (number or bytes)."""
    owner = _most(measure)
    return (
        f"SELECT 'answer' AS kind, id, id AS used, size_bytes FROM answer WHERE owner = {owner} "
        "UNION ALL SELECT 'conversation', id, used, size_bytes + row_bytes FROM conversation "
        f"WHERE owner = {owner} ORDER BY used LIMIT {most}"
    )


def _most(measure: str) -> str:
    """Return the query for the owner who has the greatest `measure` (number or bytes) of answers
    and conversations."""
    return f"(SELECT owner FROM answer_tally ORDER BY {measure} DESC, owner LIMIT 1)"


def _lead(measure: str) -> str:
    """Return the query for two values of `measure` (number or bytes): the total of all owners, and
    the difference between the greatest and the second greatest owner."""
    second = f"SELECT {measure} FROM answer_tally ORDER BY {measure} DESC LIMIT 1 OFFSET 1"
    return (
        f"(SELECT coalesce(sum({measure}), 0) AS total, "
        f"max(1, coalesce(max({measure}), 0) - coalesce(({second}), 0)) AS lead "
        "FROM answer_tally)"
    )


def find(owner: str, request: RequestId) -> list[Statement]:
    """Return the queries for an answer and its items."""
    wanted = {"request": request, "owner": owner}
    return [
        Statement(
            "SELECT answer, listed, labels FROM answer WHERE request = :request AND owner = :owner",
            wanted,
        ),
        Statement(
            "SELECT item.content FROM answer_item JOIN item ON item.id = answer_item.item "
            "WHERE answer_item.answer = (SELECT id FROM answer WHERE request = :request "
            "AND owner = :owner) ORDER BY answer_item.place",
            wanted,
        ),
    ]


def answer_in(answers: Sequence[Sequence[Sequence[Any]]]) -> KeptAnswer | None:
    """Return the answer that the rows of `find` contain; None if no answer was found."""
    rows, items = answers
    if not rows:
        return None
    answer, listed, labels = rows[0]
    return KeptAnswer(answer, tuple(item for (item,) in items), listed, labels)


def labelled(owner: str, request: RequestId, labels: bytes) -> Statement:
    """Return the statement that replaces an answer's labels."""
    return Statement(
        "UPDATE answer SET labels = :labels, row_bytes = row_bytes - length(labels) + :length "
        "WHERE request = :request AND owner = :owner",
        {"labels": labels, "length": len(labels), "request": request, "owner": owner},
    )


def removed(owner: str, request: RequestId) -> Statement:
    """Return the statement that deletes an answer."""
    return Statement("DELETE FROM answer WHERE request = ? AND owner = ?", (request, owner))


def listed(owner: str, query: ListedQuery) -> Statement:
    """Return the query for the owner's listed answers, in order: request, created, id."""
    sign, order = ("<", "DESC") if query.descends else (">", "ASC")
    # parsed by SQLite like the rows: two parsers may read a number differently
    behind = "json_extract(:after, '$.created'), json_extract(:after, '$.id')"
    return Statement(
        "SELECT request, created, name FROM (SELECT request, labels, "
        + ", ".join(
            f"json_extract(CAST(listed AS TEXT), '$.{key}') AS {column}"
            for key, column in (("created", "created"), ("id", "name"), ("model", "model"))
        )
        + " FROM answer WHERE owner = :owner AND listed != x'') "
        f"WHERE (:after IS NULL OR (created, name) {sign} ({behind})) "
        "AND (:model IS NULL OR model = :model) "
        "AND NOT EXISTS (SELECT 1 FROM json_each(:labels) AS wanted WHERE NOT EXISTS "
        "(SELECT 1 FROM json_each(iif(labels = x'', '{}', CAST(labels AS TEXT))) AS label "
        "WHERE label.key = wanted.key AND label.value = wanted.value)) "
        f"ORDER BY created {order}, name {order} LIMIT :limit",
        {
            "owner": owner,
            "after": None if query.after is None else query.after.decode(),
            "model": query.model,
            "labels": json_bytes(dict(query.labels)).decode(),
            "limit": query.limit,
        },
    )
