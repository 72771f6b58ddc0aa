"""Tokenise the inputs of embedding requests, and the documents of rerank requests.

Pure. Inputs are tokenised in parts, so that long lists share the text thread with short ones. An
error names the input by its index in the whole request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from bus.wire.errors import BadRequest, ContextOverflow, Refusal
from bus.wire.messages.requests import GenerationRequest, InputsPrompt, ModelKind

PART_INPUTS = 64
PART_CHARS = 32_768
"""The most characters of a part; a longer input is a part of its own."""
_NAMES: Mapping[ModelKind, str] = {
    "text": "a text model",
    "embedding": "an embedding model",
    "reranker": "a reranker",
}


class InputTokens(Protocol):
    """One tokenised input of an embedding request."""

    @property
    def tokens(self) -> Sequence[int]:
        """Return the token ids of the input, special tokens included. There is at least one."""
        ...

    @property
    def cut_off(self) -> bool:
        """Return whether the end of the input was cut off."""
        ...


@dataclass(frozen=True, slots=True)
class PreparedInputs:
    """A part of a request's inputs, tokenised, in order."""

    prompts: tuple[InputTokens, ...]


class InputsReader(Protocol):
    """Tokenises inputs for a model (`runner.text.EmbeddingInputs`)."""

    def prepare(self, text: str | Sequence[int], cut: bool) -> InputTokens:
        """Return the tokens of an input. Raises ContextOverflow if it is too long and `cut` is
        false, BadRequest if the model cannot read it, and OSError if the tokenizer is lost."""
        ...


class PairsReader(Protocol):
    """Tokenises queries with documents for a reranker (`runner.text.PairInputs`)."""

    def of_query(self, query: str) -> InputsReader:
        """Return the reader of the documents of a query. Raises as `InputsReader.prepare` does."""
        ...


def next_part(prompt: InputsPrompt, start: int) -> InputsPrompt:
    """Return the part of the request's inputs that begins at index `start`; it has at least one
    input."""
    size, stop = 0, start
    while stop < len(prompt.inputs) and stop - start < PART_INPUTS:
        size += len(prompt.inputs[stop])
        if size > PART_CHARS and stop > start:
            break
        stop += 1
    return prompt.model_copy(update={"inputs": prompt.inputs[start:stop]})


class InputsText:
    """All text work of one embedding model or reranker, for the text thread
    (`runner.text.thread.Preparer`)."""

    def __init__(self, reader: InputsReader | PairsReader, makes: ModelKind) -> None:
        """`reader`: a PairsReader if the model `makes` "reranker"."""
        self._reader = reader
        self._makes: ModelKind = makes

    def prepare(self, request: GenerationRequest, context_tokens: int) -> PreparedInputs | Refusal:
        """Return the request's inputs as tokens, or a refusal. If an input is bad, its index is the
        refusal's fact `input`."""
        prompt = request.prompt
        refusal = other_kind(request, self._makes)
        if refusal is not None or not isinstance(prompt, InputsPrompt):
            return refusal or _no_text(request.model, self._makes)
        if prompt.query is None:
            return _prepared(cast(InputsReader, self._reader), prompt)
        try:
            reader = cast(PairsReader, self._reader).of_query(prompt.query)
        except (ContextOverflow, OSError, BadRequest) as problem:
            return _refusal(problem, "query", None)
        return _prepared(reader, prompt)

    def read(self, request: GenerationRequest, context_tokens: int) -> Refusal:
        """Return a refusal, because a model of this kind cannot answer questions about a prompt,
        such as its number of tokens."""
        return _no_text(request.model, self._makes)


def inputs_field(prompt: InputsPrompt) -> str:
    """Return the name of the client's field with the inputs."""
    return "input" if prompt.query is None else "documents"


def other_kind(request: GenerationRequest, makes: ModelKind) -> Refusal | None:
    """Return a refusal if the request wants something else than a model of this kind makes, for
    example text from an embedding model; else None."""
    prompt = request.prompt
    if not isinstance(prompt, InputsPrompt) or request.question is not None:
        return _no_text(request.model, makes)
    if (prompt.query is not None) == (makes == "reranker"):
        return None
    lacks = "make embeddings" if makes == "reranker" else "rank documents"
    message = f"{request.model} is {_NAMES[makes]}; it cannot {lacks}"
    return Refusal(reason="unsupported", message=message, field="model")


def _no_text(model: str, makes: ModelKind) -> Refusal:
    message = f"{model} is {_NAMES[makes]}; it cannot generate text or read a prompt"
    return Refusal(reason="unsupported", message=message, field="model")


def _prepared(reader: InputsReader, prompt: InputsPrompt) -> PreparedInputs | Refusal:
    prompts: list[InputTokens] = []
    for number, given in enumerate(prompt.inputs):
        try:
            prompts.append(reader.prepare(given, prompt.cut))
        except (ContextOverflow, OSError, BadRequest) as problem:
            return _refusal(problem, inputs_field(prompt), number)
    return PreparedInputs(tuple(prompts))


def _refusal(
    problem: ContextOverflow | OSError | BadRequest, field: str, number: int | None
) -> Refusal:
    """Return the refusal of an input. `number`: its index in the part; None for a query."""
    facts = {} if number is None else {"input": number}
    if isinstance(problem, ContextOverflow):
        return _too_long(problem, field, facts)
    if isinstance(problem, OSError):  # the tokenizer is that of an engine which ended
        return Refusal(reason="not_ready", message=str(problem), facts=facts)
    return Refusal(reason="bad_request", message=problem.message, field=field, facts=facts)


def _too_long(problem: ContextOverflow, field: str, facts: Mapping[str, int]) -> Refusal:
    """Return the refusal of an oversized input. OpenAI's clients parse its exact words."""
    tokens, limit = problem.prompt_tokens, problem.limit_tokens
    return Refusal(
        reason="context_length",
        message=(
            f"This model's maximum context length is {limit} tokens, however you requested "
            f"{tokens} tokens ({tokens} in your prompt; 0 for the completion). Please reduce your "
            "prompt; or completion length."
        ),
        field=field,
        facts={"prompt_tokens": tokens, "limit_tokens": limit, **facts},
    )
