"""The seam between HTTP and the bus: what every dialect takes and what it gives.

Pure. A dialect parses a body into `GenerationRequest`s and renders the entries of the data
plane back into its own shapes; it knows neither sockets nor models nor the clock. The shell
draws request ids, says what time it is, submits, and sends the bytes.

Order of a stream: `open` once, then `render` and `comment` in any order, then `close` once.
After an error has been rendered (a `Failed` entry or `error`) the stream has ended: all
later calls give no bytes. `ended` is true once every request has had its terminal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from bus.wire.ids import RequestId
from bus.wire.messages.derived import DerivedModel
from bus.wire.messages.requests import GenerationRequest
from bus.wire.messages.tokens import Entry
from gateway.dialects.collect import Collected
from gateway.dialects.faults import HttpFault

if TYPE_CHECKING:
    pass

RETRIED = frozenset((409, 501, 507))
"""What OpenAI's and Anthropic's libraries ask again, unless `x-should-retry` says otherwise, and
what will be the same until somebody changes something."""

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
    inputs: int = 2048
    tools: int = 512
    stops: int = 16
    strict_fields: bool = False


@dataclass(frozen=True, slots=True)
class ParseContext:
    """All that a parser may know beside the body.

    `ids` is drawn from once per request made. `context_tokens` is what the cards say, for the
    text models that are known.
    """

    ids: Iterator[RequestId]
    now_s: float
    context_tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    fingerprint: str = "shoal"
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True)
class Extras:
    """What a client may ask of shoal beyond its dialect (`x_*`, Ollama's `keep_alive`).

    `keep_alive_s` is infinite for "for ever". `says_priority`: the priority is the body's own, and
    no profile or model's card changes it. For `cooldown_s` after the request its client's next one
    is refused. `ignored` are the paths of fields that no type knows, which had no effect;
    `for_thinking` of those that have one in models that think, and in no others.
    """

    client_id: str | None = None
    priority: int = 10
    says_priority: bool = False
    cooldown_s: float = 0.0
    stay_warm_s: float | None = None
    timeout_s: float | None = None
    trace: bool = False
    keep_alive_s: float | None = None
    ignored: tuple[str, ...] = ()
    for_thinking: tuple[str, ...] = ()

    @property
    def wish_s(self) -> float | None:
        """Return how long the model is wished to stay; None where nothing is said of it."""
        return self.stay_warm_s if self.keep_alive_s is None else self.keep_alive_s


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """An answer that later requests may go on from, and the items that it was made from, its own
    and those before, as JSON.

    `listed` is what a list of answers tells it by, as JSON; empty: it is in none. `labels` are its
    client's, as a JSON object, which may change.
    """

    answer: bytes
    items: tuple[bytes, ...]
    listed: bytes = b""
    labels: bytes = b""


NamedItem = tuple[str, bytes]
"""An item's id, and the item as JSON."""


@dataclass(frozen=True, slots=True)
class ConversationTurn:
    """What a conversation gains by a request: its `items`, and those that `said` finds in its
    answer; None where that adds nothing, and neither does the request."""

    conversation: str
    said: Callable[[bytes], tuple[NamedItem, ...] | None]
    items: tuple[NamedItem, ...] = ()


@dataclass(frozen=True, slots=True)
class ToKeep:
    """What is to be kept with an answer, where `keep` asks for it. `previous` names the answer that
    it goes on from; `items` are as in `KeptAnswer`, without those before until it was found.
    `named` are the ids of items that stand for those of kept answers, with the requests of these.
    `listed` and `labels` are as in `KeptAnswer`. `turn` is None where it is of no conversation; its
    items are those of the body, once it was found.
    """

    items: tuple[bytes, ...]
    previous: str | None = None
    keep: bool = True
    named: tuple[tuple[str, RequestId], ...] = ()
    listed: bytes = b""
    labels: bytes = b""
    turn: ConversationTurn | None = None


@dataclass(frozen=True, slots=True)
class Background:
    """A body whose answer is made without its client: the body, and the answer as it is before
    anything of it is."""

    body: bytes
    shown: bytes


@dataclass(frozen=True, slots=True)
class Parsed:
    """A body understood. `model` is the name as the client wrote it, echoed in answers.

    The requests are answered together, in order: choice c of request r is choice
    r * n + c of the answer. `echoes` has the text to put before each request's choices
    (empty when none was asked for); None where the runner tells it. `said_back` are members of the
    answer that the body decides; `to_keep` is None where the dialect keeps no answers. `tells` is
    what an answer has that others have not, in the dialect's own words. `manner` is a sentence that
    ends the system prompt of a conversation, `affinity` a text that requests share which are best
    asked of one instance; empty: none. `cuts`: the oldest turns go of a conversation that is too
    long. `background` is None where the client waits for the answer.
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
    tells: frozenset[str] = frozenset()
    manner: str = ""
    affinity: str = ""
    cuts: bool = False
    background: Background | None = None
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


def headers_of(fault: HttpFault) -> tuple[tuple[str, str], ...]:
    """Return the headers that every dialect sends: `Retry-After` in whole seconds, at least one, or
    that asking again is of no use, where clients would do so by the status alone."""
    headers: list[tuple[str, str]] = [("content-type", "application/json"), *fault.headers]
    if fault.retry_after_s is not None:
        headers.append(("retry-after", str(max(1, math.ceil(fault.retry_after_s)))))
    elif fault.status in RETRIED:
        headers.append(("x-should-retry", "false"))
    if "position" in fault.facts:
        headers.append(("x-queue-position", str(fault.facts["position"])))
    return tuple(headers)


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


class RecallingDialect(Protocol):
    """A dialect whose bodies may go on from answers that are kept, or name items of them."""

    def item_named(self, kept: KeptAnswer, item_id: str) -> bytes | None:
        """Return an item of a kept answer, or of what that was made from; None without it."""
        ...

    def continued(
        self,
        parsed: Parsed,
        previous: KeptAnswer | None,
        limits: Limits,
        named: Mapping[str, bytes],
        conversation: Sequence[bytes] = (),
    ) -> Parsed:
        """Return a body that goes on from `previous`, with all that it was made from, or from the
        items of a conversation, and with the items of `named` where it has their ids. Raises
        `BadRequest` where they are too much together, or one is there twice."""
        ...


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
    `derived`: it is made of another, of which all else is told.
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
    derived: DerivedModel | None = None
    loaded: tuple[LoadedCopy, ...] = ()
