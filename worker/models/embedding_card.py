"""Makes the model card of an embedding model. It is the card of its weights, with a few fields
changed.

Pure. An embedding model has no KV cache and cannot be split over ranks. Its files limit the tokens
of an input; its `card.toml` may lower that limit.
"""

from __future__ import annotations

from bus.models.embedding_models import EmbeddingModel
from bus.wire.cards import ModelCard

WHOLE = "an embedding model runs on a single rank"


def embedding_card(card: ModelCard, settings: EmbeddingModel) -> ModelCard:
    """Return the card of an embedding model; `card` is derived from its config.json and weights."""
    return card.model_copy(
        update={
            "makes": "embedding",
            "dimensions": settings.dimensions,
            "dimension_choices": settings.dimension_choices,
            "dimensions_at_most": settings.width if settings.any_dimensions else 0,
            "context_tokens": min(card.context_tokens, settings.max_tokens),
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
