"""An HTTP API as a table: its paths, their purpose, and the shape of its failures.

Pure. `http.routes` makes the application and the OpenAPI document from these rows and knows no API
by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from bus.wire.ids import ModelId, RequestId
from bus.wire.messages.derived import DerivedModel, DerivedTurn
from bus.wire.messages.readings import PullState
from gateway.dialects.dialect import (
    Dialect,
    ErrorAnswer,
    KeptAnswer,
    Limits,
    ModelListing,
    NamedItem,
    ParseContext,
    WholeDialect,
    headers_of,
)
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFault

if TYPE_CHECKING:
    from pydantic import BaseModel


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A path of an API, and its description in the API reference."""

    path: str
    summary: str


@dataclass(frozen=True, slots=True)
class Generates(Endpoint):
    """`POST path` generates text.

    `body` is the pydantic model that parses the body. `answer` is the type of a whole answer,
    `event` the type of the JSON in each event or line of a stream, except errors. `ends_with` is
    the data of a stream's last event if that is not JSON.
    """

    dialect: Dialect
    body: type[BaseModel]
    answer: Any
    event: Any
    ends_with: str = ""


@dataclass(frozen=True, slots=True)
class ReadsPrompt(Endpoint):
    """`POST path` reports a prompt as the model reads it, and generates nothing. `body` is the
    pydantic model that parses the body, `answer` the type of the answer. The parsed requests only
    ask the runner about their prompts."""

    dialect: WholeDialect
    body: type[BaseModel]
    answer: Any


@dataclass(frozen=True, slots=True)
class Embeds(Endpoint):
    """`POST path` makes vectors from texts, or scores documents. `body` is the pydantic model that
    parses the body, `answer` the type of the answer."""

    dialect: WholeDialect
    body: type[BaseModel]
    answer: Any


@dataclass(frozen=True, slots=True)
class ListsModels(Endpoint):
    """`GET path` lists all models; `answer` is the type of its answer. `waits`: the answer waits
    until the list is complete."""

    render: Callable[[Sequence[ModelListing], float], bytes]
    answer: Any
    waits: bool = True


@dataclass(frozen=True, slots=True)
class PagesModels(Endpoint):
    """`GET path` lists one page of the models; `answer` is the type of its answer. `render` gets
    the query and raises `BadRequest` naming one of its fields."""

    render: Callable[[Sequence[ModelListing], Mapping[str, str]], bytes]
    answer: Any


@dataclass(frozen=True, slots=True)
class ShowsModel(Endpoint):
    """`GET path` describes the model named by the path's `{name}`; `answer` is the type of its
    answer."""

    render: Callable[[ModelListing], bytes]
    answer: Any


@dataclass(frozen=True, slots=True)
class AskedModel:
    """A parsed body about one model: the model's name, whether the client wants a verbose answer or
    a stream, and the paths of fields without effect (`Extras.ignored`)."""

    name: str
    verbose: bool = False
    stream: bool = False
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AsksOfModel(Endpoint):
    """`POST path` does something with the model that the body names. `body` is the pydantic model
    that parses the body; `parse` returns the language model's name."""

    parse: Callable[[bytes, Limits], AskedModel]
    body: type[BaseModel]


@dataclass(frozen=True, slots=True)
class ShowsAsked(AsksOfModel):
    """`POST path` describes the model; `shown` is the type of its answer."""

    render: Callable[[ModelListing], bytes]
    shown: Any


@dataclass(frozen=True, slots=True)
class FetchesModel(AsksOfModel):
    """`POST path` pulls a model. `answer` renders the final report that the model is on the disk.
    `line` renders progress as a line of a stream, `error_line` a failure. `shown` is the type of
    the answer, `event` the type of a line."""

    answer: Callable[[], bytes]
    line: Callable[[PullState], bytes]
    error_line: Callable[[HttpFault], bytes]
    streams: str
    shown: Any
    event: Any


@dataclass(frozen=True, slots=True)
class DeletesModel(AsksOfModel):
    """`DELETE path` deletes the model from this node's disk; its answer is empty."""


