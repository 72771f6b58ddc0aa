"""The data plane: messages between a gateway process and a lead runner.

Pure. DEALER and ROUTER connect directly; a frame is one array (`bus.wire.array_frames`): `[tag,
*fields]`. Pydantic validates messages per request (`Submit`) in full; per token that would cost ten
times as much. Promises: the entries of one request are numbered `seq` = 0, 1, 2, ... without gaps.
Exactly one terminal entry (`Finished` or `Failed`) is last. Every entry costs one credit, except
terminals, `ChoiceEnd` and `PrefillProgress`.
"""

from __future__ import annotations

from typing import Any, Literal

from bus.wire.array_frames import ArrayFrame, Positive
from bus.wire.errors import FailReason, FinishReason, Refusal
from bus.wire.ids import Boot, InstanceId, NodeId, RequestId
from bus.wire.messages.requests import GenerationRequest, Usage
from bus.wire.messages.traces import RankTraced

Channel = Literal["text", "reasoning"]
DATA_PROTOCOL_MIN = 1
DATA_PROTOCOL_MAX = 17
"""Versions of the data plane that this build speaks; every `Hello` has them. 2: `Submit` has the
`sharer`. 3: `prompt_logprobs`, answered by `PromptTokens`; a `question` about the prompt, answered
by `Finished`. 4: regular expressions, grammars and choices as output; `min_tokens`; `InputsPrompt`,
answered by `Vectors`. 5: `effort`, `thinking_budget`, `variables` for the model's template;
`history`, with which the end has the token ids of prompt and answer. 6: a request's own `template`;
`Accepted` names ignored fields. 7: `adapter`. 8: a request that has not begun may be requeued
(`Displaced`); `Submit` has its waiting time. 9: `trace`, answered by `Traced`. 10: a gateway may
`Recall` a request. A running one is preempted as `Suspended`, with its answer so far, which
`Submit` takes to another runner. A choice may end for `memory_pressure` with its text cut off. 11:
each rank of a group reports on a traced request (`RankTraced`). 12: `prediction`; `Usage` counts
drafts. 13: `Submit` asks for an answer that outlives its runner: `Begun` has the tokens of the
prompt, and deltas those of the answer. 14: `speculate`. 15: `mtp`; `Attach`. 16: `Usage` counts
drafts by drafter; `PromptCost`; a `query` of `InputsPrompt`. 17: `block`; costs of proposals."""
CREDIT_WINDOW = 64
"""Delta entries per choice that a runner may send ahead; renewed when half is used."""
TRIAL_TOKENS = 8
"""A suspect is harmless once it has this many tokens (decision 0098)."""

TopLogprob = tuple[int, str, float]
"""(token id, its text, natural log of its probability)."""
RawLogprob = tuple[float, tuple[tuple[int, float], ...]]
"""The log-probability of a token, and the likeliest tokens as (token id, logprob)."""


# --- from a gateway process to a runner -------------------------------------------------


class ChoiceSoFar(ArrayFrame, frozen=True):
    """The answer of a choice so far. `seed`: its random seed. `tokens`: all its tokens; the first
    `sent` of them were sent to the gateway. `logprobs`, if requested: for each token its
    log-probability and the likeliest tokens as (token id, logprob)."""

    seed: int
    tokens: tuple[int, ...]
    sent: int
    logprobs: tuple[RawLogprob, ...] = ()


class AnswerSoFar(ArrayFrame, frozen=True):
    """The state of a request, with which another runner resumes it exactly. `max_tokens`: per
    choice."""

    prompt: tuple[int, ...]
    max_tokens: int
    choices: tuple[ChoiceSoFar, ...]
    usage: Usage

    def for_protocol(self, protocol: int) -> AnswerSoFar:
        """Return the state as this version of the data plane knows it."""
        usage = self.usage.for_protocol(protocol)
        return AnswerSoFar(self.prompt, self.max_tokens, self.choices, usage)


class Hello(ArrayFrame, tag="hello", frozen=True):
    """The gateway's first message of a connection. The runner answers `Welcome` or `Goodbye`."""

    gateway: str
    boot: Boot
    protocol_min: int
    protocol_max: int


class Submit(ArrayFrame, tag="submit", frozen=True):
    """A request, with the credit of each choice and the rest of its deadline. `sharer`: the path
    for fair shares (`bus.wire.shares`); version 1 has none. `waited_ms`: how long a request has
    waited since a runner first had it (`Displaced`), or since a runner had begun it (`Suspended`,
    or a lost runner). Other requests, and versions before 8, have none. `so_far`: the answer so
    far of a request that resumes; its entries continue after that. `resumes`: the runner reports
    the tokens, so that another can resume the request. `deaths`: how many runners were lost with
    it. `suspect`: it may have killed the last one. Not sent to versions before 13."""

    request: GenerationRequest
    generation: int
    credit: int
    remaining_ms: int
    sharer: tuple[str, ...] = ()
    waited_ms: int = 0
    so_far: AnswerSoFar | None = None
    resumes: bool = False
    deaths: int = 0
    suspect: bool = False


