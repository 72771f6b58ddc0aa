"""Talks to the engine and the text thread: serves an embedding model or a reranker.

Each vector belongs to one input, and the other inputs of its batch do not change it.
"""

from runner.embedding.batches import Batch, BatchPace, next_batch
from runner.embedding.embedder import Embedder, EmbedderFacts
from runner.embedding.embedding_responder import EmbeddingResponder
from runner.embedding.inputs import InputsReader, InputsText, PairsReader, PreparedInputs
from runner.embedding.loop import Embedded, EmbeddingLoop
from runner.embedding.open_embedding import OpenEmbedding

__all__ = [
    "Batch",
    "BatchPace",
    "Embedded",
    "Embedder",
    "EmbedderFacts",
    "EmbeddingLoop",
    "EmbeddingResponder",
    "InputsReader",
    "InputsText",
    "OpenEmbedding",
    "PairsReader",
    "PreparedInputs",
    "next_batch",
]
