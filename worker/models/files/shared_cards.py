"""What the cards of all models on a disk say together: names that would mean two models, and how
much of them goes to all nodes.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from bus.wire.cards import ModelCard
from bus.wire.ids import ModelId
from worker.models.passed_over import Unfit

ALL_SAID_BYTES = 256 << 10
"""What all cards of a node may say to requests."""


def reconciled(
    cards: Mapping[ModelId, ModelCard],
) -> tuple[dict[ModelId, ModelCard], list[tuple[ModelId, Unfit]]]:
    """Return the cards without names that another model has, and without what is too much, and what
    is said of each. Models go in the order of their names."""
    found: dict[ModelId, ModelCard] = {}
    said: list[tuple[ModelId, Unfit]] = []
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
                why = f"card.toml: the alias {alias} has no effect, for it means {owner}"
                said.append((model, Unfit("alias_taken", why, "choose another name")))
        defaults = card.defaults
        left -= 0 if defaults is None else defaults.size_bytes
        if defaults is not None and left < 0:
            why = f"card.toml: the cards here say more than {ALL_SAID_BYTES >> 10} KiB to requests"
            said.append((model, Unfit("no_effect", why, "shorten them; this one's has no effect")))
            defaults = None
        if tuple(aliases) != card.aliases or defaults is not card.defaults:
            card = card.model_copy(update={"aliases": tuple(aliases), "defaults": defaults})
        found[model] = card
    return found, said