class Credit(ArrayFrame, tag="credit", frozen=True):
    """The runner may send `grant` more entries for this choice."""

    request_id: RequestId
    choice: int
    grant: Positive


class Cancel(ArrayFrame, tag="cancel", frozen=True):
    """Stop this request. Its terminal still comes: `Finished` with choices `cancelled`, or `Failed`
    with reason `deadline` if that is why."""

    request_id: RequestId
    why: Literal["client", "deadline", "shutdown"]


class Recall(ArrayFrame, tag="recall", frozen=True):
    """Return this request to the gateway, because its instance is evicted for an urgent model. A
    request that has not begun returns as `Displaced`; with `begun`, a running one returns as
    `Suspended`. If it can't be resumed exactly, it stays, and there is no answer. Not sent to
    versions before 10."""

    request_id: RequestId
    begun: bool


class Ping(ArrayFrame, tag="ping", frozen=True):
    """The gateway lives; sent every second. Its requests are cancelled after 3 s without one."""

    boot: Boot


# --- from a runner to a gateway process ---------------------------------------------------


class Welcome(ArrayFrame, tag="welcome", frozen=True):
    """The runner's identity, and the chosen protocol version."""

    instance: InstanceId
    generation: int
    boot: Boot
    protocol: int


class Goodbye(ArrayFrame, tag="goodbye", frozen=True):
    """The connection is refused, or the runner is ending. `message` says why."""

    message: str


class Accepted(ArrayFrame, tag="accepted", frozen=True):
    """The lead runner owns the request now. `position` 0: it is running or next. `unheeded`: paths
    of fields that have no effect with this model; versions before 6 leave them out. `resumes`: the
    runner will report the tokens as `Submit` asks; engines that can't leave it out."""

    request_id: RequestId
    position: int
    prompt_tokens: int
    unheeded: tuple[str, ...] = ()
    resumes: bool = False


class Begun(ArrayFrame, tag="begun", frozen=True):
    """The first row of a request with `resumes` has begun; sent before its first entry. `prompt`:
    its token ids, packed (`pack_ids`). `seeds`: one per choice."""

    request_id: RequestId
    prompt: bytes
    max_tokens: int
    seeds: tuple[int, ...]
    cached_tokens: int


class Refused(ArrayFrame, tag="refused", frozen=True):
    """The runner refused the request and did nothing. The gateway may try one other runner."""

    request_id: RequestId
    refusal: Refusal


class Displaced(ArrayFrame, tag="displaced", frozen=True):
    """The runner returns a request of which nothing was computed, because a more urgent one takes
    its place, and has forgotten it. The gateway submits it again. Not sent to versions before
    8."""

    request_id: RequestId


class Suspended(ArrayFrame, tag="suspended", frozen=True):
    """The runner returns a running request after a `Recall`, and has forgotten it. The gateway
    submits it again with `so_far`. Not sent to versions before 10."""

    request_id: RequestId
    so_far: AnswerSoFar


SpanName = Literal["template", "queued", "prefill", "decode", "end"]
"""The stages of a lead runner's work on a request. `template`: its text becomes tokens. `queued`:
it waits for a place in the batch. `prefill`: a chunk of its prompt. `decode`: tokens. `end`: from
the last token on, for the last text and for the other choices."""


class TraceSpan(ArrayFrame, frozen=True):
    """The work of a lead runner on one choice from `began_s` to `ended_s`, in seconds since the
    request arrived. It made `tokens` in `steps` steps of the engine; the longest gap between two
    steps was `longest_s`. `computed_s`: the total time of these steps by the engine's own clock.
    Steps are shared with other requests and may overlap."""

    name: SpanName
    choice: int
    began_s: float
    ended_s: float
    tokens: int = 0
    steps: int = 0
    longest_s: float = 0.0
    computed_s: float = 0.0


class Traced(ArrayFrame, tag="traced", frozen=True):
    """The work on a request with a `trace`; sent once, before the step that has its terminal entry.

    The times are the runner's monotonic clock: when the request arrived, when `Accepted` was about
    to be sent, when this message was made. The spans of a choice follow each other without gaps up
    to the last of these times. Only the first `choices` choices have spans. `ranks`: the nodes of a
    group's ranks, in rank order; each reports within a second (`RankTraced`). A single runner, and
    versions before 11, leave it out. Not sent to versions before 9.
    """

    request_id: RequestId
    received_at: float
    accepted_at: float
    told_at: float
    choices: int
    spans: tuple[TraceSpan, ...]
    ranks: tuple[NodeId, ...] = ()


