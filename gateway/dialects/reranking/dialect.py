"""Rerank requests: a query and documents in, a score from 0 to 1 for each document out.

Pure. Jina's, Cohere's, vLLM's and llama-server's clients send these fields. A runner scores a
document with the logarithm of the odds that it is relevant; the answer has the probability. An
input that is too long is refused. With vLLM's `truncate_prompt_tokens` the end of the document is
cut at the model's own limit instead.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field, Tag

from bus.wire.messages.requests import GenerationRequest, InputsPrompt
from gateway.dialects.body import Closed, FieldTable, bad_field, by_type, read_body
from gateway.dialects.collect import Collected
from gateway.dialects.dialect import Limits, ParseContext, Parsed
from gateway.dialects.encode import json_bytes
from gateway.dialects.shared_fields import cuts_long, named_model

MOST_LOGIT = 700.0
"""The largest logarithm of odds whose exponential is a finite number."""
REFUSED = {
    "input": "this field belongs to /v1/embeddings; send 'documents'",
    "texts": "send 'documents'",
    "text_1": "send 'query'",
    "text_2": "send 'documents'",
    "rank_fields": "send each document as one text",
    "max_chunks_per_doc": "documents are not divided; send chunks as documents",
    "max_tokens_per_doc": "send truncate_prompt_tokens: -1 to cut documents at the model's limit",
    "raw_scores": "scores are from 0 to 1; omit it",
    "stream": "scores come in one answer; omit it",
}
"""Unsupported fields, each with advice; empty and false values request nothing."""


class DocumentBody(Closed):
    """A document as an object."""

    text: str


RerankDocument = Annotated[
    Annotated[str, Tag("~text")] | Annotated[DocumentBody, Tag("~document")],
    by_type("a string or an object with a text", {str: "~text", dict: "~document"}),
]


class RerankBody(Closed):
    """The body of `POST /v1/rerank`."""

    table: ClassVar[FieldTable] = FieldTable(refused=REFUSED, empty_asks_nothing=True)
    model: str
    query: str
    documents: list[RerankDocument]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = None
    user: str | None = None
    truncate_prompt_tokens: int | None = None


class Rerank:
    """The endpoint `POST /v1/rerank`."""

    name = "rerank"

    def parse(self, body: bytes, context: ParseContext) -> Parsed:
        """Return one request with all documents. Raises BadRequest."""
        parsed_body, extras = read_body(RerankBody, body, context.limits)
        cut = cuts_long(parsed_body.truncate_prompt_tokens, "cuts documents")
        if not parsed_body.query:
            raise bad_field("query", "must not be empty")
        documents = _documents_of(parsed_body, context.limits)
        request = GenerationRequest(
            request_id=next(context.ids),
            model=named_model(parsed_body.model),
            prompt=InputsPrompt(query=parsed_body.query, inputs=documents, cut=cut),
            priority=extras.priority,
            client_id=extras.client_id or parsed_body.user,
            speculate=extras.speculate,
        )
        returned = documents if parsed_body.return_documents else None
        return Parsed(
            requests=(request,),
            model=parsed_body.model,
            stream=False,
            answer_id=f"rerank-{request.request_id}",
            created_at_s=context.now_s,
            fingerprint=context.fingerprint,
            extras=extras,
            echoed_fields={"top_n": parsed_body.top_n, "documents": returned},
        )

    def render_whole(
        self, parsed: Parsed, collected: Sequence[Collected], *, load_s: float = 0.0
    ) -> bytes:
        """Return the results by descending score; equal scores in the order of the documents."""
        whole, documents = collected[0], parsed.echoed_fields["documents"]
        logits = [struct.unpack("<f", score)[0] for score in whole.vectors]
        order = sorted(range(len(logits)), key=lambda index: (-logits[index], index))
        results: list[dict[str, Any]] = []
        for index in order[: parsed.echoed_fields["top_n"]]:
            result: dict[str, Any] = {"index": index, "relevance_score": chance(logits[index])}
            if documents is not None:
                result["document"] = {"text": documents[index]}
            results.append(result)
        tokens = whole.usage.prompt_tokens
        answer = {
            "id": parsed.answer_id,
            "model": parsed.model,
            "object": "list",
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "results": results,
        }
        return json_bytes(answer)


def chance(log_odds: float) -> float:
    """Return the probability with these odds, from 0 to 1."""
    return 1 / (1 + math.exp(min(-log_odds, MOST_LOGIT)))


def _documents_of(body: RerankBody, limits: Limits) -> tuple[str, ...]:
    if not body.documents:
        raise bad_field("documents", "must not be empty")
    if len(body.documents) > limits.inputs:
        raise bad_field("documents", f"at most {limits.inputs} documents")
    texts = [given if isinstance(given, str) else given.text for given in body.documents]
    for index, text in enumerate(texts):
        if not text:
            raise bad_field(f"documents[{index}]", "must not be empty")
    return tuple(texts)
