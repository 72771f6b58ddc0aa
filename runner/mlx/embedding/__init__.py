"""Talks to MLX: loads an embedding model and turns batches of inputs into vectors.

All arrays belong to the thread that loaded the model.
"""

from runner.mlx.embedding.engine import (
    EmbeddingEngine,
    EmbeddingFacts,
    UnfitDimensions,
    UnfitPrompt,
)

__all__ = ["EmbeddingEngine", "EmbeddingFacts", "UnfitDimensions", "UnfitPrompt"]
