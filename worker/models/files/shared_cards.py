"""Resolve conflicts between the cards of all models on a disk: duplicate names, and `card.toml`
settings that exceed a total size. The size is limited because all nodes get the settings.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from bus.wire.cards import ModelCard
from bus.wire.ids import ModelId
from worker.models.files.draft_models import with_draft
from worker.models.passed_over import Unfit

ALL_SAID_BYTES = 256 << 10
"""Maximum size in bytes of all request settings in the `card.toml` files of a node together."""


def reconciled(
    cards: Mapping[ModelId, ModelCard],
) -> tuple[dict[ModelId, ModelCard], list[tuple[ModelId, Unfit]]]:
    """Return the cards without aliases that another model already has, and without the settings
    that exceed the size limit. Also return notices about both cases, and about draft models and
    drafters that cannot be used. Models are processed in the order of their names."""
    accepted: dict[ModelId, ModelCard] = {}
    notices: list[tuple[ModelId, Unfit]] = []
    owners: dict[str, ModelId] = {name.casefold(): name for name in cards}
    left = ALL_SAID_BYTES
    for model in sorted(cards):
        card = cards[model]
        aliases: list[ModelId] = []
        for alias in card.aliases:
            owner = owners.setdefault(alias.casefold(), model)
            if owner == model:
                aliases.append(alias)
            else:
                why = f"card.toml: the alias {alias} has no effect; it is already used by {owner}"
                notices.append((model, Unfit("alias_taken", why, "choose another name")))
        defaults = card.defaults
        left -= 0 if defaults is None else defaults.size_bytes
        if defaults is not None and left < 0:
            why = (
                f"card.toml: the card.toml files of this node exceed {ALL_SAID_BYTES >> 10} KiB in "
                "total, so this one has no effect"
            )
            notices.append((model, Unfit("no_effect", why, "shorten the card.toml files")))
            defaults = None
        if tuple(aliases) != card.aliases or defaults is not card.defaults:
            card = card.model_copy(update={"aliases": tuple(aliases), "defaults": defaults})
        accepted[model] = card
    for model, card in accepted.items():
        if (changed := with_draft(card, cards)) is not None:
            accepted[model], unfit = changed
            notices += [(model, unfit)] if unfit is not None else []
    return accepted, notices
