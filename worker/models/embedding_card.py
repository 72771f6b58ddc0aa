"""The card of an embedding model: that of its weights, with what embedding changes about it.

Pure. Such a model keeps nothing between inputs, cannot be split over ranks, and an input has as
many tokens as its files say, or fewer where its notes do.
"""

from __future__ import annotations

from bus.wire.cards import ModelCard
from bus.wire.embedding_models import EmbeddingModel

WHOLE = "an embedding model runs on one rank alone"


def embedding_card(card: ModelCard, found: EmbeddingModel) -> ModelCard:
    """Return the card of a model that its files call an embedding model; `card` is what its
    config.json and weights say of it."""
    return card.model_copy(
        update={
            "makes": "embedding",
            "dimensions": found.dimensions,
            "dimension_choices": found.dimension_choices,
            "dimensions_at_most": found.width if found.any_dimensions else 0,
            "context_tokens": min(card.context_tokens, found.max_tokens),
            "capabilities": ("embedding",),
            "thinking": False,
            "kv_bytes_per_token": 0,
            "kv_bytes_fixed": 0,
            "layer_kv": (),
            "layer_kv_fixed": (),
            "tensor_sizes": {},
            "unsplit_because": WHOLE,
            "fetched_in_parts": False,
            "default_max_tokens": None,
        }
    )