@dataclass(frozen=True, slots=True)
class AskedDerivation:
    """A parsed body about a new derived model: its name, its source (the model that it is made
    from), and its changes to the source (`DerivedModel`). If `system` is None, it has the source's
    system prompt. `adapter` names an adapter of the base model; if empty, it has the source's
    adapter. `is_copy`: the model equals its source and only has another name."""

    name: ModelId
    source: str
    system: str | None = None
    turns: tuple[DerivedTurn, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    license: str = ""
    adapter: str = ""
    is_copy: bool = False
    stream: bool = True
    ignored: tuple[str, ...] = ()


Derive = Callable[[AskedDerivation, ModelId, DerivedModel | None, float], DerivedModel]
"""Makes a derived model from four values: the parsed body, the base model, its source (None unless
that is itself a derived model), and the time in seconds since 1970. Raises BadRequest."""


@dataclass(frozen=True, slots=True)
class DerivesModel(Endpoint):
    """`POST path` makes a derived model. `lines` are the lines of a stream; the last one is also
    the whole answer. If there are no lines, the answer is empty. `shown` is the type of a line."""

    parse: Callable[[bytes, Limits], AskedDerivation]
    body: type[BaseModel]
    derive: Derive
    lines: tuple[bytes, ...] = ()
    streams: str = ""
    shown: Any = None


@dataclass(frozen=True, slots=True)
class MadeInBackground:
    """How to render answers that are made in the background, as jobs. `stands` renders an
    unfinished answer with the state and the error of its job. `is_made` reports whether an answer
    is complete. `last_event` renders the last event of a stream whose answer was never completed;
    it gets the event's number."""

    stands: Callable[[bytes, str, Mapping[str, Any] | None], bytes]
    is_made: Callable[[bytes], bool]
    last_event: Callable[[bytes, int], bytes]


@dataclass(frozen=True, slots=True)
class KeptShapes:
    """The types of the HTTP answers about stored answers. `answer` is the type of a stored answer,
    `deleted` for a deletion, `items` for a list of items. `event` is the type of a stream's event;
    None if there are no streams. `listing` is the type of a list of answers; None if answers are
    not listed."""

    answer: Any
    deleted: Any
    items: Any
    event: Any = None
    listing: Any = None


@dataclass(frozen=True, slots=True)
class KeepsAnswers(Endpoint):
    """Below `path` clients read, delete and cancel stored answers by their ids, and list their
    input items.

    `what` is the name of such an answer in error messages. `items` renders the input items for a
    query; their path is `items_at`, below the answer's. `answer` renders the stored answer;
    `replayed` renders it again as a stream of events for a query (None: not offered). `background`:
    how to render answers made in the background; None if there are none.
    """

    what: str
    items: Callable[[KeptAnswer, Mapping[str, str]], bytes]
    deleted: Callable[[str], bytes]
    shown: KeptShapes
    answer: Callable[[KeptAnswer], bytes] = attrgetter("answer")
    items_at: str = "input_items"
    replayed: Callable[[KeptAnswer, Mapping[str, str]], bytes] | None = None
    background: MadeInBackground | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list of objects with ids. `has_more`: more objects follow."""

    shown: Sequence[Mapping[str, Any]]
    has_more: bool


@dataclass(frozen=True, slots=True)
class AskedList:
    """A query about a list of stored answers: at most `limit` answers, after the answer with the id
    `after`, of this model, with these labels."""

    limit: int
    descends: bool
    after: str | None
    model: str | None
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepsListed(KeepsAnswers):
    """Stored answers that `GET path` lists. `POST path` generates them, so the same path is also in
    a `Generates` row. `POST` below the path sets an answer's labels. No answer can be cancelled.
    Each listed answer has `created`, `id` and `model`.

    `query` parses the query of a list; `listing` renders a page. `labels` parses the labels in a
    body of the type `body`. Both parsers raise `BadRequest`.
    """

    query: Callable[[Mapping[str, str]], AskedList]
    listing: Callable[[Sequence[KeptAnswer], bool], bytes]
    labels: Callable[[bytes, Limits], bytes]
    body: type[BaseModel]


@dataclass(frozen=True, slots=True)
class AskedItems:
    """A parsed body about a conversation. `items` are its items as JSON, with ids made from
    `request`; `named` is as in `ToKeep`; `labels` is a JSON object; `ignored` are the paths of
    fields without effect (`Extras.ignored`)."""

    request: RequestId
    items: tuple[bytes, ...]
    named: tuple[tuple[str, RequestId], ...] = ()
    labels: bytes = b""
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AskedPage:
    """A query about a list of items: at most `limit`, after the item with the id `after` (empty:
    from the first item on). `includes` names optional parts of the items."""

    limit: int
    descends: bool
    after: str
    includes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationShapes:
    """How a dialect parses and renders conversations. The parsers raise `BadRequest`.

    `begun` and `added` parse bodies with new items; `page` parses a query. `item_named` returns an
    item of a stored answer by its id. `resolved` replaces references by the stored items.
    `conversation` renders a conversation from its request, its time in seconds since 1970 and its
    labels.
    """

    begun: Callable[[bytes, ParseContext], AskedItems]
    added: Callable[[bytes, ParseContext], AskedItems]
    item_named: Callable[[KeptAnswer, str], bytes | None]
    resolved: Callable[[AskedItems, Mapping[str, bytes]], tuple[NamedItem, ...]]
    labels: Callable[[bytes, Limits], bytes]
    page: Callable[[Mapping[str, str], Sequence[str]], AskedPage]
    conversation: Callable[[RequestId, float, bytes], bytes]
    removed: Callable[[str], bytes]
    items: Callable[[Sequence[bytes], bool, Collection[str]], bytes]
    item: Callable[[bytes, Collection[str]], bytes]


@dataclass(frozen=True, slots=True)
class KeepsConversations(Endpoint):
    """At `path` clients begin conversations. Below it they read, label and delete one conversation
    by its id, and add, list, read and delete the items of that conversation.

    `body`, `labels_body` and `items_body` are the types that parse the bodies. `answer`, `removed`
    and `listing` are the types of a conversation, of its deletion and of a list of its items.
    """

    shapes: ConversationShapes
    body: type[BaseModel]
    labels_body: type[BaseModel]
    items_body: type[BaseModel]
    answer: Any
    removed: Any
    listing: Any


@dataclass(frozen=True, slots=True)
class Says(Endpoint):
    """`GET path` always returns the same answer, of the type `shown`."""

    answer: bytes
    shown: Any


@dataclass(frozen=True, slots=True)
class ErrorEnvelope:
    """The form of an API's errors. `shape` is the type of their bodies, and `body` makes such a
    body. `id_key` is the key of the request's id in that body, next to the error; empty if the body
    has no request id."""

    shape: type
    body: Callable[[HttpFault], Mapping[str, Any]]
    id_key: str = ""

    def answer(self, fault: HttpFault, request_id: str = "") -> ErrorAnswer:
        """Return the HTTP answer to a failed request of which no byte was answered yet."""
        id_field = {self.id_key: request_id} if self.id_key and request_id else {}
        body = json_bytes({**self.body(fault), **id_field})
        return ErrorAnswer(fault.status, headers_of(fault), body)


@dataclass(frozen=True, slots=True)
class Api:
    """One HTTP API. The answer of the root path lists the API's first three endpoints.

    Errors of paths that begin with one of `prefixes` have this API's form. All endpoints can also
    be reached below the path `also_under`. The id of an answer is one of `id_prefixes`, followed by
    the request's id. If another API has the same path, requests with the header `marked_by` go to
    this API; errors of such requests below `marked_prefixes` have this API's form. Clients of this
    API read the request id from the header `id_header` as well as from `x-request-id`.
    """

    title: str
    envelope: ErrorEnvelope
    endpoints: tuple[
        Generates
        | ReadsPrompt
        | Embeds
        | ListsModels
        | PagesModels
        | ShowsModel
        | ShowsAsked
        | FetchesModel
        | DeletesModel
        | DerivesModel
        | KeepsAnswers
        | KeepsConversations
        | Says,
        ...,
    ]
    prefixes: tuple[str, ...] = ()
    also_under: str = ""
    id_prefixes: tuple[str, ...] = ()
    marked_by: str = ""
    marked_prefixes: tuple[str, ...] = ()
    id_header: str = ""
