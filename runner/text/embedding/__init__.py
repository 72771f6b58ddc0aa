"""Talks to the disk: reads an embedding model's directory and tokenises its inputs."""

from runner.text.embedding.inputs import (
    EmbeddingFolder,
    EmbeddingInputs,
    EmbeddingPrompt,
    open_embedding_folder,
)

__all__ = ["EmbeddingFolder", "EmbeddingInputs", "EmbeddingPrompt", "open_embedding_folder"]
