"""The items that a response adds to its conversation: the items of its input and of its output.

Pure. A failed or cancelled response adds nothing, so that the client can send the request again. A
conversation has each item only once, by the item's id.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

import orjson

from gateway.dialects.body import bad_field
from gateway.dialects.dialect import ConversationTurn, NamedItem
from gateway.dialects.encode import json_bytes

_ADDS = ("completed", "incomplete")
"""The statuses with which a response adds its items to its conversation."""


def begun_turn(conversation: str) -> ConversationTurn:
    """Return the turn of a request in its conversation, before the conversation has been read."""
    return ConversationTurn(conversation, output_added)


def turn_of(
    turn: ConversationTurn, before: Sequence[bytes], own: Sequence[bytes]
) -> ConversationTurn:
    """Return `turn` with the request's own items. Raises BadRequest if the conversation (`before`)
    already has an item with the id of one of them."""
    return replace(turn, items=named_items(own, {_id_of(item) for item in before}, "input"))


def named_items(items: Sequence[bytes], there: Iterable[str], field: str) -> tuple[NamedItem, ...]:
    """Return the items with their ids. Raises BadRequest if `there`, the ids of the conversation's
    items, has one of these ids, or if two items have the same id."""
    ids = set(there)
    named: list[NamedItem] = []
    for index, item in enumerate(items):
        item_id = _id_of(item)
        if item_id in ids:
            text = (
                f"Duplicate item found with id {item_id[:80]}. Remove duplicate items from your "
                "input and try again"
            )
            raise bad_field(f"{field}[{index}]", text)
        ids.add(item_id)
        named.append((item_id, item))
    return tuple(named)


def output_added(answer: bytes) -> tuple[NamedItem, ...] | None:
    """Return the items of a response's output; None if the response adds nothing to its
    conversation."""
    response = cast(dict[str, Any], orjson.loads(answer))
    if response["status"] not in _ADDS:
        return None
    return tuple((str(item["id"]), json_bytes(item)) for item in response["output"])


def _id_of(item: bytes) -> str:
    return str(orjson.loads(item)["id"])
