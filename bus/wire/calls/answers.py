"""Calls about stored answers. Pure. `request` is the request that made the answer; `owner` is the
id of an API key, or "" for the owner of the node."""

from __future__ import annotations

from pydantic import Field

from bus.wire.ids import RequestId
from bus.wire.messages.wire import Message


class OwnedRecord(Message):
    """Names a record by its owner and by the request that made it."""

    owner: str
    request: RequestId


class Done(Message):
    """The reply to a call that changes or stops something: whether it did."""

    done: bool


class FindAnswer(OwnedRecord):
    """Find a stored answer."""


class StoredAnswer(Message):
    """A stored answer as JSON, with its input items, its row for lists of answers, and the client's
    labels."""

    answer: bytes
    items: tuple[bytes, ...] = ()
    listed: bytes = b""
    labels: bytes = b""


class AnswerFound(Message):
    """The answer; None if this owner has no such answer."""

    answer: StoredAnswer | None = None


class LabelAnswer(OwnedRecord):
    """Replace the labels of a stored answer. `labels` is a JSON object."""

    labels: bytes


class RemoveAnswer(OwnedRecord):
    """Delete a stored answer."""


class StopAnswer(OwnedRecord):
    """Stop an answer that a model is still generating and that will be stored."""


class StopRequest(Message):
    """Stop a request of the node, as if its client had disconnected."""

    request: RequestId


class ListAnswers(Message):
    """List an owner's answers: at most `limit` answers that come after the row `after` and have all
    of `labels`. `model` None: of all models."""

    owner: str
    limit: int = Field(ge=0)
    descends: bool
    after: bytes | None = None
    model: str | None = None
    labels: tuple[tuple[str, str], ...] = ()


class ListedAnswer(Message):
    """An answer in a list, with the time and the id by which lists are ordered."""

    request: RequestId
    created: float | None
    name: str | None


class AnswersFound(Message):
    """The listed answers of one node, in order."""

    rows: tuple[ListedAnswer, ...] = ()
