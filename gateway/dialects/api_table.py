"""An HTTP API as a table: its paths, what each of them does, and how its failures are told.

Pure. `http.routes` makes the application and the OpenAPI document of these rows, and knows no API
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
    """A path of an API, and its line in the reference."""

    path: str
    summary: str


@dataclass(frozen=True, slots=True)
class Generates(Endpoint):
    """`POST path` generates text; `body` is the model that parses it, `answer` the type of a whole
    answer, `event` that of the JSON in each event or line of a stream, but for failures;
    `ends_with` is the data of a stream's last event, where that is no JSON."""

    dialect: Dialect
    body: type[BaseModel]
    answer: Any
    event: Any
    ends_with: str = ""


@dataclass(frozen=True, slots=True)
class ReadsPrompt(Endpoint):
    """`POST path` tells of a prompt as the model would read it; `body` is the model that parses
    it, `answer` the type of its answer. Its requests have a question, and nothing is generated."""

    dialect: WholeDialect
    body: type[BaseModel]
    answer: Any


@dataclass(frozen=True, slots=True)
class Embeds(Endpoint):
    """`POST path` makes vectors of texts; `body` is the model that parses it, `answer` the type of
    its answer."""

    dialect: WholeDialect
    body: type[BaseModel]
    answer: Any


@dataclass(frozen=True, slots=True)
class ListsModels(Endpoint):
    """`GET path` tells of all models; `answer` is the type of its answer. `waits`: until it is
    known which there are."""

    render: Callable[[Sequence[ModelListing], float], bytes]
    answer: Any
    waits: bool = True


@dataclass(frozen=True, slots=True)
class PagesModels(Endpoint):
    """`GET path` tells of a page of all models, as its query asks; `render` gets that, raises
    `BadRequest` naming one of its fields. `answer` is the type of its answer."""

    render: Callable[[Sequence[ModelListing], Mapping[str, str]], bytes]
    answer: Any


@dataclass(frozen=True, slots=True)
class ShowsModel(Endpoint):
    """`GET path` tells of the model that is the `{name}` in it; `answer` is the type of its
    answer."""

    render: Callable[[ModelListing], bytes]
    answer: Any


@dataclass(frozen=True, slots=True)
class AskedModel:
    """What a body about one model says: its name, and whether all of it, or a stream, is wanted;
    and the paths of fields without effect (`Extras.ignored`)."""

    name: str
    verbose: bool = False
    stream: bool = False
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AsksOfModel(Endpoint):
    """A path whose body, as `body` has it, names a model: `parse` finds it there."""

    parse: Callable[[bytes, Limits], AskedModel]
    body: type[BaseModel]


@dataclass(frozen=True, slots=True)
class ShowsAsked(AsksOfModel):
    """`POST path` tells of the model; `shown` is the type of its answer."""

    render: Callable[[ModelListing], bytes]
    shown: Any


@dataclass(frozen=True, slots=True)
class FetchesModel(AsksOfModel):
    """`POST path` has a model pulled: `answer` says that it is here, `line` how far it is in a line
    of a stream, `error_line` that it failed. `shown` is the type of the answer, `event` that of a
    line."""

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
    """What a body about a new derived model says: its name, what it is made of, and what it has
    (`DerivedModel`) beside its source's. `system` None: as its source. `adapter` names one of the
    model's that answers; empty: as its source. `is_copy`: it is what its source is, under another
    name."""

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
"""Makes a derived model of what is asked, the model that answers, the source where that is derived
itself, and the time in seconds since 1970. Raises BadRequest."""


@dataclass(frozen=True, slots=True)
class DerivesModel(Endpoint):
    """`POST path` makes a derived model. `lines` are those of a stream, the last of which is the
    answer of one piece; none: the answer is empty. `shown` is the type of a line."""

    parse: Callable[[bytes, Limits], AskedDerivation]
    body: type[BaseModel]
    derive: Derive
    lines: tuple[bytes, ...] = ()
    streams: str = ""
    shown: Any = None


@dataclass(frozen=True, slots=True)
class MadeInBackground:
    """How answers are told that are made without their clients: as one stands whose job is in a
    state and failed with an error, whether anything made it, and where nothing did, the last event
    of its stream, by its number."""

    stands: Callable[[bytes, str, Mapping[str, Any] | None], bytes]
    is_made: Callable[[bytes], bool]
    last_event: Callable[[bytes, int], bytes]


@dataclass(frozen=True, slots=True)
class KeptShapes:
    """The types of what is told of kept answers: of one, of its removal, of a list of its items, of
    an event of its stream (None: it has none), and of a list of them (None: they are not listed).
    """

    answer: Any
    deleted: Any
    items: Any
    event: Any = None
    listing: Any = None


