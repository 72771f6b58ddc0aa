"""Talks to the disk: reads the directory of an embedding model or a reranker, and tokenises its
inputs."""

from runner.text.embedding.inputs import (
    EmbeddingFolder,
    EmbeddingInputs,
    EmbeddingPrompt,
    open_embedding_folder,
)
from runner.text.embedding.pairs import PairInputs

__all__ = [
    "EmbeddingFolder",
    "EmbeddingInputs",
    "EmbeddingPrompt",
    "PairInputs",
    "open_embedding_folder",
]
