"""Calls about stored conversations. Pure. `request` is the request that began the conversation."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bus.wire.calls.answers import OwnedRecord
from bus.wire.ids import RequestId
from bus.wire.messages.wire import Message

Added = Literal["added", "gone", "full", "there"]
"""The result of adding items. `gone`: the conversation does not exist. `full`: it would exceed its
limits. `there`: it already has an item of the same name."""


class FindConversation(OwnedRecord):
    """Find a conversation, without its items."""


class StoredConversation(Message):
    """A conversation without its items. `labels` is a JSON object; `items` is their number."""

    created_at_s: float
    labels: bytes
    items: int
    size_bytes: int


class ConversationFound(Message):
    """The conversation; None if this owner has no such conversation."""

    conversation: StoredConversation | None = None


class ReadItems(OwnedRecord):
    """Read all items of a conversation. Items that runs of the job `job` added are left out ("": no
    item is left out)."""

    job: str = ""


class ReadPage(OwnedRecord):
    """Read at most `limit` + 1 items after the item `after` ("": from the beginning)."""

    limit: int = Field(ge=0)
    after: str = ""
    descends: bool = False


class ItemsFound(Message):
    """Items as JSON, in order; None if the conversation or the item `after` does not exist."""

    items: tuple[bytes, ...] | None = None


class ReadItem(OwnedRecord):
    """Read the item `name`. The reply has one item, or none if it does not exist."""

    name: str


class LabelConversation(OwnedRecord):
    """Replace the labels of a conversation. `labels` is a JSON object."""

    labels: bytes


class RemoveConversation(OwnedRecord):
    """Delete a conversation with its items."""


class RemoveItem(OwnedRecord):
    """Delete the item `name`."""

    name: str


class AddItems(OwnedRecord):
    """Add items, each with its name, as the request `run`: all or none."""

    items: tuple[tuple[str, bytes], ...]
    run: RequestId


class ItemsAdded(Message):
    """The result of adding items."""

    added: Added


class EndTurn(OwnedRecord):
    """Add the items of a complete answer. The request `run` made the answer, as a run of the job
    `job`."""

    items: tuple[tuple[str, bytes], ...]
    run: RequestId
    job: RequestId