class Pong(ArrayFrame, tag="pong", frozen=True):
    """The answer to `Ping`. `step`: the engine thread's step number, which shows a stuck engine.
    `owes`: the runner has open requests."""

    boot: Boot
    step: int
    owes: bool


class TokenLogprob(ArrayFrame, frozen=True):
    """One token with its text, its log-probability (in nats) and the likeliest others."""

    token_id: int
    text: str
    logprob: float
    top: tuple[TopLogprob, ...]


class TokenDelta(ArrayFrame, tag="t", frozen=True):
    """Some text of one choice. `tokens`: how many of the model's tokens it covers (0 at a flush).
    For a request with `resumes`, `ids` has these tokens, packed (`pack_ids`). `later`: the
    log-probabilities of the last tokens, if these are requested and their text comes with a later
    delta. A resumed request needs them."""

    request_id: RequestId
    seq: int
    choice: int
    channel: Channel
    text: str
    tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()
    ids: bytes = b""
    later: tuple[RawLogprob, ...] = ()


class PromptTokens(ArrayFrame, tag="q", frozen=True):
    """The prompt's tokens from number `start` on, for `prompt_logprobs`. All of them are sent in
    order, before any `TokenDelta`. Token 0 is not predicted, so its log-probability is 0."""

    request_id: RequestId
    seq: int
    choice: int
    start: int
    text: str
    logprobs: tuple[TokenLogprob, ...]


class ToolCallDelta(ArrayFrame, tag="c", frozen=True):
    """Part of a tool call. Only the first delta of a call has `call_id` and `name`; `arguments` are
    fragments of JSON text to be joined. `ids` and `later`: as in `TokenDelta`."""

    request_id: RequestId
    seq: int
    choice: int
    call: int
    call_id: str | None
    name: str | None
    arguments: str
    tokens: int
    ids: bytes = b""
    later: tuple[RawLogprob, ...] = ()


class Vectors(ArrayFrame, tag="v", frozen=True):
    """The vectors of the inputs from number `start` on, in the order of the inputs: little-endian
    32-bit floats. `cut`: the numbers of the truncated inputs."""

    request_id: RequestId
    seq: int
    choice: int
    start: int
    vectors: tuple[bytes, ...]
    cut: tuple[int, ...] = ()


class ChoiceEnd(ArrayFrame, tag="e", frozen=True):
    """One choice is complete. `stop`: the stop string that ended it, if any."""

    request_id: RequestId
    seq: int
    choice: int
    finish_reason: FinishReason
    stop: str | None


class PrefillProgress(ArrayFrame, tag="p", frozen=True):
    """`done` of `total` prompt tokens are in the KV cache."""

    request_id: RequestId
    seq: int
    done: int
    total: int


class PromptAnswer(ArrayFrame, frozen=True):
    """A prompt as the model would read it: its token ids or its text, as the `PromptQuestion` asks;
    or its `PromptCost` as JSON. For a request with a `history`: the ids of history, prompt and
    answer. `context_tokens`: the maximum of prompt and answer together at this instance."""

    token_ids: tuple[int, ...]
    text: str
    context_tokens: int


class Finished(ArrayFrame, tag="f", frozen=True):
    """Terminal: every choice has ended. `prompt` answers a question about the prompt, or has the
    next `history`; else it is left out."""

    request_id: RequestId
    seq: int
    usage: Usage
    prompt: PromptAnswer | None = None


class Failed(ArrayFrame, tag="x", frozen=True):
    """Terminal: the request ended early. `message` may be shown to the client."""

    request_id: RequestId
    seq: int
    reason: FailReason
    message: str
    usage: Usage
    details: dict[str, Any]


Entry = (
    TokenDelta
    | PromptTokens
    | ToolCallDelta
    | Vectors
    | ChoiceEnd
    | PrefillProgress
    | Finished
    | Failed
)


class StepEntries(ArrayFrame, tag="step", frozen=True):
    """All entries of one engine step for one gateway process, in order."""

    step: int
    entries: tuple[Entry, ...]


ToRunner = Hello | Submit | Credit | Cancel | Recall | Ping
ToGateway = (
    Welcome
    | Goodbye
    | Accepted
    | Begun
    | Refused
    | Displaced
    | Suspended
    | Traced
    | RankTraced
    | Pong
    | StepEntries
)
