"""What a response adds to its conversation: the items of its input, and those of its output.

Pure. A response that failed or was cancelled adds nothing, so that it may be asked for again. An
item is in a conversation once, by its id.
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
"""How a response has ended that adds to its conversation."""


def begun_turn(conversation: str) -> ConversationTurn:
    """Return the turn of a request in a conversation, before that was found."""
    return ConversationTurn(conversation, output_added)


def turn_of(
    turn: ConversationTurn, before: Sequence[bytes], own: Sequence[bytes]
) -> ConversationTurn:
    """Return the turn with the request's own items. BadRequest where one is there already."""
    return replace(turn, items=named_items(own, {_id_of(one) for one in before}, "input"))


def named_items(found: Sequence[bytes], there: Iterable[str], field: str) -> tuple[NamedItem, ...]:
    """Return items with their ids. BadRequest where an id is among those there, or twice here."""
    known = set(there)
    named: list[NamedItem] = []
    for index, item in enumerate(found):
        item_id = _id_of(item)
        if item_id in known:
            text = (
                f"Duplicate item found with id {item_id[:80]}. Remove duplicate items from your "
                "input and try again"
            )
            raise bad_field(f"{field}[{index}]", text)
        known.add(item_id)
        named.append((item_id, item))
    return tuple(named)


def output_added(answer: bytes) -> tuple[NamedItem, ...] | None:
    """Return the items of a response's output; None where it adds nothing."""
    response = cast(dict[str, Any], orjson.loads(answer))
    if response["status"] not in _ADDS:
        return None
    return tuple((str(item["id"]), json_bytes(item)) for item in response["output"])


def _id_of(item: bytes) -> str:
    return str(orjson.loads(item)["id"])
