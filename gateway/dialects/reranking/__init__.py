"""The API for reranking: score documents by their relevance to a query.

Pure. Other packages import only its table of routes.
"""

from gateway.dialects.reranking.api import RERANKING
from gateway.dialects.reranking.dialect import REFUSED, Rerank, RerankBody

__all__ = ["REFUSED", "RERANKING", "Rerank", "RerankBody"]
