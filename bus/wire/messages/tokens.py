"""The data plane: what a gateway process and a lead runner say to each other.

Pure. Direct DEALER <-> ROUTER, one array per frame (`bus.wire.array_frames`): `[tag, *fields]`.
What flows per request (`Submit`) is validated in full by its model, which per token would cost
ten times as much. Promises: entries of one
request are numbered `seq` = 0, 1, 2, ... without gaps; exactly one terminal (`Finished` or
`Failed`) is last; every entry that is neither terminal, `ChoiceEnd` nor
`PrefillProgress` costs one credit.
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
DATA_PROTOCOL_MAX = 11
"""The versions of the data plane that this build speaks, said in every `Hello`. 2: `Submit` says
who asks. 3: a request may ask for its prompt's log-probabilities, answered as `PromptTokens`, or
have a `question` about its prompt, which `Finished` answers. 4: its text may have to keep to a
regular expression, a grammar or a list of texts, its end may be held back by `min_tokens`, and it
may have an `InputsPrompt`, answered as `Vectors`. 5: it may say how much to think (`effort`,
`thinking_budget`), have `variables` for the model's template, or a `history`, with which its end
tells the token ids of prompt and answer. 6: it may have a `template` of its own, and
`Accepted` says what of it has no effect. 7: it may be for an `adapter` of the model. 8: a request
that has not begun may be given back (`Displaced`), and `Submit` says how long it has waited. 9: a
request may have a `trace`, which is told as `Traced`. 10: a gateway may `Recall` a request; one
that has begun is given back as `Suspended`, with its answer so far, and `Submit` has that. A choice
may end for `memory_pressure`, its text cut. 11: the ranks of a group tell of a traced request
too, each by a `RankTraced`."""
CREDIT_WINDOW = 64
"""Delta entries per choice that a runner may send ahead; topped up at half."""

TopLogprob = tuple[int, str, float]
"""(token id, its text, natural log of its probability)."""


# --- from a gateway process to a runner -------------------------------------------------


class ChoiceSoFar(ArrayFrame, frozen=True):
    """What a choice has made so far. `seed` is that of its chance; `tokens` are all that it made;
    of the entries that they make, the first `sent` were sent. `logprobs`, where they were asked
    for, has for each token its log-probability, and the likeliest, (token id, logprob)."""

    seed: int
    tokens: tuple[int, ...]
    sent: int
    logprobs: tuple[tuple[float, tuple[tuple[int, float], ...]], ...] = ()


class AnswerSoFar(ArrayFrame, frozen=True):
    """All that another runner has to know of a request to go on with it as if it had never been
    elsewhere: the tokens of its prompt as it was read, how many tokens each choice may have, what
    each has made, and what that cost."""

    prompt: tuple[int, ...]
    max_tokens: int
    choices: tuple[ChoiceSoFar, ...]
    usage: Usage


class Hello(ArrayFrame, tag="hello", frozen=True):
    """First word of a connection. The runner answers `Welcome` or `Goodbye`."""

    gateway: str
    boot: Boot
    protocol_min: int
    protocol_max: int


class Submit(ArrayFrame, tag="submit", frozen=True):
    """A request, with the credit of each choice and what is left of its deadline.

    `sharer` is who asks, for an even share (`bus.wire.shares`); version 1 leaves it out.
    `waited_ms` is how long one that was `Displaced` has waited since a runner first had it, one
    that was `Suspended` since then; it is left out where it was neither, and by versions before 8.
    `so_far` is what the answer of one that was `Suspended` has; its entries go on behind that.
    """

    request: GenerationRequest
    generation: int
    credit: int
    remaining_ms: int
    sharer: tuple[str, ...] = ()
    waited_ms: int = 0
    so_far: AnswerSoFar | None = None


class Credit(ArrayFrame, tag="credit", frozen=True):
    """`grant` more entries may be sent for this choice."""

    request_id: RequestId
    choice: int
    grant: Positive


class Cancel(ArrayFrame, tag="cancel", frozen=True):
    """Stop this request; its terminal still comes (`Finished` with choices `cancelled`,
    or `Failed` with reason `deadline` when that is why)."""

    request_id: RequestId
    why: Literal["client", "deadline", "shutdown"]


class Recall(ArrayFrame, tag="recall", frozen=True):
    """Give this request back, for its copy makes way for something urgent: as `Displaced` if it has
    not begun; if it has, and `begun` allows it, as `Suspended`. One that cannot be gone on with
    exactly is not given back, nor answered for. Not sent to versions before 10."""

    request_id: RequestId
    begun: bool


class Ping(ArrayFrame, tag="ping", frozen=True):
    """Sent every second; 3 s without one cancels the sender's requests."""

    boot: Boot


# --- from a runner to a gateway process ---------------------------------------------------


class Welcome(ArrayFrame, tag="welcome", frozen=True):
    """Who is speaking, and the protocol version chosen."""

    instance: InstanceId
    generation: int
    boot: Boot
    protocol: int


class Goodbye(ArrayFrame, tag="goodbye", frozen=True):
    """The connection is refused, or this runner is leaving. The text says why."""

    message: str


class Accepted(ArrayFrame, tag="accepted", frozen=True):
    """The lead runner owns the request now; `position` 0 means it is running or next. `unheeded`
    are paths of fields that this model gives no effect; versions before 6 leave them out."""

    request_id: RequestId
    position: int
    prompt_tokens: int
    unheeded: tuple[str, ...] = ()


