"""OpenAI's embeddings API: makes vectors from texts. Pure."""

from __future__ import annotations

from gateway.dialects.openai.embeddings.dialect import REFUSED, EmbeddingsBody, OpenAIEmbeddings

__all__ = ["REFUSED", "EmbeddingsBody", "OpenAIEmbeddings"]
