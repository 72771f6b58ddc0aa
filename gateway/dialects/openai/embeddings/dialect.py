"""OpenAI's embeddings: one vector for each text, given as text or as token ids.

Pure. An input that is too long is refused. With vLLM's field `truncate_prompt_tokens` the end of
the input is cut off instead, at the model's own limit. Vectors are numbers, or with `base64` their
bytes as little-endian 32-bit floats.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import Field

from bus.wire.messages.requests import GenerationRequest, InputsPrompt
from gateway.dialects.body import Closed, FieldTable, bad_field, read_body
from gateway.dialects.collect import Collected
from gateway.dialects.dialect import Limits, ParseContext, Parsed
from gateway.dialects.encode import json_bytes, vector_list
from gateway.dialects.openai.messages import PromptBody
from gateway.dialects.shared_fields import cuts_long, named_model

HOW_MANY = "a model makes one vector for each input"
REFUSED = {
    "prompt": "this field belongs to /v1/completions; send 'input'",
    "messages": "send their text as 'input'; templates are for chat",
    "stream": "vectors come in one answer; omit it",
    "n": HOW_MANY,
    "normalize": "the model's files decide whether vectors have length 1; omit it",
    "embed_dtype": "vectors are 32-bit floats; omit it",
    "endianness": "bytes are little-endian; omit it",
}
"""Unsupported fields, each with advice; empty and false values request nothing."""


class EmbeddingsBody(Closed):
    """The body of `POST /v1/embeddings`."""

    table: ClassVar[FieldTable] = FieldTable(refused=REFUSED, empty_asks_nothing=True)
    model: str
    input: PromptBody
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: str | None = None
    truncate_prompt_tokens: int | None = None


class OpenAIEmbeddings:
    """The endpoint `POST /v1/embeddings`."""

    name = "openai_embeddings"

    def parse(self, body: bytes, context: ParseContext) -> Parsed:
        """Return one request with all inputs. Raises BadRequest."""
        parsed_body, extras = read_body(EmbeddingsBody, body, context.limits)
        cut = cuts_long(parsed_body.truncate_prompt_tokens, "truncates inputs")
        prompt = InputsPrompt(
            inputs=_inputs_of(parsed_body, context.limits),
            dimensions=parsed_body.dimensions,
            cut=cut,
        )
        request = GenerationRequest(
            request_id=next(context.ids),
            model=named_model(parsed_body.model),
            prompt=prompt,
            priority=extras.priority,
            client_id=extras.client_id or parsed_body.user,
            speculate=extras.speculate,
        )
        return Parsed(
            requests=(request,),
            model=parsed_body.model,
            stream=False,
            answer_id=f"embd-{request.request_id}",
            created_at_s=context.now_s,
            fingerprint=context.fingerprint,
            extras=extras,
            echoed_fields={"encoding_format": parsed_body.encoding_format or "float"},
        )

    def render_whole(
        self, parsed: Parsed, collected: Sequence[Collected], *, load_s: float = 0.0
    ) -> bytes:
        """Return the vectors in the order of their inputs."""
        whole = collected[0]
        in_base64 = parsed.echoed_fields["encoding_format"] == "base64"
        write = _encoded if in_base64 else vector_list
        tokens = whole.usage.prompt_tokens
        answer: dict[str, Any] = {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": write(vector)}
                for index, vector in enumerate(whole.vectors)
            ],
            "model": parsed.model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
        return json_bytes(answer)


def _encoded(vector: bytes) -> str:
    return base64.b64encode(vector).decode()


def _inputs_of(body: EmbeddingsBody, limits: Limits) -> tuple[str | tuple[int, ...], ...]:
    match body.input:
        case str(text):
            if not text:
                raise bad_field("input", "must not be empty")
            return (text,)
        case []:
            raise bad_field("input", "must not be empty")
        case [str() | list(), *_] as many:
            if len(many) > limits.inputs:
                raise bad_field("input", f"too many inputs; the limit is {limits.inputs}")
            return tuple(_input_of(item, index) for index, item in enumerate(many))
        case _:
            return (tuple(cast(list[int], body.input)),)


def _input_of(given: str | list[int] | int, index: int) -> str | tuple[int, ...]:
    if isinstance(given, int):
        raise bad_field(f"input[{index}]", "must be a string or a list of token ids")
    if not given:
        raise bad_field(f"input[{index}]", "must not be empty")
    return given if isinstance(given, str) else tuple(given)
