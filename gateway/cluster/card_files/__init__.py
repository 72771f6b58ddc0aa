"""Talks to the disks of all nodes: the `card.toml` of a model, read, written and taken away on each
node that has the model. What it may say is `bus.wire.model_cards`'s.
"""

from gateway.cluster.card_files.nodes import (
    CardChanged,
    CardFiles,
    CardKept,
    CardOnNode,
    newest_of,
    tag_of,
)

__all__ = ["CardChanged", "CardFiles", "CardKept", "CardOnNode", "newest_of", "tag_of"]
