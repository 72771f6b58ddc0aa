"""The seam between HTTP and the bus: what every dialect takes and what it gives.

Pure. A dialect parses a body into `GenerationRequest`s and renders the entries of the data
plane back into its own shapes; it knows neither sockets nor models nor the clock. The shell
draws request ids, says what time it is, submits, and sends the bytes.

Order of a stream: `open` once, then `render` and `comment` in any order, then `close` once.
After an error has been rendered (a `Failed` entry or `error`) the stream has ended: all
later calls give no bytes. `ended` is true once every request has had its terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from bus.wire.ids import RequestId
from bus.wire.messages.requests import GenerationRequest
from bus.wire.messages.tokens import Entry
from gateway.dialects.collect import Collected
from gateway.dialects.faults import HttpFault

Intent = Literal["generate", "load", "unload"]
"""`load` and `unload` carry no request: the answer is rendered from nothing collected."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one body may ask for, beside its size in bytes."""

    depth: int = 64
    messages: int = 4096
    prompts: int = 128
    tools: int = 512
    stops: int = 16


@dataclass(frozen=True, slots=True)
class ParseContext:
    """All that a parser may know beside the body.

    `ids` is drawn from once per request made. `headers` have lower-case names.
    `context_tokens` is what the cards say, for the models that are known.
    """

    ids: Iterator[RequestId]
    now_s: float
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    path: Mapping[str, str] = field(default_factory=dict[str, str])
    context_tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    fingerprint: str = "shoal"
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True)
class Extras:
    """What a client may ask of shoal beyond its dialect (`x_*`, Ollama's `keep_alive`).

    `keep_alive_s` is infinite for "for ever". `stripped` names the `x_*` fields that mean
    nothing to us: accepted, and told to the log.
    """

    client_id: str | None = None
    priority: int = 10
    stay_warm_s: float | None = None
    cooldown_s: float | None = None
    timeout_s: float | None = None
    trace: bool = False
    keep_alive_s: float | None = None
    stripped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Parsed:
    """A body understood. `model` is the name as the client wrote it, echoed in answers.

    The requests are answered together, in order: choice c of request r is choice
    r * n + c of the answer. `echoes` has the text to put before each request's choices
    (empty when none was asked for).
    """

    requests: tuple[GenerationRequest, ...]
    model: str
    stream: bool
    answer_id: str
    created_at_s: float
    fingerprint: str
    include_usage: bool = False
    extras: Extras = Extras()
    echoes: tuple[str, ...] = ()
    intent: Intent = "generate"

    @property
    def choices(self) -> int:
        """Choices per request; the same for all of them."""
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
        """Whether every request has ended, or an error has been rendered."""
        ...

    def open(self) -> bytes:
        """First bytes, sent as soon as the runner has accepted."""
        ...

    def render(self, entries: Sequence[Entry]) -> bytes:
        """The bytes of these entries together; may be empty. The hot path."""
        ...

    def comment(self, text: str) -> bytes:
        """A keep-alive or a word of progress; empty where the dialect has no comments."""
        ...

    def error(self, fault: HttpFault) -> bytes:
        """A failure after the status has been sent; ends the stream."""
        ...

    def close(self) -> bytes:
        """Last bytes of a stream that ended well; empty after an error."""
        ...


class Dialect(Protocol):
    """One HTTP API for text."""

    @property
    def name(self) -> str:
        """Stable, for metrics and logs."""
        ...

    @property
    def stream_content_type(self) -> str:
        """Of streamed answers; whole ones are `application/json`."""
        ...

    def parse(self, body: bytes, context: ParseContext) -> Parsed:
        """Raises `BadRequest` naming the field, in the client's terms."""
        ...

    def stream(self, parsed: Parsed, *, load_s: float = 0.0) -> StreamRenderer:
        """A renderer for a streamed answer. `load_s` is how long the model took to load."""
        ...

    def render_whole(
        self, parsed: Parsed, collected: Sequence[Collected], *, load_s: float = 0.0
    ) -> bytes:
        """The answer in one piece; no request of `collected` may have failed."""
        ...

    def error(self, fault: HttpFault) -> ErrorAnswer:
        """A failure before the status has been sent."""
        ...


ID_PREFIXES = ("chatcmpl-", "cmpl-")
"""What OpenAI's clients expect in front of an answer's id."""


def request_id_of(answer_id: str) -> RequestId:
    """The request that an answer's id names, with its prefix or without."""
    for prefix in ID_PREFIXES:
        if answer_id.startswith(prefix):
            return RequestId(answer_id.removeprefix(prefix))
    return RequestId(answer_id)
