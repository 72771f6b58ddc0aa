"""Talks to the disks of all nodes: reads, writes and deletes a model's `card.toml` on each node
that has the model. `bus.models.cards` defines the contents of the file.
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
