"""The API of rerankers as a table of endpoints, with the paths of Jina, Cohere, vLLM and
llama-server.

Pure. Errors have the form of OpenAI's errors, as in vLLM.
"""

from __future__ import annotations

from dataclasses import replace

from gateway.dialects import api_table
from gateway.dialects.openai.api import OPENAI
from gateway.dialects.reranking.answers import RerankAnswer
from gateway.dialects.reranking.dialect import Rerank, RerankBody

_RANKS = api_table.Embeds(
    "/v1/rerank", "Rank documents by their relevance to a query", Rerank(), RerankBody, RerankAnswer
)
RERANKING = api_table.Api(
    title="Reranking",
    envelope=OPENAI.envelope,
    endpoints=(
        _RANKS,
        replace(_RANKS, path="/v2/rerank", summary="Rank documents; for clients of Cohere's API"),
        replace(_RANKS, path="/rerank", summary="Rank documents; for a base URL without /v1"),
    ),
    id_prefixes=("rerank-",),
)
