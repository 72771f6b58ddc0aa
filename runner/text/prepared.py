"""The interface between text and tokens: the types of prepared requests, and of the pieces (parts
of the answer) into which the output of a choice is divided.

Pure. The text thread turns a `GenerationRequest` into a `PreparedRequest` (or a `Refusal`) and,
token by token, the output of each choice into pieces. The request server adds sequence numbers,
credit, the release of rows, and the last entry of each request. For every choice: `push` for each
sampled token in order (the stop token included), then `finish` exactly once; every piece of `push`
comes before the pieces of `finish`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal, NamedTuple, Protocol

from bus.wire.errors import FinishReason, Refusal, ShoalError
from bus.wire.ids import RequestId, TokenId
from bus.wire.messages.requests import GenerationRequest
from bus.wire.messages.tokens import Channel, RawLogprob, TokenLogprob
from runner.engine import GrammarSpec, PromptScores, SampledToken

SpanState = Literal["text", "reasoning", "header"]
"""Where the output begins: in plain text, inside a thinking block that the prompt opened, or within
the header of a message, in families whose output consists of messages."""


class TokenizerError(ShoalError):
    """The model directory has no usable tokenizer; the text says why."""


@dataclass(frozen=True, slots=True)
class PreparedChoice:
    """One choice of a request. `seed` is None if the client gave none; the service then draws one.
    Choices of a seeded request have different seeds, derived from it."""

    choice: int
    seed: int | None


class ThinkingCount(Protocol):
    """Counts the thinking tokens of one choice. `runner.text.families.ThinkingMeter` implements
    it."""

    @property
    def is_due(self) -> bool:
        """Return whether the choice is thinking and has used its budget."""
        ...

    def may_be_due(self, unread: int) -> bool:
        """Return whether the thinking budget may be used up after `unread` more tokens, which were
        not counted yet."""
        ...

    def take(self, token: TokenId) -> None:
        """Count the next token of the choice."""
        ...


@dataclass(frozen=True, slots=True)
class ThinkingLimit:
    """How a choice that used up its thinking budget is made to answer. Its next tokens are forced
    to be `ending`, which contains no stop token. `count` makes a new count for one choice."""

    ending: tuple[TokenId, ...]
    count: Callable[[], ThinkingCount]


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request ready for scheduling: all its choices share the prompt `tokens`.

    `0 < len(tokens)` and `len(tokens) + max_tokens <= context tokens`. `max_tokens` is 0 only if
    just the prompt's log-probabilities are requested. A sampled token in `stop_token_ids` ends the
    choice with "stop" (and is still pushed). The set is empty under `ignore_eos`, unless a grammar
    holds: a finished grammar must be able to end. `opening` is the initial state of each choice's
    text; `reads_thinking` and `reads_tools` say whether thinking and tool-call markup in the output
    are parsed. `limit` is None if thinking is unlimited. `unheeded` are the paths of fields that
    have no effect with this model. If `is_kept` is False, no KV of this request becomes a prefix.
    `prediction_tokens` are those of the text that the client predicts as the answer.
    """

    request: GenerationRequest
    tokens: tuple[TokenId, ...]
    max_tokens: int
    stop_token_ids: frozenset[int]
    choices: tuple[PreparedChoice, ...]
    grammar: GrammarSpec | None = None
    stops: tuple[str, ...] = ()
    opening: SpanState = "text"
    reads_thinking: bool = False
    reads_tools: bool = False
    limit: ThinkingLimit | None = None
    unheeded: tuple[str, ...] = ()
    is_kept: bool = True
    prediction_tokens: tuple[TokenId, ...] = ()

    @property
    def request_id(self) -> RequestId:
        return self.request.request_id

    @property
    def may_be_kept(self) -> bool:
        """Return whether KV of this request may become a prefix. A scored prompt neither uses nor
        becomes a prefix."""
        return self.is_kept and self.request.prompt_logprobs is None


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """A prompt as the model would read it, for a request with a question about it. `count` is the
    number of its tokens, which may exceed `context_tokens`; `tokens` and `text` are empty unless
    requested."""

    count: int
    context_tokens: int
    tokens: tuple[int, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A piece of a choice's text or thinking, sent as a `TokenDelta`. `tokens` counts the LLM
    tokens whose text ended in this piece, including those held before it; it is 0 on a flush with
    nothing new. `text` may be empty only if `logprobs` is not. `ids` are these tokens; `later` as
    in `TokenDelta`."""

    channel: Channel
    text: str
    tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()
    ids: tuple[TokenId, ...] = field(default=(), compare=False)
    later: tuple[RawLogprob, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A tool call or a part of it, sent as a `ToolCallDelta`. Only the first piece of a call has
    `call_id` and `name`. `ids` and `later`: as in `ToolCallDelta`."""

    call: int
    call_id: str | None
    name: str | None
    arguments: str
    tokens: int = 0
    ids: tuple[TokenId, ...] = field(default=(), compare=False)
    later: tuple[RawLogprob, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class PromptPiece:
    """The prompt's tokens from index `start` on, sent as `PromptTokens`."""

    start: int
    text: str
    logprobs: tuple[TokenLogprob, ...]


Piece = TextPiece | CallPiece | PromptPiece


@dataclass(frozen=True, slots=True)
class ChoiceOutput:
    """The output of one token. `ended` is True once, when the text is complete (a stop string, or
    the one allowed call); release the row and call `finish("stop")`."""

    pieces: tuple[Piece, ...] = ()
    ended: bool = False


@dataclass(frozen=True, slots=True)
class ChoiceFinish:
    """The last output of a choice. `finish_reason` is "tool_calls" if "stop" was given and at least
    one call was made; `stop` is the stop string that ended the text, if one did."""

    pieces: tuple[Piece, ...]
    finish_reason: FinishReason
    stop: str | None
    reasoning_tokens: int


class ChoiceReader(Protocol):
    """Reads one choice token by token. `ChoiceText` implements it. Tokens that come after the end
    of the choice are ignored."""

    def push(self, token: SampledToken) -> ChoiceOutput:
        """Return the pieces that this token completes; tokens come in order, the stop token
        included."""
        ...

    def finish(self, reason: FinishReason) -> ChoiceFinish:
        """Return the text that was still held back, and the finish reason that clients see. Called
        once, after the last `push`."""
        ...


class PromptReader(Protocol):
    """Reads the scores (log-probabilities) of a prompt. `PromptEcho` implements it."""

    def read(self, scores: PromptScores) -> Iterator[PromptPiece]:
        """Yield the pieces of the prompt for these scores. The scores come in order, without
        gaps."""
        ...


class TextWorks(Protocol):
    """All that the text thread does (`runner.text.text.Text`); called from that thread only.

    `prepare` may take as long as tokenising the prompt and compiling a grammar. Neither it nor
    `read` raises for anything in a request.
    """

    @property
    def facts(self) -> Mapping[str, str]:
        """Return facts about the model's files as text, keyed by subject."""
        ...

    def prepare(self, request: GenerationRequest, context_tokens: int) -> PreparedRequest | Refusal:
        """Return the request as tokens that fit `context_tokens` together with the output, or the
        refusal."""
        ...

    def read(self, request: GenerationRequest, context_tokens: int) -> ReadPrompt | Refusal:
        """Return the answer to the request's question about its prompt, or the refusal. A prompt
        may be longer than `context_tokens`, within reason."""
        ...

    def choice(self, prepared: PreparedRequest, choice: int) -> ChoiceReader:
        """Return a new reader for one choice. May be called from another thread."""
        ...

    def prompt(self, prepared: PreparedRequest) -> PromptReader:
        """Return a reader of the prompt's scores. May be called from another thread."""
        ...


def choice_seed(seed: int, choice: int) -> int:
    """Return the seed of one choice. The first has the request's own, so that choice 0 of n equals
    a request with n = 1. The others have distinct ones (the 64-bit golden ratio as stride)."""
    return (seed + choice * 0x9E3779B97F4A7C15) % 2**64


LETTERS_PER_TOKEN = 16
"""A predicted text is cut after this many characters per token of the longest answer."""


class PredictionEncoder(Protocol):
    """The part of a tokenizer that a predicted text needs. `vocabulary`: the model's token ids are
    below it."""

    vocabulary: int

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        ...


def predicted_tokens(
    tokenizer: PredictionEncoder, request: GenerationRequest, most: int
) -> tuple[TokenId, ...]:
    """Return the tokens of the text that the client expects as the answer, up to `most`; none if
    it expects none. They end before a token that the model does not have."""
    if not request.prediction:
        return ()
    tokens = tokenizer.encode(request.prediction[: LETTERS_PER_TOKEN * most])[:most]
    return tuple(map(TokenId, takewhile(lambda token: token < tokenizer.vocabulary, tokens)))


@dataclass(frozen=True, slots=True)
class RankedPair:
    """A query and a document as one input. `second`: the number of tokens before those with the
    second token type. llama-server tokenises the texts itself, so that only the number of these
    tokens counts. `cut_off`: the end of the document was cut off."""

    tokens: Sequence[int]
    second: int
    query: str
    document: str
    cut_off: bool = False


class EngineTokenizer(NamedTuple):
    """The tokenizer of an engine. `encode` returns the ids of a text, with the special tokens
    around an input if asked to; it raises OSError. Ids are below `vocabulary`. `around`: the tokens
    that a reranker adds to those of a query and a document."""

    encode: Callable[[str, bool], list[int]]
    vocabulary: int
    around: int = 0
