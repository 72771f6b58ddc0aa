"""The inputs of embedding requests become tokens.

Pure. A part of a request's inputs is made ready at a time, so that long lists share the text thread
with short ones. What is wrong with an input is said by its number in the whole request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bus.wire.errors import BadRequest, ContextOverflow, Refusal
from bus.wire.messages.requests import GenerationRequest, InputsPrompt

PART_INPUTS = 64
PART_CHARS = 32_768
"""An input that is longer is a part of its own."""


class InputTokens(Protocol):
    """An input as the model reads it."""

    @property
    def tokens(self) -> Sequence[int]:
        """Return its token ids, special ones included; one at least."""
        ...

    @property
    def cut_off(self) -> bool:
        """Return whether its end was left out."""
        ...


@dataclass(frozen=True, slots=True)
class PreparedInputs:
    """A part of a request's inputs, in order."""

    prompts: tuple[InputTokens, ...]


class InputsReader(Protocol):
    """What reads inputs for a model (`runner.text.EmbeddingInputs`)."""

    def prepare(self, text: str | Sequence[int], cut: bool) -> InputTokens:
        """Return the tokens that the model reads of an input. Raises ContextOverflow where it is
        too long and may not be `cut`, BadRequest for what is no input of this model."""
        ...


def next_part(prompt: InputsPrompt, start: int) -> InputsPrompt:
    """Return the inputs from number `start` on that are made ready together: one at least."""
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
        """Return the request's inputs as tokens, or why one of them cannot be read: the facts of
        that refusal have its number in the request, as `input`."""
        prompt = request.prompt
        if not isinstance(prompt, InputsPrompt):
            text = f"{request.model} is an embedding model: it makes vectors of texts, and no text"
            return Refusal(reason="unsupported", message=text, field="model")
        prompts: list[InputTokens] = []
        for number, given in enumerate(prompt.inputs):
            try:
                prompts.append(self._reader.prepare(given, prompt.cut))
            except ContextOverflow as problem:
                return _too_long(problem, number)
            except BadRequest as problem:
                return Refusal(
                    reason="bad_request",
                    message=problem.message,
                    field="input",
                    facts={"input": number},
                )
        return PreparedInputs(tuple(prompts))

    def read(self, request: GenerationRequest, context_tokens: int) -> Refusal:
        """Return the refusal of a question about a prompt."""
        text = f"{request.model} is an embedding model: it is not asked about prompts"
        return Refusal(reason="unsupported", message=text, field="model")


def _too_long(problem: ContextOverflow, number: int) -> Refusal:
    """Return the refusal of an input that does not fit, in the words that OpenAI's clients know."""
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
