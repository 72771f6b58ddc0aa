"""The SQL statements and queries for the tables of conversations.

Pure. Each conversation belongs to one owner (an API key), and no other owner can find it. Its items
have distinct names and are listed in the order in which they were added. If a job runs again, the
items of the new run replace those of its earlier runs. The id of a run is the id of the job, or
that id with a number appended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from bus.wire.ids import RequestId
from bus.wire.messages.gateways import CALL_REQUEST_BYTES
from gateway.dialects.dialect import NamedItem
from gateway.dialects.encode import json_bytes
from gateway.records.kept_answers import ITEM_BYTES, NEXT_USE
from gateway.records.statements import Statement

ROW_BYTES = 200
"""Estimated bytes of a conversation without its labels and items."""
MOST_ITEMS = 4096
MOST_BYTES = 8 << 20
"""The maximum size of one conversation in bytes. It is limited because each request that continues
the conversation reads all its items."""
FAR_BYTES = CALL_REQUEST_BYTES - (64 << 10)
"""The maximum bytes of one addition to a conversation that another node stores."""

_MINE = "(SELECT id FROM conversation WHERE request = :request AND owner = :owner)"
_OF_JOB = "(run = :job OR substr(run, 1, length(:job) + 1) = :job || '.')"


@dataclass(frozen=True, slots=True)
class OfOwner:
    """Identifies a conversation by its owner and by the request that created it."""

    owner: str
    request: RequestId

    def values(self, **more: object) -> dict[str, object]:
        """Return the fields and `more` as the named values of a statement."""
        return {"owner": self.owner, "request": self.request, **more}


def begun(
    which: OfOwner, labels: bytes, items: Sequence[NamedItem], now_s: float
) -> list[Statement]:
    """Return the statements that insert a conversation with these items."""
    return [
        Statement(
            "INSERT INTO conversation (request, owner, created_at_s, changed_at_s, used, labels, "
            f"row_bytes) VALUES (:request, :owner, :now, :now, {NEXT_USE}, :labels, :bytes)",
            which.values(now=now_s, labels=labels, bytes=len(labels) + ROW_BYTES),
        ),
        *_items_added(which, items, ""),
    ]


def added(
    which: OfOwner,
    items: Sequence[NamedItem],
    now_s: float,
    *,
    run: RequestId,
    job: RequestId | None = None,
) -> list[Statement]:
    """Return the statements that add the items of the request `run`. Items whose name the
    conversation already has are skipped. The first statement changes a row only if the conversation
    exists; if not, the others change nothing either. If `run` is a run of `job`, the items of the
    job's other runs are deleted.
    """
    statements = [used(which, now_s)]
    if job is not None:
        statements.append(
            Statement(
                f"DELETE FROM conversation_item WHERE conversation = {_MINE} "
                f"AND run != :run AND {_OF_JOB}",
                which.values(run=run, job=job),
            )
        )
    return [*statements, *_items_added(which, items, run)]


def used(which: OfOwner, now_s: float) -> Statement:
    """Return the statement that marks a conversation as the most recently used."""
    return Statement(
        f"UPDATE conversation SET changed_at_s = :now, used = {NEXT_USE} "
        "WHERE request = :request AND owner = :owner",
        which.values(now=now_s),
    )


def _items_added(which: OfOwner, items: Sequence[NamedItem], run: str) -> list[Statement]:
    digests = [blake2b(content, digest_size=16).hexdigest() for _, content in items]
    distinct = dict(zip(digests, (content for _, content in items), strict=True))
    order = [[name, digest] for (name, _), digest in zip(items, digests, strict=True)]
    order_json = json_bytes(order).decode()
    return [
        *(
            Statement(
                "INSERT OR IGNORE INTO item (owner, digest, content, item_bytes) "
                f"SELECT :owner, :digest, :content, :bytes WHERE {_MINE} IS NOT NULL",
                which.values(digest=digest, content=content, bytes=len(content) + ITEM_BYTES),
            )
            for digest, content in distinct.items()
        ),
        Statement(
            "INSERT OR IGNORE INTO conversation_item (conversation, place, name, run, item) "
            f"SELECT {_MINE}, told.key + 1 + coalesce((SELECT max(place) FROM conversation_item "
            f"WHERE conversation = {_MINE}), 0), json_extract(told.value, '$[0]'), :run, item.id "
            "FROM json_each(:order) AS told JOIN item ON item.owner = :owner "
            f"AND item.digest = json_extract(told.value, '$[1]') WHERE {_MINE} IS NOT NULL "
            "ORDER BY told.key",
            which.values(run=run, order=order_json),
        ),
        # contents of skipped items
        Statement(
            "DELETE FROM item WHERE owner = :owner AND uses <= 0 AND digest IN "
            "(SELECT json_extract(value, '$[1]') FROM json_each(:order))",
            {"owner": which.owner, "order": order_json},
        ),
    ]


def find(which: OfOwner) -> Statement:
    """Return the query for a conversation: created_at_s, labels, items, size_bytes."""
    return Statement(
        "SELECT created_at_s, labels, items, size_bytes FROM conversation "
        "WHERE request = :request AND owner = :owner",
        which.values(),
    )


def contents(which: OfOwner, job: str) -> Statement:
    """Return the query for all items in order, except items that runs of `job` added. An empty
    `job` excludes none."""
    return Statement(
        "SELECT item.content FROM conversation_item JOIN item ON item.id = conversation_item.item "
        f"WHERE conversation = {_MINE} AND NOT (:job != '' AND {_OF_JOB}) ORDER BY place",
        which.values(job=job),
    )


def page(which: OfOwner, limit: int, after: str, *, descends: bool) -> Statement:
    """Return the query for some items after the item `after`, or from the first item if `after` is
    empty. The query yields nothing if the item `after` does not exist."""
    sign, order = ("<", "DESC") if descends else (">", "ASC")
    return Statement(
        "SELECT item.content FROM conversation_item JOIN item ON item.id = conversation_item.item "
        f"WHERE conversation = {_MINE} AND (:after = '' OR place {sign} (SELECT place FROM "
        f"conversation_item WHERE conversation = {_MINE} AND name = :after)) "
        f"ORDER BY place {order} LIMIT :limit",
        which.values(after=after, limit=limit),
    )


def named(which: OfOwner, names: Sequence[str]) -> Statement:
    """Return the query for (content, run) of the items with these names."""
    return Statement(
        "SELECT item.content, run FROM conversation_item "
        "JOIN item ON item.id = conversation_item.item "
        f"WHERE conversation = {_MINE} AND name IN (SELECT value FROM json_each(:names))",
        which.values(names=json_bytes(list(names)).decode()),
    )


def labelled(which: OfOwner, labels: bytes, now_s: float) -> list[Statement]:
    """Return the statements that replace a conversation's labels. The first statement changes a row
    only if the conversation exists."""
    return [
        Statement(
            "UPDATE conversation SET labels = :labels, "
            "row_bytes = row_bytes - length(labels) + :length "
            "WHERE request = :request AND owner = :owner",
            which.values(labels=labels, length=len(labels)),
        ),
        used(which, now_s),
    ]


def item_removed(which: OfOwner, name: str, now_s: float) -> list[Statement]:
    """Return the statements that delete an item. The first statement changes a row only if the item
    exists."""
    return [
        Statement(
            f"DELETE FROM conversation_item WHERE conversation = {_MINE} AND name = :name",
            which.values(name=name),
        ),
        used(which, now_s),
    ]


def removed(which: OfOwner) -> Statement:
    """Return the statement that deletes a conversation with its items."""
    return Statement(
        "DELETE FROM conversation WHERE request = :request AND owner = :owner", which.values()
    )
