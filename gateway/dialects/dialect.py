"""The interface between the HTTP server and the dialects: the input and output of every dialect.

Pure. A dialect parses a body into `GenerationRequest`s and renders the entries that runners send
into the shapes of its own API. A dialect knows no sockets, models or clock. Its caller, the HTTP
server, makes request ids, passes the time, submits the requests and sends the bytes.

Order of a stream: `open` once, then `render` and `comment` in any order, then `close` once. A
rendered error (a `Failed` entry or `error`) ends the stream: all later calls return no bytes.
`ended` becomes true once the last entry of every request has been rendered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from bus.wire.ids import RequestId
from bus.wire.messages.derived import DerivedModel
from bus.wire.messages.requests import GenerationRequest, Speculate
from bus.wire.messages.tokens import Entry
from gateway.dialects.collect import Collected
from gateway.dialects.faults import HttpFault

RETRIED = frozenset((409, 501, 507))
"""HTTP statuses after which OpenAI's and Anthropic's libraries retry, unless the header
`x-should-retry` is false. shoal sends these statuses also for failures that a retry cannot fix."""

Intent = Literal["generate", "load", "unload"]
"""The purpose of a body. A body that only loads or unloads a model has no requests, so its answer
is rendered without entries."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one body, in addition to its size in bytes.

    `values` counts the values of all arrays and objects, `keys` all names in objects, `objects` all
    arrays and objects. A prompt given as token numbers counts one value per token. Parsing a body
    at these limits blocks the process for less than 0.25 s. `strict_fields` refuses unknown fields.
    """

    depth: int = 64
    values: int = 300_000
    keys: int = 24_000
    objects: int = 24_000
    messages: int = 4096
    prompts: int = 128
    inputs: int = 2048
    tools: int = 512
    stops: int = 16
    strict_fields: bool = False


@dataclass(frozen=True, slots=True)
class ParseContext:
    """The input of a parser in addition to the body.

    The parser takes one of `ids` for each request. `text_models` returns the known text models; few
    bodies need them.
    """

    ids: Iterator[RequestId]
    now_s: float
    text_models: Callable[[], Collection[str]] = tuple
    fingerprint: str = "shoal"
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True)
class Extras:
    """The fields of a body that are not part of its dialect: shoal's `x_*` fields and Ollama's
    `keep_alive`.

    `keep_alive_s` is infinite for "for ever". `says_priority`: the body sets the priority, so no
    client profile or model card changes it. The client's requests are refused for `cooldown_s`
    after this one. `resume`: the answer outlives its runner. `reattach_s`: for how long a
    disconnected client may read its stream again; None: the request ends with its connection.
    `speculate`: how tokens are drafted; None: as the model card says. `ignored` are the paths of
    unknown fields, which had no effect. `for_thinking` are the paths of fields that have an effect
    only in thinking models.
    """

    client_id: str | None = None
    priority: int = 10
    says_priority: bool = False
    cooldown_s: float = 0.0
    stay_warm_s: float | None = None
    timeout_s: float | None = None
    trace: bool = False
    resume: bool = True
    reattach_s: float | None = None
    speculate: Speculate | None = None
    keep_alive_s: float | None = None
    ignored: tuple[str, ...] = ()
    for_thinking: tuple[str, ...] = ()

    @property
    def wish_s(self) -> float | None:
        """Return how long to keep the model loaded, in seconds; None if the body does not say."""
        return self.stay_warm_s if self.keep_alive_s is None else self.keep_alive_s


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """A stored answer that later requests may continue, and its input items as JSON, including
    those of the answers before it.

    `listed` is the answer's row in a list of answers, as JSON; empty if no list contains it.
    `labels` are the client's, as a JSON object; they may change.
    """

    answer: bytes
    items: tuple[bytes, ...]
    listed: bytes = b""
    labels: bytes = b""


NamedItem = tuple[str, bytes]
"""The id of an item, and the item as JSON."""


@dataclass(frozen=True, slots=True)
class ConversationTurn:
    """The items that a request adds to its conversation. `items` are the items of the request.
    `output_items` takes the answer as JSON and returns the items of the answer. It returns None if
    nothing is to be added, not even the request's items."""

    conversation: str
    output_items: Callable[[bytes], tuple[NamedItem, ...] | None]
    items: tuple[NamedItem, ...] = ()


@dataclass(frozen=True, slots=True)
class ToKeep:
    """The data to store with an answer if `keep` is true.

    `previous` names the answer that this one continues. `items` are as in `KeptAnswer`, but without
    those of `previous` until `previous` has been read. `named` has the ids of stored items that the
    body refers to, each with the request that made the item. `listed` and `labels` are as in
    `KeptAnswer`. `turn` is None outside a conversation. It has the body's items only after the
    conversation has been read.
    """

    items: tuple[bytes, ...]
    previous: str | None = None
    keep: bool = True
    named: tuple[tuple[str, RequestId], ...] = ()
    listed: bytes = b""
    labels: bytes = b""
    turn: ConversationTurn | None = None

    @property
    def writes(self) -> bool:
        """Return whether the answer or new items of a conversation must be stored before the client
        reads the end of the answer."""
        return self.keep or self.turn is not None


@dataclass(frozen=True, slots=True)
class Background:
    """A body whose answer is made in the background, as a job. `shown` is the answer that clients
    get until the job starts."""

    body: bytes
    shown: bytes


