"""OpenAI's embeddings API: it turns texts into vectors. Pure."""

from __future__ import annotations

from gateway.dialects.openai.embeddings.dialect import REFUSED, EmbeddingsBody, OpenAIEmbeddings

__all__ = ["REFUSED", "EmbeddingsBody", "OpenAIEmbeddings"]
