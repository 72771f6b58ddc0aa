"""Types of the answer of a rerank request.

Pure. The OpenAPI document shows them; tests check rendered answers against them.
"""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict


class RerankUsage(TypedDict):
    """Tokens of the query and the documents; the query counts once for each document."""

    prompt_tokens: int
    total_tokens: int


class RankedDocument(TypedDict):
    """The text of a document."""

    text: str


class RankedResult(TypedDict):
    """A document's index in the request and its score, from 0 to 1."""

    index: int
    relevance_score: float
    document: NotRequired[RankedDocument]


class RerankAnswer(TypedDict):
    """Scores of documents, the highest first."""

    id: str
    model: str
    object: Literal["list"]
    usage: RerankUsage
    results: list[RankedResult]
