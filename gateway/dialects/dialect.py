"""The seam between HTTP and the bus: what every dialect takes and what it gives.

Pure. A dialect parses a body into `GenerationRequest`s and renders the entries of the data
plane back into its own shapes; it knows neither sockets nor models nor the clock. The shell
draws request ids, says what time it is, submits, and sends the bytes.

Order of a stream: `open` once, then `render` and `comment` in any order, then `close` once.
After an error has been rendered (a `Failed` entry or `error`) the stream has ended: all
later calls give no bytes. `ended` is true once every request has had its terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from bus.wire.ids import RequestId
from bus.wire.messages.requests import GenerationRequest
from bus.wire.messages.tokens import Entry
from gateway.dialects.collect import Collected
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFault, headers_of

if TYPE_CHECKING:
    from pydantic import BaseModel

Intent = Literal["generate", "load", "unload"]
"""`load` and `unload` carry no request: the answer is rendered from nothing collected."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one body may ask for, beside its size in bytes.

    `values` are those of all arrays and objects, `keys` all names in objects, `objects` all arrays
    and objects; a prompt as token numbers takes a value each. Reading a body of that many holds
    the interpreter for less than 0.25 s. `strict_fields` refuses fields that no type knows.
    """

    depth: int = 64
    values: int = 300_000
    keys: int = 24_000
    objects: int = 24_000
    messages: int = 4096
    prompts: int = 128
    tools: int = 512
    stops: int = 16
    strict_fields: bool = False


@dataclass(frozen=True, slots=True)
class ParseContext:
    """All that a parser may know beside the body.

    `ids` is drawn from once per request made. `context_tokens` is what the cards say, for the
    models that are known.
    """

    ids: Iterator[RequestId]
    now_s: float
    context_tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    fingerprint: str = "shoal"
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True)
class Extras:
    """What a client may ask of shoal beyond its dialect (`x_*`, Ollama's `keep_alive`).

    `keep_alive_s` is infinite for "for ever". `ignored` are the paths of fields that no type knows,
    which had no effect.
    """

    client_id: str | None = None
    priority: int = 10
    stay_warm_s: float | None = None
    timeout_s: float | None = None
    keep_alive_s: float | None = None
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """An answer that later requests may go on from, and the items that it was made from, its own
    and those before, as JSON."""

    answer: bytes
    items: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ToKeep:
    """What is to be kept with an answer, where `keep` asks for it. `previous` names the answer that
    it goes on from; `items` are as in `KeptAnswer`, without those before until it was found."""

    items: tuple[bytes, ...]
    previous: str | None = None
    keep: bool = True


@dataclass(frozen=True, slots=True)
class Parsed:
    """A body understood. `model` is the name as the client wrote it, echoed in answers.

    The requests are answered together, in order: choice c of request r is choice
    r * n + c of the answer. `echoes` has the text to put before each request's choices
    (empty when none was asked for); None where the runner tells it. `said_back` are members of the
    answer that the body decides; `to_keep` is None where the dialect keeps no answers.
    `prompt_tokens` is how many tokens the prompts have together: the shell sets it for a stream,
    once the runners have said so; 0 until then.
    """

    requests: tuple[GenerationRequest, ...]
    model: str
    stream: bool
    answer_id: str
    created_at_s: float
    fingerprint: str
    include_usage: bool = False
    extras: Extras = Extras()
    echoes: tuple[str | None, ...] = ()
    intent: Intent = "generate"
    said_back: Mapping[str, Any] = field(default_factory=dict[str, Any])
    to_keep: ToKeep | None = None
    prompt_tokens: int = 0

    @property
    def choices(self) -> int:
        """Return the choices per request; the same for all of them."""
        return self.requests[0].n if self.requests else 1


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """A failure as HTTP: a real status, headers, and a body in the dialect's envelope."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class StreamRenderer(Protocol):
    """One streamed answer. Holds only what rendering needs; the shell holds the socket."""

    @property
    def ended(self) -> bool:
        """Return whether every request has ended, or an error has been rendered."""
        ...

    def open(self) -> bytes:
        """Return the first bytes, sent as soon as the runner has accepted."""
        ...

    def render(self, entries: Sequence[Entry]) -> bytes:
        """Return the bytes of these entries together; may be empty. The hot path."""
        ...

    def comment(self, text: str) -> bytes:
        """Return a keep-alive or a word of progress; empty where the dialect has no comments."""
        ...

    def error(self, fault: HttpFault) -> bytes:
        """Return the bytes of a failure after the status has been sent; ends the stream."""
        ...

    def close(self) -> bytes:
        """Return the last bytes of a stream that ended well; empty after an error."""
        ...


@runtime_checkable
class DatedRenderer(StreamRenderer, Protocol):
    """A streamed answer that says when each piece of it was made; others are told no time."""

    def at(self, now_s: float) -> None:
        """Take the seconds since 1970 at which all that is rendered from here on is made."""
        ...


class WholeDialect(Protocol):
    """One way of asking whose answers come in one piece, as `application/json`."""

    @property
    def name(self) -> str:
        """Return the dialect's name; stable, for metrics and logs."""
        ...

    def parse(self, body: bytes, context: ParseContext) -> Parsed:
        """Parse a body. Raises `BadRequest` naming the field, in the client's terms."""
        ...

    def render_whole(
        self, parsed: Parsed, collected: Sequence[Collected], *, load_s: float = 0.0
    ) -> bytes:
        """Return the answer in one piece; no request of `collected` may have failed."""
        ...


class Dialect(WholeDialect, Protocol):
    """One HTTP API for text: answers come in one piece, or as a stream."""

    @property
    def stream_content_type(self) -> str:
        """Return the content type of streamed answers; whole ones are `application/json`."""
        ...

    def stream(self, parsed: Parsed, *, load_s: float = 0.0) -> StreamRenderer:
        """Return a renderer for a streamed answer. `load_s` is how long the model took to load."""
        ...


class KeepingStream(StreamRenderer, Protocol):
    """A stream whose answer may be kept."""

    @property
    def answer(self) -> bytes | None:
        """Return the answer as it would be told whole, once the stream has ended; else None."""
        ...


class KeepingDialect(Dialect, Protocol):
    """A dialect whose answers may be kept and gone on from."""

    def stream(self, parsed: Parsed, *, load_s: float = 0.0) -> KeepingStream:
        """Return a renderer for a streamed answer, which gives the whole at its end."""
        ...

    def continued(self, parsed: Parsed, previous: KeptAnswer, limits: Limits) -> Parsed:
        """Return a body that goes on from `previous`, with all that it was made from. Raises
        `BadRequest` where they are too much together."""
        ...


# --- an API as a table ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadedCopy:
    """One loaded copy. `expires_at_s` None or infinite: it stays."""

    size_bytes: int
    accelerator_bytes: int
    context_tokens: int
    expires_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class ModelListing:
    """What the listings tell of one model.

    `parameters` is a count (4_000_000). `capabilities` are Ollama's words: completion,
    tools, thinking, insert, vision, embedding. `config` is the model's own configuration, `tensors`
    are (name, type, shape): they, the template and the license are empty where its files are not on
    this node's disk. `max_tokens` is what an answer may have unless its request says it.
    """

    id: str
    size_bytes: int
    modified_at_s: float
    digest: str = ""
    family: str = ""
    parameters: int = 0
    quantization: str = ""
    context_tokens: int = 0
    capabilities: tuple[str, ...] = ("completion",)
    layers: int = 0
    vocabulary: int = 0
    max_tokens: int | None = None
    template: str = ""
    license: str = ""
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tensors: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    loaded: tuple[LoadedCopy, ...] = ()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A path of an API, and its line in the reference."""

    path: str
    summary: str


@dataclass(frozen=True, slots=True)
class Generates(Endpoint):
    """`POST path` generates text; `body` is the model that parses it."""

    dialect: Dialect
    body: type[BaseModel]


@dataclass(frozen=True, slots=True)
class ReadsPrompt(Endpoint):
    """`POST path` tells of a prompt as the model would read it; `body` is the model that parses
    it. Its requests have a question, and nothing is generated."""

    dialect: WholeDialect
    body: type[BaseModel]


@dataclass(frozen=True, slots=True)
class ListsModels(Endpoint):
    """`GET path` tells of all models. `waits`: until it is known which there are."""

    render: Callable[[Sequence[ModelListing], float], bytes]
    waits: bool = True


@dataclass(frozen=True, slots=True)
class PagesModels(Endpoint):
    """`GET path` tells of a page of all models, as its query asks; `render` gets that, raises
    `BadRequest` naming one of its fields."""

    render: Callable[[Sequence[ModelListing], Mapping[str, str]], bytes]


@dataclass(frozen=True, slots=True)
class ShowsModel(Endpoint):
    """`GET path` tells of the model that is the `{name}` in it."""

    render: Callable[[ModelListing], bytes]


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
    """`POST path` tells of the model."""

    render: Callable[[ModelListing], bytes]


@dataclass(frozen=True, slots=True)
class FetchesModel(AsksOfModel):
    """`POST path` answers `done` for a model that is here: as it is, or as a line of a stream."""

    done: bytes
    streams: str


@dataclass(frozen=True, slots=True)
class DeletesModel(AsksOfModel):
    """`DELETE path` deletes the model from this node's disk; its answer is empty."""


@dataclass(frozen=True, slots=True)
class KeepsAnswers(Endpoint):
    """Below `path` kept answers are told, removed and stopped by their ids, and the items that they
    were made from told.

    `what` is an answer's name in a refusal. `items` renders them, as a query has it.
    """

    what: str
    items: Callable[[KeptAnswer, Mapping[str, str]], bytes]
    deleted: Callable[[str], bytes]


@dataclass(frozen=True, slots=True)
class Says(Endpoint):
    """`GET path` always says the same."""

    answer: bytes


@dataclass(frozen=True, slots=True)
class ErrorEnvelope:
    """How failures are told: the name and schema of their bodies, and what makes one.

    `id_key` is where a body has the id of its request, beside the failure; empty: nowhere.
    """

    name: str
    schema: Mapping[str, Any]
    body: Callable[[HttpFault], dict[str, Any]]
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
        | ListsModels
        | PagesModels
        | ShowsModel
        | ShowsAsked
        | FetchesModel
        | DeletesModel
        | KeepsAnswers
        | Says,
        ...,
    ]
    prefixes: tuple[str, ...] = ()
    also_under: str = ""
    id_prefixes: tuple[str, ...] = ()
    marked_by: str = ""
    marked_prefixes: tuple[str, ...] = ()
    id_header: str = ""
