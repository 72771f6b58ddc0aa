"""Talks to the disk: the inputs of an embedding model: its directory read, its texts as tokens."""

from runner.text.embedding.inputs import (
    EmbeddingFolder,
    EmbeddingInputs,
    EmbeddingPrompt,
    open_embedding_folder,
)

__all__ = ["EmbeddingFolder", "EmbeddingInputs", "EmbeddingPrompt", "open_embedding_folder"]
