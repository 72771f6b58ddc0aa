"""A client's request, in no API's dialect: the one request type behind every API.

Pure. The requests of every API are parsed into `GenerationRequest`; runners read only this type.
Content is a list of typed parts, so that an image or a document is never mistaken for text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from bus.wire.errors import FailReason, RefusalReason
from bus.wire.ids import ModelId, NodeId, RequestId
from bus.wire.messages.wire import Message


class TextPart(Message):
    """Plain text, as the model should read it."""

    kind: Literal["text"] = "text"
    text: str


class ImagePart(Message):
    """An image by URL (`data:` included). A text-only model refuses the request and names the
    field."""

    kind: Literal["image"] = "image"
    url: str
    detail: str | None = None


ContentPart = Annotated[TextPart | ImagePart, Field(discriminator="kind")]


class ToolCall(Message):
    """A tool call that the assistant made earlier in the conversation. `arguments` is JSON text."""

    call_id: str
    name: str
    arguments: str


class ChatMessage(Message):
    """One turn of a conversation. `reasoning`: the assistant's earlier thinking, if the client sent
    it."""

    role: Literal["system", "user", "assistant", "tool"]
    parts: tuple[ContentPart, ...] = ()
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


class ToolSpec(Message):
    """A function that the model may call; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] = {}
    strict: bool = False


class ToolChoice(Message):
    """Whether the model may or must call a tool. `named` requires a call of the tool `name`. A
    grammar enforces `required` and `named`."""

    mode: Literal["none", "auto", "required", "named"] = "auto"
    name: str | None = None


class ChatPrompt(Message):
    """A conversation that the model's own template turns into tokens.

    `continue_final` continues the last assistant turn instead of opening a new one.
    """

    kind: Literal["chat"] = "chat"
    messages: tuple[ChatMessage, ...]
    tools: tuple[ToolSpec, ...] = ()
    continue_final: bool = False


class TextPrompt(Message):
    """Text that is tokenised as it is, without a template."""

    kind: Literal["text"] = "text"
    text: str
    suffix: str | None = None
    """If it is set, the model generates the text between the prompt and this suffix (fill in the
    middle), if its tokenizer has the tokens for that."""


class TokensPrompt(Message):
    """Token ids that are used as they are. Each is at least 0 and below the size of the
    vocabulary."""

    kind: Literal["tokens"] = "tokens"
    token_ids: tuple[int, ...]


ModelKind = Literal["text", "embedding", "reranker"]
"""The output of a model: text, a vector, or a score of a document."""


class InputsPrompt(Message):
    """Texts, or token ids of texts; each becomes a vector. Nothing is generated.

    With a `query`, the texts are documents. Each becomes a vector of one number: how relevant it is
    to the query, as the logarithm of its odds. `dimensions` None: as many as the model has; a
    smaller number works if the model supports it. An input that is too long for the model is
    truncated at its end if `cut` allows it, else refused.
    """

    kind: Literal["inputs"] = "inputs"
    inputs: tuple[str | tuple[int, ...], ...]
    dimensions: int | None = Field(default=None, ge=1)
    cut: bool = False
    query: str | None = Field(default=None, min_length=1)


Prompt = Annotated[
    ChatPrompt | TextPrompt | TokensPrompt | InputsPrompt, Field(discriminator="kind")
]


class Sampling(Message):
    """Sampling parameters. The gateway checks the ranges, and this type checks them again.

    `top_k` 0 means off. `seed` None: the runner draws one. Penalties follow OpenAI's formula
    (`frequency` per occurrence, `presence` once) over the tokens generated so far; `repetition` is
    the multiplicative penalty over prompt and output.
    """

    temperature: float = Field(default=1.0, ge=0.0, le=5.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=0, ge=0)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    repetition_penalty: float = Field(default=1.0, gt=0.0, le=10.0)
    logit_bias: dict[int, float] = {}


class OutputFormat(Message):
    """The required format of the generated text. A grammar enforces it.

    `json_schema`: the schema. `rule`: a regular expression for the whole text, or a grammar in
    GBNF. `choices`: the text is one of these. `field`: the field of the client's request that
    requires the format; refusals name it.
    """

    kind: Literal["text", "json_object", "json_schema", "regex", "choice", "grammar"] = "text"
    json_schema: dict[str, Any] | None = None
    rule: str | None = None
    choices: tuple[str, ...] = ()
    field: str = "response_format"

    @property
    def is_later(self) -> bool:
        """Return whether version 3 of the data plane lacks this format."""
        return self.field != "response_format" or self.kind in ("regex", "choice", "grammar")