@dataclass(frozen=True, slots=True)
class Parsed:
    """A parsed body. `model` is the name as the client wrote it; answers repeat it.

    The requests are answered together, in order: choice c of request r is choice r * n + c of the
    answer.

    - `echoes`: the text before each request's choices (empty: none; None: the runner reports it).
    - `echoed_fields`: fields of the answer that the body determines.
    - `to_keep`: None if the dialect stores no answers.
    - `tells`: the optional parts that the answer must have, by names that only the dialect uses.
    - `manner`: a sentence that is added to the end of the system prompt; empty: none.
    - `affinity`: a text shared by requests that are best sent to one instance; empty: none.
    - `cuts`: if the conversation is too long, its oldest turns are cut.
    - `background`: None if the client waits for the answer.
    - `prompt_tokens`: total of all prompts. The HTTP server sets it for a stream once the runners
      reported it; 0 until then.
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
    echoed_fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    to_keep: ToKeep | None = None
    tells: frozenset[str] = frozenset()
    manner: str = ""
    affinity: str = ""
    cuts: bool = False
    background: Background | None = None
    prompt_tokens: int = 0

    @property
    def choices(self) -> int:
        """Return the choices per request; all requests have the same number."""
        return self.requests[0].n if self.requests else 1


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """A failure as HTTP: a real status, headers, and a body in the dialect's envelope."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


def headers_of(fault: HttpFault) -> tuple[tuple[str, str], ...]:
    """Return the headers of the response to a failed request, the same for every dialect.
    `Retry-After` is in whole seconds, at least 1. If there is none, `x-should-retry: false` stops
    clients that would retry because of the status alone."""
    headers: list[tuple[str, str]] = [("content-type", "application/json"), *fault.headers]
    if fault.retry_after_s is not None:
        headers.append(("retry-after", str(max(1, math.ceil(fault.retry_after_s)))))
    elif fault.status in RETRIED:
        headers.append(("x-should-retry", "false"))
    if "position" in fault.facts:
        headers.append(("x-queue-position", str(fault.facts["position"])))
    return tuple(headers)


class StreamRenderer(Protocol):
    """One streamed answer. A renderer has only the state that rendering needs; its caller has the
    socket."""

    @property
    def ended(self) -> bool:
        """Return whether every request has ended, or an error has been rendered."""
        ...

    def open(self) -> bytes:
        """Return the first bytes, to be sent once the runner has accepted the request."""
        ...

    def render(self, entries: Sequence[Entry]) -> bytes:
        """Return the bytes of these entries together; they may be empty. This is the hot path."""
        ...

    def comment(self, text: str) -> bytes:
        """Return a keep-alive or progress message; empty if the dialect has no such messages."""
        ...

    def error(self, fault: HttpFault) -> bytes:
        """Return the bytes that report a failure after the status was sent. Ends the stream."""
        ...

    def close(self) -> bytes:
        """Return the last bytes of a complete stream; no bytes after an error."""
        ...


@runtime_checkable
class DatedRenderer(StreamRenderer, Protocol):
    """A streamed answer in which each piece has a date. Only these renderers are given the time."""

    def at(self, now_s: float) -> None:
        """Set the time of all pieces rendered from now on, in seconds since 1970."""
        ...


class WholeDialect(Protocol):
    """An API whose answers come in one piece, as `application/json`."""

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
        """Return the answer in one piece. No request of `collected` may have failed."""
        ...


class Dialect(WholeDialect, Protocol):
    """One HTTP API for text; its answers come in one piece or as a stream."""

    @property
    def stream_content_type(self) -> str:
        """Return the content type of streamed answers; whole answers are `application/json`."""
        ...

    def stream(self, parsed: Parsed, *, load_s: float = 0.0) -> StreamRenderer:
        """Return a renderer for a streamed answer. `load_s` is how long the model took to load."""
        ...


class KeepingStream(StreamRenderer, Protocol):
    """A stream whose answer may be stored."""

    @property
    def answer(self) -> bytes | None:
        """Return the whole answer once the stream has ended; None before."""
        ...


class RecallingDialect(Protocol):
    """A dialect whose bodies may continue stored answers or refer to items of stored answers."""

    def item_named(self, stored: KeptAnswer, item_id: str) -> bytes | None:
        """Return an item of a stored answer or of its input; None if neither has the item."""
        ...

    def continued(
        self,
        parsed: Parsed,
        previous: KeptAnswer | None,
        limits: Limits,
        named: Mapping[str, bytes],
        conversation: Sequence[bytes] = (),
    ) -> Parsed:
        """Return the request with earlier items before its own: those of the answer `previous` and
        its input, or those of a conversation. `named` are the stored items that the body refers to
        by id. Raises `BadRequest` if the items together exceed a limit, or if an item occurs twice.
        """
        ...


@dataclass(frozen=True, slots=True)
class LoadedCopy:
    """One instance of a model. `expires_at_s` is None or infinite if the instance does not
    expire."""

    size_bytes: int
    accelerator_bytes: int
    context_tokens: int
    expires_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class ModelListing:
    """One model in the lists of models.

    `parameters` is a count (4_000_000). `capabilities` are Ollama's words: completion, tools,
    thinking, insert, vision, embedding. `config` is the model's own configuration. `tensors` are
    (name, type, shape). `config`, `tensors`, `template` and `license` are empty if the files are
    not on this node's disk. `max_tokens` is an answer's limit unless its request sets one. For a
    derived model, `derived` is set and all other fields describe its source.
    """

    id: str
    size_bytes: int
    modified_at_s: float
    digest: str = ""
    family: str = ""
    parameters: int = 0
    quantization: str = ""
    format: Literal["safetensors", "gguf"] = "safetensors"
    context_tokens: int = 0
    capabilities: tuple[str, ...] = ("completion",)
    layers: int = 0
    vocabulary: int = 0
    max_tokens: int | None = None
    template: str = ""
    license: str = ""
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tensors: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    derived: DerivedModel | None = None
    loaded: tuple[LoadedCopy, ...] = ()
