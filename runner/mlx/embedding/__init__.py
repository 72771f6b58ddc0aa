"""Talks to MLX: an embedding model: its weights, its forward, and batches of inputs to vectors.

All arrays belong to the thread that loaded the model.
"""

from runner.mlx.embedding.engine import (
    EmbeddingEngine,
    EmbeddingFacts,
    UnfitDimensions,
    UnfitPrompt,
)

__all__ = ["EmbeddingEngine", "EmbeddingFacts", "UnfitDimensions", "UnfitPrompt"]