class PromptQuestion(Message):
    """A question about a prompt as the model would read it: the number of its tokens, their ids, or
    its text. The model's template makes the text, or it comes from token ids.

    `cost`: the answer is a `PromptCost`. `kv`: compute the prompt, write its KV to disk for another
    node, and then answer with a `PromptCost`. `special`: add the tokenizer's special tokens to a
    raw text.
    """

    wants: Literal["count", "tokens", "text", "cost", "kv"]
    special: bool = True


class PromptCost(Message):
    """The cost of a prompt at one runner. It has `tokens` tokens; the KV of `missing` tokens must
    be computed, and that of `saved` tokens is on disk. Computing takes `prefill_s` (0: not
    measured), after `busy_s` for earlier prompts. `kv_bytes`: the size of the prompt's KV. `how`: a
    hash of the way of computing; empty if the runner exchanges no KV with other nodes."""

    tokens: int = Field(ge=0)
    missing: int = Field(ge=0)
    saved: int = Field(default=0, ge=0)
    prefill_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    busy_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    kv_bytes: int = Field(default=0, ge=0)
    how: str = Field(default="", max_length=64)


Effort = Literal["minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model should think, from least to most. (`thinking` False means not at all.)"""


Speculate = Literal["auto", "off", "ngram", "grammar", "draft_model", "mtp", "block", "remote"]
"""Which drafts the rows of a request get. `off`: none. `auto`: drafts that cannot change the text.
`grammar`: text that a response format leaves no choice about. `ngram`: also copies of earlier text.
`draft_model`: guesses of a smaller model in the same runner; `remote`: in another runner. `mtp`:
guesses of the model's head for multi-token prediction; `block`: of its block drafter."""

SPECULATE: tuple[Speculate, ...] = get_args(Speculate)

Drafter = Literal["ngram", "prediction", "grammar", "draft_model", "mtp", "block", "remote"]
"""Where a verified draft came from. `prediction`: the text that the client expected."""

DrafterCount = tuple[int, int, int]
"""Verified drafts of a drafter, their tokens, and how many of these the model accepted."""


ProposalCost = tuple[int, int]
"""A drafter's passes, and the most bytes of accelerator memory that one proposal took."""


class DraftWeights(Message):
    """The weights of the drafter that a model's card names, on the same node: a smaller model, or
    an MTP head or block drafter of the model (`drafter`). A head guesses up to `depth` tokens in a
    row. `path` is the folder of the weights; empty if the drafter cannot be used, because of
    `why_not`. `folder`: that folder in the model's folder; empty: the model's own files have it."""

    model: ModelId
    path: str = ""
    weights_bytes: int = 0
    kv_bytes_per_token: int = 0
    why_not: str = ""
    drafter: Literal["draft_model", "mtp", "block"] = "draft_model"
    folder: str = ""
    depth: int = 1


ProposerState = Literal["none", "connecting", "ready", "paused"]


class ProposerUse(Message):
    """A lead runner's use of a draft model in another runner, the *proposer*, on `node`. `paused`:
    the proposer was lost or refused a request, for this `reason`; the runner tries again after a
    pause. `round_trip_ms`: measured by this runner; 0: not measured. `questions`: how many were
    sent. `drafts`: how many arrived in time to be used. `lost`: how often the proposer was lost."""

    model: ModelId
    node: NodeId | None = None
    state: ProposerState
    reason: FailReason | RefusalReason | None = None
    why: str = ""
    round_trip_ms: float = 0.0
    questions: int = 0
    drafts: int = 0
    lost: int = 0


class GenerationRequest(Message):
    """One request for text, or for vectors (prompt of kind `inputs`); the same for every API.

    `max_tokens` None: the runner's default (4,096 or what fits). `top_logprobs` None: no
    log-probabilities; 0..20: that of the chosen token and of this many alternatives.
    `prompt_logprobs`: the same for the tokens of a raw prompt, sent before the one choice;
    `max_tokens` may then be 0.

    `history`: token ids that precede those of the conversation, from the end of an earlier answer.
    If it is not None (it may be empty), the end of the one choice has the token ids of the whole
    prompt and answer. `min_tokens`: neither an end token nor a stop string ends a choice earlier.

    `thinking` None: as the model's card says; but with an `effort`, models that can think do.
    `effort` is passed to chat templates that have such levels. `thinking_budget`: after this many
    tokens thinking ends and the answer begins. `variables` are passed to the model's chat template
    unchanged. `template` (in Go's language) comes only from earlier builds; runners refuse it.

    `priority`: the request with the lower number goes first (urgent 1, high 5, normal 10, low 20,
    batch 50). `key_id`: the API key of the request, if there are several; only requests of one key
    share prefixes. `adapter`: the LoRA adapter beside the model to compute with; None: the model
    alone. `prediction`: the text that the client expects as the answer; a source of drafts, which
    change no text. `speculate`: the choice of drafts; None: as the model's card or the runner's
    setting says. `question`: nothing is generated; the request ends when its prompt is read, and
    its end has the answer to the question. `trace`: before the end, the runner reports what it did
    at which time.
    """

    request_id: RequestId
    model: ModelId
    prompt: Prompt
    n: int = Field(default=1, ge=1, le=128)
    max_tokens: int | None = Field(default=None, ge=0)
    stop: tuple[str, ...] = ()
    sampling: Sampling = Sampling()
    output: OutputFormat = OutputFormat()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    prompt_logprobs: int | None = Field(default=None, ge=0, le=20)
    thinking: bool | None = None
    ignore_eos: bool = False
    priority: int = 10
    client_id: str | None = None
    key_id: str | None = None
    question: PromptQuestion | None = None
    min_tokens: int | None = Field(default=None, ge=1)
    effort: Effort | None = None
    thinking_budget: int | None = Field(default=None, ge=0)
    variables: dict[str, bool | int | float | str] | None = None
    history: tuple[int, ...] | None = None
    template: str | None = None
    adapter: str | None = None
    trace: Literal[True] | None = None
    prediction: str | None = None
    speculate: Speculate | None = None

    @property
    def wants(self) -> ModelKind:
        """Return the kind of model that can answer."""
        if not isinstance(self.prompt, InputsPrompt):
            return "text"
        return "embedding" if self.prompt.query is None else "reranker"


DRAFT_COUNTS = (
    "drafts",
    "drafted_tokens",
    "accepted_tokens",
    "predicted_tokens",
    "accepted_predicted_tokens",
)
"""The fields of `Usage` about all drafts, which are summed over choices and requests."""
DRAFTS_PROTOCOL, DRAFTERS_PROTOCOL, BLOCK_PROTOCOL = 12, 16, 17
"""First versions of the data plane with counts of drafts, with those by drafter, and `block`."""


def sum_drafters(counts: Iterable[Mapping[Drafter, DrafterCount]]) -> dict[Drafter, DrafterCount]:
    """Return the sums of these counts by drafter; a drafter may be in several of them."""
    sums: dict[Drafter, DrafterCount] = {}
    for count in counts:
        for drafter, (drafts, tokens, accepted) in count.items():
            before = sums.get(drafter, (0, 0, 0))
            sums[drafter] = (before[0] + drafts, before[1] + tokens, before[2] + accepted)
    return sums


class Usage(Message):
    """The usage of a request. Seconds are wall-clock time, measured by the runner.

    `cached_tokens` of the `prompt_tokens` came from the prefix cache; `reasoning_tokens` are part
    of `completion_tokens`. `drafts` were verified, with `drafted_tokens` in all, of which the model
    accepted some; the next two count the tokens that were copied from the request's `prediction`.
    `drafters` has the counts of drafts by drafter, and `proposals` what those with a network cost.
    The gateway that owns the request adds `resumes`, the number of lost runners after which the
    request resumed, and `paused_s`, the time without a token that those losses cost.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    drafts: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    predicted_tokens: int = 0
    accepted_predicted_tokens: int = 0
    resumes: int = 0
    paused_s: float = 0.0
    drafters: dict[Drafter, DrafterCount] = {}
    proposals: dict[Drafter, ProposalCost] = {}

    def for_protocol(self, protocol: int) -> Usage:
        """Return the usage as this version of the data plane knows it."""
        if not self.drafts or protocol >= BLOCK_PROTOCOL:
            return self
        earlier = {name: count for name, count in self.drafters.items() if name != "block"}
        drafters = earlier if protocol >= DRAFTERS_PROTOCOL else {}
        less: dict[str, Any] = {"drafters": drafters, "proposals": {}}
        if protocol < DRAFTS_PROTOCOL:
            less |= dict.fromkeys(DRAFT_COUNTS, 0)
        return self.model_copy(update=less)
