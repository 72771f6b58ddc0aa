"""Tokenise the inputs of embedding requests.

Pure. Inputs are tokenised in parts, so that long lists share the text thread with short ones. An
error names the input by its index in the whole request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bus.wire.errors import BadRequest, ContextOverflow, Refusal
from bus.wire.messages.requests import GenerationRequest, InputsPrompt

PART_INPUTS = 64
PART_CHARS = 32_768
"""The most characters of a part; a longer input is a part of its own."""


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
    """All text work of one embedding model, for the text thread (`runner.text.thread.Preparer`)."""

    def __init__(self, reader: InputsReader) -> None:
        self._reader = reader

    def prepare(self, request: GenerationRequest, context_tokens: int) -> PreparedInputs | Refusal:
        """Return the request's inputs as tokens, or a refusal whose fact `input` is the index of
        the bad input."""
        prompt = request.prompt
        if not isinstance(prompt, InputsPrompt):
            return no_text(request.model)
        prompts: list[InputTokens] = []
        for number, given in enumerate(prompt.inputs):
            try:
                prompts.append(self._reader.prepare(given, prompt.cut))
            except ContextOverflow as problem:
                return _too_long(problem, number)
            except OSError as problem:  # the tokenizer is that of an engine which ended
                facts = {"input": number}
                return Refusal(reason="not_ready", message=str(problem), facts=facts)
            except BadRequest as problem:
                return Refusal(
                    reason="bad_request",
                    message=problem.message,
                    field="input",
                    facts={"input": number},
                )
        return PreparedInputs(tuple(prompts))

    def read(self, request: GenerationRequest, context_tokens: int) -> Refusal:
        """Return a refusal: an embedding model cannot say how it reads a prompt, or how many tokens
        the prompt has."""
        text = f"{request.model} is an embedding model; it does not answer questions about prompts"
        return Refusal(reason="unsupported", message=text, field="model")


def no_text(model: str) -> Refusal:
    """Return the refusal of a request that asks an embedding model to generate text."""
    message = f"{model} is an embedding model; it cannot generate text"
    return Refusal(reason="unsupported", message=message, field="model")


def _too_long(problem: ContextOverflow, number: int) -> Refusal:
    """Return the refusal of an oversized input, in the words that OpenAI's clients parse."""
    tokens, limit = problem.prompt_tokens, problem.limit_tokens
    return Refusal(
        reason="context_length",
        message=(
            f"This model's maximum context length is {limit} tokens, however you requested "
            f"{tokens} tokens ({tokens} in your prompt; 0 for the completion). Please reduce your "
            "prompt; or completion length."
        ),
        field="input",
        facts={"prompt_tokens": tokens, "limit_tokens": limit, "input": number},
    )
