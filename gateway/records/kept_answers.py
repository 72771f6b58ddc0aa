"""Answers that are kept, so that later requests go on from them: what is written and asked.

Pure: SQL and its values. An answer is one owner's, and found by no other. The items of a
conversation are kept once, however many of its answers share them, and go with the last of these.
Bounded in answers, bytes and age: beyond the bounds the oldest go of the owner who has the most, so
that one owner's answers cost another none while the other has fewer. Conversations count among
them, each as old as its last use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from bus.wire.ids import RequestId
from gateway.cluster.options import Options
from gateway.dialects.dialect import KeptAnswer
from gateway.dialects.encode import json_bytes
from gateway.records import age
from gateway.records.statements import Statement

LARGEST_BYTES = 8 << 20
"""A larger answer is not kept, with all that it was made from."""
ROW_BYTES, ITEM_BYTES, PLACE_BYTES = 200, 100, 24
"""What an answer, an item, and an item's place in an answer take beside their content."""
PRUNED_ROWS = 512
"""The most that one pruning removes for each reason, so that none takes long."""
PRUNINGS = 3
"""For bytes: items that are shared free less than was reckoned."""


NEXT_USE = (
    "(SELECT 1 + max(coalesce((SELECT max(id) FROM answer), 0), "
    "coalesce((SELECT max(used) FROM conversation), 0)))"
)
"""The next number of the sequence by which answers and conversations are old, whatever a clock
says."""
_KEPT = ("answer", "conversation")


@dataclass(frozen=True, slots=True)
class AnswerBounds:
    """The most answers of all owners together, and how old they may be."""

    rows: int
    bytes: int
    age_s: float


@dataclass(frozen=True, slots=True)
class ListedQuery:
    """Which answers of a list are asked for: at most so many, behind the one that is listed
    as `after`, of this model, and with these labels among theirs."""

    limit: int
    descends: bool
    after: bytes | None = None
    model: str | None = None
    labels: tuple[tuple[str, str], ...] = ()


def answer_bounds(options: Options) -> AnswerBounds:
    """Return the bounds of a node's kept answers from its options."""
    return AnswerBounds(
        rows=options.answer_rows,
        bytes=options.answer_bytes,
        age_s=options.answer_days * 86_400,
    )


def size_of(kept: KeptAnswer) -> int:
    """Return the bytes of an answer with all that it was made from."""
    beside = len(kept.listed) + len(kept.labels)
    return len(kept.answer) + beside + sum(map(len, kept.items))


def added(owner: str, request: RequestId, kept: KeptAnswer, now_s: float) -> list[Statement]:
    """Return what keeps an answer, in place of one of the same request."""
    order = [blake2b(item, digest_size=16).hexdigest() for item in kept.items]
    items = dict(zip(order, kept.items, strict=True))
    row_bytes = size_of(kept) - sum(map(len, kept.items)) + ROW_BYTES + PLACE_BYTES * len(order)
    values = (request, owner, now_s, kept.answer, kept.listed, kept.labels)
    return [
        Statement("DELETE FROM answer WHERE request = ?", (request,)),
        Statement(
            "INSERT INTO answer (id, request, owner, kept_at_s, answer, listed, labels, row_bytes, "
            f"size_bytes) VALUES ({NEXT_USE}, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*values, row_bytes, size_of(kept) + ROW_BYTES),
        ),
        *(
            Statement(
                "INSERT OR IGNORE INTO item (owner, digest, content, item_bytes) "
                "VALUES (?, ?, ?, ?)",
                (owner, digest, item, len(item) + ITEM_BYTES),
            )
            for digest, item in items.items()
        ),
        # CROSS: each digest is looked up; the planner would go through all items of the owner
        Statement(
            "INSERT INTO answer_item (answer, place, item) "
            "SELECT (SELECT id FROM answer WHERE request = :request), told.key, item.id "
            "FROM json_each(:order) AS told "
            "CROSS JOIN item ON item.owner = :owner AND item.digest = told.value",
            {"request": request, "owner": owner, "order": json_bytes(order).decode()},
        ),
    ]


def pruned(bounds: AnswerBounds, now_s: float) -> list[Statement]:
    """Return what removes answers and conversations beyond the bounds, some at a time."""
    before, values = f"{age.NOW.format(now=':now')} - :age", {"now": now_s, "age": bounds.age_s}
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
        # the second of each removes what the first has left of the oldest of both kinds
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
    """Return the question for the oldest of the owner who has the most, at most so many."""
    owner = _most(measure)
    return (
        f"SELECT 'answer' AS kind, id, id AS used, size_bytes FROM answer WHERE owner = {owner} "
        "UNION ALL SELECT 'conversation', id, used, size_bytes + row_bytes FROM conversation "
        f"WHERE owner = {owner} ORDER BY used LIMIT {most}"
    )


def _most(measure: str) -> str:
    """Return the owner who has the most."""
    return f"(SELECT owner FROM answer_tally ORDER BY {measure} DESC, owner LIMIT 1)"


def _lead(measure: str) -> str:
    """Return what all have together, and by how much the first has more than the second."""
    second = f"SELECT {measure} FROM answer_tally ORDER BY {measure} DESC LIMIT 1 OFFSET 1"
    return (
        f"(SELECT coalesce(sum({measure}), 0) AS total, "
        f"max(1, coalesce(max({measure}), 0) - coalesce(({second}), 0)) AS lead "
        "FROM answer_tally)"
    )


def found(owner: str, request: RequestId) -> list[Statement]:
    """Return the questions for an answer, and for what it was made from."""
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


def told(answers: Sequence[Sequence[Sequence[Any]]]) -> KeptAnswer | None:
    """Return the answer, of what was found; None where there is none."""
    rows, items = answers
    if not rows:
        return None
    answer, listed, labels = rows[0]
    return KeptAnswer(answer, tuple(item for (item,) in items), listed, labels)


def labelled(owner: str, request: RequestId, labels: bytes) -> Statement:
    """Return what gives an answer other labels."""
    return Statement(
        "UPDATE answer SET labels = :labels, row_bytes = row_bytes - length(labels) + :length "
        "WHERE request = :request AND owner = :owner",
        {"labels": labels, "length": len(labels), "request": request, "owner": owner},
    )


def removed(owner: str, request: RequestId) -> Statement:
    """Return what removes an answer."""
    return Statement("DELETE FROM answer WHERE request = ? AND owner = ?", (request, owner))


def listed(owner: str, asked: ListedQuery) -> Statement:
    """Return the question for some of the owner's answers that are in lists, in their order:
    request, created, id."""
    sign, order = ("<", "DESC") if asked.descends else (">", "ASC")
    # read by SQLite as the others are: a number that is read in two ways may not be the same
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
            "after": None if asked.after is None else asked.after.decode(),
            "model": asked.model,
            "labels": json_bytes(dict(asked.labels)).decode(),
            "limit": asked.limit,
        },
    )
