"""Finds the draft models that cards name, among the models of the same node. Pure.

A runner loads a draft model beside its target if both are on its node. Otherwise it uses a ready
instance on another node, if there is one (decision 0105). A draft model that is missing costs
speed, never an answer: the model then decodes plainly, and `shoal ls` has a notice.
"""

from __future__ import annotations

from collections.abc import Mapping

from bus.models.gguf import DTYPE
from bus.wire.cards import ModelCard
from bus.wire.ids import ModelId
from bus.wire.messages.requests import DraftWeights
from worker.models.passed_over import Unfit

DRAFTER_KEYS = ("draft_model", "mtp_folder", "mtp_depth", "block_folder")


def with_draft(
    card: ModelCard, cards: Mapping[ModelId, ModelCard]
) -> tuple[ModelCard, Unfit | None] | None:
    """Return the card with the path and sizes of its draft model, and a notice if a key of the card
    has no effect. Return None if the card names neither a draft model nor a drafter."""
    if not _is_mlx_text(card):
        keys = [key for key in DRAFTER_KEYS if key in card.noted]
        if not keys and card.speculate in (None, "auto", "off"):
            return None
        key = keys[0] if keys else f"speculate = {card.speculate}"
        why = f"card.toml: {key} has no effect: it needs a text model in MLX"
        return card.model_copy(update={"draft": None}), Unfit("no_effect", why, "remove the key")
    if card.draft is None or card.draft.drafter != "draft_model":
        return None
    draft = cards.get(card.draft.model)
    if (why_not := _why_not(card, draft)) is None and draft is not None:
        weights = DraftWeights(
            model=draft.model,
            path=draft.path,
            weights_bytes=draft.weights_bytes,
            kv_bytes_per_token=draft.kv_bytes_per_token,
        )
        return card.model_copy(update={"draft": weights}), None
    name = card.draft.model
    text = f"card.toml: the draft model {name} has no effect: {why_not}"
    if draft is None:
        text = (
            f"card.toml: the draft model {name} is not on this node; it drafts only while it is "
            "loaded on another node"
        )
    remedy = f"`shoal pull {name}` on this node, or remove draft_model"
    missing = DraftWeights(model=name, why_not=f"the draft model {name} cannot be used: {why_not}")
    return card.model_copy(update={"draft": missing}), Unfit("no_effect", text, remedy)


def _why_not(card: ModelCard, draft: ModelCard | None) -> str | None:
    if draft is None:
        return "it is not on this node"
    if not _is_mlx_text(draft):
        return "it is not a text model in MLX"
    if draft.weights_bytes >= card.weights_bytes:
        return "it is not smaller than the model"
    return None


def _is_mlx_text(card: ModelCard) -> bool:
    return card.makes == "text" and card.dtype != DTYPE and card.origin != "engine"
