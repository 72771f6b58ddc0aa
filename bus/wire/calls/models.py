"""Calls about the model files on a node's disk, and about pulls to it. Pure."""

from __future__ import annotations

from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.wire import Message


class DeleteModel(Message):
    """Delete a model from the node's disk."""

    model: ModelId


class Removal(Message):
    """The result of deleting a model on one node. If the model stays, `why` says why; empty if it
    is deleted."""

    node: NodeId
    name: str
    deleted: bool
    size_bytes: int = 0
    folder: str = ""
    why: str = ""


class ReadCard(Message):
    """Read the card of a model that is complete on the node."""

    model: ModelId


class WriteCard(Message):
    """Write the card of a model, with the time `at_s` of its writing."""

    model: ModelId
    text: str
    at_s: float


class RemoveCard(Message):
    """Delete the card of a model."""

    model: ModelId


class CardOnNode(Message):
    """The card of a model on one node: its `text` (None without a card), the time at which it was
    written, and its `folder`.

    `kept`: why the card cannot be changed on that node (empty: it can). `unknown`: why the node did
    not answer. `done`: the card was changed just now.
    """

    node: NodeId
    name: str
    folder: str
    text: str | None = None
    at_s: float = 0.0
    kept: str = ""
    unknown: str = ""
    done: bool = False


class CancelPull(Message):
    """End the node's pulls of a model and delete its partial files."""

    model: ModelId


class PausePull(Message):
    """Stop the node's pulls of a model until `ResumePull`."""

    model: ModelId


class ResumePull(Message):
    """Continue a pull of the model that failed or was paused."""

    model: ModelId


class PullResult(Message):
    """The result on one node. `why`: the reason why nothing changed; empty if it did.
    `deleted_bytes`: the size of the deleted partial files."""

    deleted_bytes: int = 0
    why: str = ""