class Refused(ArrayFrame, tag="refused", frozen=True):
    """The request was not taken; nothing was done; it may be tried elsewhere once."""

    request_id: RequestId
    refusal: Refusal


class Displaced(ArrayFrame, tag="displaced", frozen=True):
    """The request, which was submitted and perhaps accepted, is given back in favour of a more
    urgent one: nothing of it was computed, no entry of it was sent, and the runner has forgotten
    it. It is to be submitted again. Not sent to versions before 8."""

    request_id: RequestId


class Suspended(ArrayFrame, tag="suspended", frozen=True):
    """The request, which was recalled, is given back with its answer so far: that is the last word
    of it here, and the runner has forgotten it. It is to be submitted again with `so_far`. Not sent
    to versions before 10."""

    request_id: RequestId
    so_far: AnswerSoFar


SpanName = Literal["template", "queued", "prefill", "decode", "end"]
"""What a lead runner does for a request. `template`: its text becomes tokens; `queued`: it waits
for a place; `prefill`: a chunk of its prompt; `decode`: tokens; `end`: from the last token on, for
the last words and for the other choices."""


class TraceSpan(ArrayFrame, frozen=True):
    """What a lead runner did for a choice of a request from `began_s` to `ended_s`, in seconds
    since it had the request. `tokens` came of it, in `steps` steps of the engine; between two of
    them were at most `longest_s`. `computed_s` is how long these steps took by the engine's own
    clock; they are shared with other requests, and may overlap."""

    name: SpanName
    choice: int
    began_s: float
    ended_s: float
    tokens: int = 0
    steps: int = 0
    longest_s: float = 0.0
    computed_s: float = 0.0


class Traced(ArrayFrame, tag="traced", frozen=True):
    """What was done for a request with a `trace`, told once, before the step that has its terminal.

    The instants are of the runner's monotonic clock: when it had the request, when it was about to
    say `Accepted`, when it tells this. The spans of a choice follow each other without gaps, up to
    the last instant. Of the first `choices` choices alone. `ranks` are the nodes of a group's
    ranks, in their order, each of which tells of itself within a second (`RankTraced`); a runner
    alone, and versions before 11, leave it out. Not sent to versions before 9."""

    request_id: RequestId
    received_at: float
    accepted_at: float
    told_at: float
    choices: int
    spans: tuple[TraceSpan, ...]
    ranks: tuple[NodeId, ...] = ()


class Pong(ArrayFrame, tag="pong", frozen=True):
    """Answers `Ping`; `step` is the engine's own step number, so that a live main thread
    cannot hide a stuck engine. `owes` says whether any work is open."""

    boot: Boot
    step: int
    owes: bool


class TokenLogprob(ArrayFrame, frozen=True):
    """One token, its text and log-probability, and the likeliest others."""

    token_id: int
    text: str
    logprob: float
    top: tuple[TopLogprob, ...]


class TokenDelta(ArrayFrame, tag="t", frozen=True):
    """Some text of one choice. `tokens` is how many LLM tokens it covers (0 on a flush)."""

    request_id: RequestId
    seq: int
    choice: int
    channel: Channel
    text: str
    tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()


class PromptTokens(ArrayFrame, tag="q", frozen=True):
    """The prompt's tokens from number `start` on, as `prompt_logprobs` asked for; all of them come
    in order, before any `TokenDelta`. Token 0 is given, not predicted: its log-probability is 0."""

    request_id: RequestId
    seq: int
    choice: int
    start: int
    text: str
    logprobs: tuple[TokenLogprob, ...]


class ToolCallDelta(ArrayFrame, tag="c", frozen=True):
    """Part of a tool call. `call_id` and `name` come in the first delta of a call only;
    `arguments` are fragments of JSON text to be joined."""

    request_id: RequestId
    seq: int
    choice: int
    call: int
    call_id: str | None
    name: str | None
    arguments: str
    tokens: int


class Vectors(ArrayFrame, tag="v", frozen=True):
    """The vectors of the inputs from number `start` on, in the order of the inputs, each as 32-bit
    floats, the least byte first. `cut` are the numbers of those of which only a part was read."""

    request_id: RequestId
    seq: int
    choice: int
    start: int
    vectors: tuple[bytes, ...]
    cut: tuple[int, ...] = ()


class ChoiceEnd(ArrayFrame, tag="e", frozen=True):
    """One choice is complete. `stop` is the stop string that ended it, if one did."""

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
    """A prompt as the model would read it: its token ids, or its text, as the question wants; for a
    request with a `history` the token ids of that, its prompt and its answer.
    `context_tokens` is how many a prompt and its answer may have together, at this copy."""

    token_ids: tuple[int, ...]
    text: str
    context_tokens: int


class Finished(ArrayFrame, tag="f", frozen=True):
    """Terminal: every choice has ended. `prompt` answers a question about the prompt, or tells
    what the next `history` is; without either it is left out."""

    request_id: RequestId
    seq: int
    usage: Usage
    prompt: PromptAnswer | None = None


class Failed(ArrayFrame, tag="x", frozen=True):
    """Terminal: the request ended early, and why. `message` is fit for the client."""

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
    """All entries that one step made for one gateway process, in order."""

    step: int
    entries: tuple[Entry, ...]


ToRunner = Hello | Submit | Credit | Cancel | Recall | Ping
ToGateway = (
    Welcome
    | Goodbye
    | Accepted
    | Refused
    | Displaced
    | Suspended
    | Traced
    | RankTraced
    | Pong
    | StepEntries
)
