"""What a client asks for, in no dialect: the one request type behind every API.

Pure. Every dialect parses into `GenerationRequest`, every runner reads only this.
Content is typed parts, so that an image or a document is never mistaken for text.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from bus.wire.ids import ModelId, RequestId
from bus.wire.messages.wire import Message


class TextPart(Message):
    """Plain text, as the model should read it."""

    kind: Literal["text"] = "text"
    text: str


class ImagePart(Message):
    """An image by URL (`data:` included). A text-only model refuses it, naming the field."""

    kind: Literal["image"] = "image"
    url: str
    detail: str | None = None


ContentPart = Annotated[TextPart | ImagePart, Field(discriminator="kind")]


class ToolCall(Message):
    """A call made by the assistant earlier in the conversation. `arguments` is JSON text."""

    call_id: str
    name: str
    arguments: str


class ChatMessage(Message):
    """One turn. `reasoning` is the assistant's earlier thinking, where the client kept it."""

    role: Literal["system", "user", "assistant", "tool"]
    parts: tuple[ContentPart, ...] = ()
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


class ToolSpec(Message):
    """A function that the model may call; `parameters` is its JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] = {}
    strict: bool = False


class ToolChoice(Message):
    """`named` requires `name`. `required` and `named` are enforced by grammar."""

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
    """Text that is tokenised as it stands, without a template."""

    kind: Literal["text"] = "text"
    text: str
    suffix: str | None = None
    """With a suffix: fill in the middle, for models whose tokenizer has the tokens for it."""


class TokensPrompt(Message):
    """Token ids, taken as they are (each in 0..vocabulary)."""

    kind: Literal["tokens"] = "tokens"
    token_ids: tuple[int, ...]


class InputsPrompt(Message):
    """Texts, or token ids of texts, each of which becomes a vector; nothing is generated.

    `dimensions` None: as many as the model gives; fewer where it allows that. An input that is
    longer than the model reads is cut off at its end where `cut` allows it, else refused.
    """

    kind: Literal["inputs"] = "inputs"
    inputs: tuple[str | tuple[int, ...], ...]
    dimensions: int | None = Field(default=None, ge=1)
    cut: bool = False


Prompt = Annotated[
    ChatPrompt | TextPrompt | TokensPrompt | InputsPrompt, Field(discriminator="kind")
]


class Sampling(Message):
    """How the next token is chosen. Ranges are checked at the gateway and again here.

    `top_k` 0 means off. `seed` None lets the runner draw one. Penalties follow OpenAI's
    formula (`frequency` per occurrence, `presence` once) over the tokens generated so far;
    `repetition` is the multiplicative penalty over prompt and output.
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
    """What the text must be; enforced, never a wish.

    `json_schema` carries the schema, `rule` the regular expression that matches the whole text or
    the grammar in GBNF, `choices` the texts of which it is one. `field` is what the client asked
    for it with, for refusals.
    """

    kind: Literal["text", "json_object", "json_schema", "regex", "choice", "grammar"] = "text"
    json_schema: dict[str, Any] | None = None
    rule: str | None = None
    choices: tuple[str, ...] = ()
    field: str = "response_format"

    @property
    def is_later(self) -> bool:
        """Return whether version 3 of the data plane could not say it."""
        return self.field != "response_format" or self.kind in ("regex", "choice", "grammar")


class PromptQuestion(Message):
    """What a client wants to know of a prompt, as the model would read it: how many tokens it has,
    which they are, or its text, made by the model's template or of token ids.

    `special`: to a raw text is added what the tokenizer puts around a prompt.
    """

    wants: Literal["count", "tokens", "text"]
    special: bool = True


Effort = Literal["minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model is to think, the least first; not to think at all is `thinking` False."""


class GenerationRequest(Message):
    """One request for text or, where its prompt is of kind `inputs`, for vectors; the same for
    every API.

    `max_tokens` None means the runner's default (4,096 or what fits). `top_logprobs` None
    means no log-probabilities; 0..20 asks for the chosen token's and that many others.
    `prompt_logprobs` asks the same for the tokens of a raw prompt, which then come back before the
    one choice; with it alone `max_tokens` may be 0.
    `history` are token ids that come before those of a conversation, as the end of an earlier
    answer told them; where it is not None, empty or not, the end of the one choice tells the token
    ids of all that was read and made.
    `min_tokens`: neither end tokens nor stop strings end a choice before it has so many tokens.
    `thinking` None leaves the decision to the model's card, but with an `effort` models that can
    think do. `effort` goes to templates that have levels. Thinking is ended after
    `thinking_budget` tokens, and the answer begun. `variables` are told to the model's template as
    they are. Only earlier builds send `template`, in Go's language, and runners refuse it.
    `priority`: lower goes first (urgent 1, high 5, normal 10, low 20, batch 50). `key_id` names the
    API key that asked, where there are several: prefixes are shared only by requests of one key.
    The layers of `adapter`, one that lies beside the model, compute it; None: the model alone. With
    a `question` nothing is generated: the request ends as soon as its prompt is read, and its end
    has the answer. With `trace` the runner tells, before the end, what it did when.
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


class Usage(Message):
    """What a request cost. Seconds are wall-clock, measured by the runner.

    `cached_tokens` of `prompt_tokens` came from the prefix cache; `reasoning_tokens` are
    part of `completion_tokens`.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
