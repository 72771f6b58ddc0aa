"""The data plane: what a gateway process and a lead runner say to each other.

Pure. Direct DEALER <-> ROUTER, one msgpack array per frame: `[tag, *fields]`. What flows
per token is a dataclass packed as a plain array (a pydantic model costs ten times as
much); what flows per request (`Submit`) is validated in full. Promises: entries of one
request are numbered `seq` = 0, 1, 2, ... without gaps; exactly one terminal (`Finished` or
`Failed`) is last; every entry that is neither terminal, `ChoiceEnd` nor
`PrefillProgress` costs one credit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from bus.wire.errors import FailReason, FinishReason, Refusal
from bus.wire.ids import Boot, InstanceId, RequestId
from bus.wire.messages.requests import GenerationRequest, Usage

Channel = Literal["text", "reasoning"]
CREDIT_WINDOW = 64
"""Delta entries per choice that a runner may send ahead; topped up at half."""

TopLogprob = tuple[int, str, float]
"""(token id, its text, natural log of its probability)."""


# --- from a gateway process to a runner -------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """First word of a connection. The runner answers `Welcome` or `Goodbye`."""

    gateway: str
    boot: Boot
    protocol_min: int
    protocol_max: int


@dataclass(frozen=True, slots=True)
class Submit:
    """A request, with the credit of each choice and what is left of its deadline."""

    request: GenerationRequest
    generation: int
    credit: int
    remaining_ms: int


@dataclass(frozen=True, slots=True)
class Credit:
    """`grant` more entries may be sent for this choice."""

    request_id: RequestId
    choice: int
    grant: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop this request; its terminal still comes (`Finished` with choices `cancelled`,
    or `Failed` with reason `deadline` when that is why)."""

    request_id: RequestId
    why: Literal["client", "deadline", "shutdown"]


@dataclass(frozen=True, slots=True)
class Ping:
    """Sent every second; 3 s without one cancels the sender's requests."""

    boot: Boot


# --- from a runner to a gateway process ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class Welcome:
    """Who is speaking, and the protocol version chosen."""

    instance: InstanceId
    generation: int
    boot: Boot
    protocol: int


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The connection is refused, or this runner is leaving. The text says why."""

    message: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """The lead runner owns the request now; `position` 0 means it is running or next."""

    request_id: RequestId
    position: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The request was not taken; nothing was done; it may be tried elsewhere once."""

    request_id: RequestId
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Pong:
    """Answers `Ping`; `step` is the engine's own step number, so that a live main thread
    cannot hide a stuck engine. `owes` says whether any work is open."""

    boot: Boot
    step: int
    owes: bool


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token, its text and log-probability, and the likeliest others."""

    token_id: int
    text: str
    logprob: float
    top: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """Some text of one choice. `tokens` is how many LLM tokens it covers (0 on a flush)."""

    request_id: RequestId
    seq: int
    choice: int
    channel: Channel
    text: str
    tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """Part of a tool call. `call_id` and `name` come in the first delta of a call only;
    `arguments` are fragments of JSON text to be joined."""

    request_id: RequestId
    seq: int
    choice: int
    call: int
    call_id: str | None
    name: str | None
    arguments: str
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """One choice is complete. `stop` is the stop string that ended it, if one did."""

    request_id: RequestId
    seq: int
    choice: int
    finish_reason: FinishReason
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """`done` of `total` prompt tokens are in the KV cache."""

    request_id: RequestId
    seq: int
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Finished:
    """Terminal: every choice has ended."""

    request_id: RequestId
    seq: int
    usage: Usage


@dataclass(frozen=True, slots=True)
class Failed:
    """Terminal: the request ended early, and why. `message` is fit for the client."""

    request_id: RequestId
    seq: int
    reason: FailReason
    message: str
    usage: Usage = field(default_factory=Usage)
    details: dict[str, Any] = field(default_factory=dict[str, Any])


Entry = TokenDelta | ToolCallDelta | ChoiceEnd | PrefillProgress | Finished | Failed
Terminal = Finished | Failed


@dataclass(frozen=True, slots=True)
class StepEntries:
    """All entries that one step made for one gateway process, in order."""

    step: int
    entries: tuple[Entry, ...]


ToRunner = Hello | Submit | Credit | Cancel | Ping
ToGateway = Welcome | Goodbye | Accepted | Refused | Pong | StepEntries

CHANNELS: frozenset[str] = frozenset(get_args(Channel))
