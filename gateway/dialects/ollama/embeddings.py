"""Ollama's embeddings: `/api/embed` with one text or several, and the older `/api/embeddings`.

Pure. A text that is too long is cut at its end; with `truncate: false` it is refused. A body
without any text loads the model, or unloads it if `keep_alive` is 0. Options have no effect on a
vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, Tag

from bus.wire.messages.requests import GenerationRequest, InputsPrompt
from gateway.dialects.body import bad_field, by_type, read_body
from gateway.dialects.collect import Collected, total
from gateway.dialects.dialect import Extras, ParseContext, Parsed
from gateway.dialects.encode import json_bytes, vector_list
from gateway.dialects.ollama import fields
from gateway.dialects.ollama.bodies import ModelBody

NS_PER_S = 1e9
InputBody = Annotated[
    Annotated[str, Tag("~text")]
    | Annotated[Annotated[list[str], Field(fail_fast=True)], Tag("~texts")],
    by_type("a string or a list of strings", {str: "~text", list: "~texts"}),
]


class OllamaEmbedBody(ModelBody):
    """The body of `POST /api/embed`."""

    input: InputBody | None = None
    truncate: bool | None = None
    dimensions: Annotated[int, Field(ge=0)] | None = None


class OllamaEmbeddingsBody(ModelBody):
    """The body of `POST /api/embeddings`."""

    prompt: str | None = None


class OllamaEmbed:
    """The endpoint `POST /api/embed`."""

    name = "ollama_embed"

    def parse(self, body: bytes, context: ParseContext) -> Parsed:
        """Return one request; no request if the body has no text. Raises BadRequest."""
        parsed_body, extras = read_body(OllamaEmbedBody, body, context.limits)
        texts = parsed_body.input or ()
        inputs = (texts,) if isinstance(texts, str) else tuple(texts)
        if len(inputs) > context.limits.inputs:
            raise bad_field("input", f"too many texts; the limit is {context.limits.inputs}")
        cut, dimensions = parsed_body.truncate is not False, parsed_body.dimensions or None
        prompt = InputsPrompt(inputs=inputs, dimensions=dimensions, cut=cut)
        return _parsed(parsed_body, prompt, extras, context)

    def render_whole(
        self, parsed: Parsed, collected: Sequence[Collected], *, load_s: float = 0.0
    ) -> bytes:
        """Return the vectors in the order of their texts."""
        usage = total([whole.usage for whole in collected])
        seconds = load_s + usage.queue_s + usage.prefill_s
        answer: dict[str, Any] = {
            "model": parsed.model,
            "embeddings": [vector_list(vector) for whole in collected for vector in whole.vectors],
            "total_duration": int(seconds * NS_PER_S),
            "load_duration": int(load_s * NS_PER_S),
            "prompt_eval_count": usage.prompt_tokens,
        }
        return json_bytes(answer)


class OllamaEmbeddings:
    """The endpoint `POST /api/embeddings`."""

    name = "ollama_embeddings"

    def parse(self, body: bytes, context: ParseContext) -> Parsed:
        """Return one request; no request if the body has no text. Raises BadRequest."""
        parsed_body, extras = read_body(OllamaEmbeddingsBody, body, context.limits)
        inputs = (parsed_body.prompt,) if parsed_body.prompt else ()
        return _parsed(parsed_body, InputsPrompt(inputs=inputs, cut=True), extras, context)

    def render_whole(
        self, parsed: Parsed, collected: Sequence[Collected], *, load_s: float = 0.0
    ) -> bytes:
        """Return the vector of the text as JSON; an empty vector if the body has no text."""
        vectors = [vector_list(vector) for whole in collected for vector in whole.vectors]
        empty: list[float] = []
        return json_bytes({"embedding": vectors[0] if vectors else empty})


def _parsed(body: ModelBody, prompt: InputsPrompt, extras: Extras, context: ParseContext) -> Parsed:
    model = fields.model_of(body.model)
    _, ignored = fields.options_of(body, strict=context.limits.strict_fields)
    keep_alive_s = fields.keep_alive_of(body)
    request = GenerationRequest(
        request_id=next(context.ids),
        model=model,
        prompt=prompt,
        priority=extras.priority,
        client_id=extras.client_id,
        speculate=extras.speculate,
    )
    empty = "unload" if keep_alive_s == 0 else "load"
    return Parsed(
        requests=(request,) if prompt.inputs else (),
        model=body.model,
        stream=False,
        answer_id=request.request_id,
        created_at_s=context.now_s,
        fingerprint=context.fingerprint,
        extras=replace(extras, keep_alive_s=keep_alive_s, ignored=(*extras.ignored, *ignored)),
        intent="generate" if prompt.inputs else empty,
    )