@dataclass(frozen=True, slots=True)
class KeepsAnswers(Endpoint):
    """Below `path` kept answers are told, removed and stopped by their ids, and the items that they
    were made from told.

    `what` is an answer's name in a refusal. `items` renders them, as a query has it; their path
    below an answer's ends with `items_at`. `replayed` tells an answer as a stream of events, as a
    query has it; None: none is told so. `background` None: none is made without its client.
    """

    what: str
    items: Callable[[KeptAnswer, Mapping[str, str]], bytes]
    deleted: Callable[[str], bytes]
    shown: KeptShapes
    told: Callable[[KeptAnswer], bytes] = attrgetter("answer")
    items_at: str = "input_items"
    replayed: Callable[[KeptAnswer, Mapping[str, str]], bytes] | None = None
    background: MadeInBackground | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A piece of a list of objects that have ids, and whether there is more behind it."""

    shown: Sequence[Mapping[str, Any]]
    has_more: bool


@dataclass(frozen=True, slots=True)
class AskedList:
    """What a query about a list of answers says: at most so many, behind the one of that id, of
    this model, with these labels among theirs."""

    limit: int
    descends: bool
    after: str | None
    model: str | None
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepsListed(KeepsAnswers):
    """Kept answers that `GET path` lists beside where they are made (a `Generates` of that path),
    and that `POST` below it labels; none is stopped there.

    What they are listed by has their `created`, `id` and `model`. `asked` reads what a query asks
    for, `listing` renders a page; `labels` reads those of a body, as `body` has it. `asked` and
    `labels` raise `BadRequest`.
    """

    asked: Callable[[Mapping[str, str]], AskedList]
    listing: Callable[[Sequence[KeptAnswer], bool], bytes]
    labels: Callable[[bytes, Limits], bytes]
    body: type[BaseModel]


@dataclass(frozen=True, slots=True)
class AskedItems:
    """What a body about a conversation says: items as JSON, named after `request`, `named` as in
    `ToKeep`; labels as a JSON object; paths without effect (`Extras.ignored`)."""

    request: RequestId
    items: tuple[bytes, ...]
    named: tuple[tuple[str, RequestId], ...] = ()
    labels: bytes = b""
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AskedPage:
    """What a query about a list says: at most so many, behind the one of that id (empty: from the
    first on), and what of them is told beside the usual."""

    limit: int
    descends: bool
    after: str
    includes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationShapes:
    """How a dialect reads and tells conversations; what reads raises `BadRequest`.

    `item_named` finds an item of a kept answer by its id, `resolved` puts such in the place of
    those that are named alone. A conversation is told by its request, its time and its labels.
    """

    begun: Callable[[bytes, ParseContext], AskedItems]
    added: Callable[[bytes, ParseContext], AskedItems]
    item_named: Callable[[KeptAnswer, str], bytes | None]
    resolved: Callable[[AskedItems, Mapping[str, bytes]], tuple[NamedItem, ...]]
    labels: Callable[[bytes, Limits], bytes]
    page: Callable[[Mapping[str, str], Sequence[str]], AskedPage]
    told: Callable[[RequestId, float, bytes], bytes]
    removed: Callable[[str], bytes]
    items: Callable[[Sequence[bytes], bool, Collection[str]], bytes]
    item: Callable[[bytes, Collection[str]], bytes]


@dataclass(frozen=True, slots=True)
class KeepsConversations(Endpoint):
    """At `path` conversations are begun, below it told, labelled and removed by their ids; below
    each of them its items are added, listed, told and removed. `body`, `labels_body` and
    `items_body` are the models that parse the bodies; `answer`, `removed` and `listing` the
    types of a conversation, of its removal, and of a list of its items."""

    shapes: ConversationShapes
    body: type[BaseModel]
    labels_body: type[BaseModel]
    items_body: type[BaseModel]
    answer: Any
    removed: Any
    listing: Any


@dataclass(frozen=True, slots=True)
class Says(Endpoint):
    """`GET path` always says the same, of the type `shown`."""

    answer: bytes
    shown: Any


@dataclass(frozen=True, slots=True)
class ErrorEnvelope:
    """How failures are told: the type of their bodies, and what makes one.

    `id_key` is where a body has the id of its request, beside the failure; empty: nowhere.
    """

    shape: type
    body: Callable[[HttpFault], Mapping[str, Any]]
    id_key: str = ""

    def answer(self, fault: HttpFault, request_id: str = "") -> ErrorAnswer:
        """Return the answer to a failure before anything was sent."""
        named = {self.id_key: request_id} if self.id_key and request_id else {}
        body = json_bytes({**self.body(fault), **named})
        return ErrorAnswer(fault.status, headers_of(fault), body)


@dataclass(frozen=True, slots=True)
class Api:
    """One HTTP API. The first three endpoints are named at the root.

    Failures of paths that begin with one of `prefixes` are in its envelope. `also_under` is a
    path below which all endpoints answer a second time. `id_prefixes` stand before a request's id
    in the id of an answer. Requests with the header `marked_by` to a path of another API that this
    one has too are answered by this one, as are failures of paths below `marked_prefixes`. Its
    clients look for the id of each request in the header `id_header`, beside `x-request-id`.
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
