"""What lies where a node's models do and is not taken, as `shoal doctor` says it.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from gateway.cli.doctor.check import Finding
from gateway.cli.node.node_state import NodeState


def model_checks(state: NodeState | None, folders: Collection[Path]) -> Iterator[Finding]:
    """Yield a warning for each thing in this node's folders of models that is none, or has no
    effect. A cache of others may hold what it likes. Only a running node knows."""
    card = next((card for card in state.cards if card.node == state.asked), None) if state else None
    if card is None:
        return
    mine = [
        one
        for one in card.passed_over
        if one.taken or any(Path(one.path).is_relative_to(folder) for folder in folders)
    ]
    for one in mine:
        yield Finding(f"model {one.name}", "warn", f"{one.path}: {one.why}", one.remedy)
    if not mine:
        found = f"{len(card.models)} on this node's disk, and nothing in their folders that is none"
        yield Finding("models", "ok", found)
