"""What lies where a node's models do and is not taken, as `shoal doctor` says it.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from gateway.cli.doctor.check import Finding
from gateway.cli.node.node_state import NodeState

HARMLESS = ("stray", "odd_name", "still_written", "being_pulled")
CLEAR = "move away what is no model, and look again"


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
        found, about = f"{one.path}: {one.why}", f"model {one.name}"
        if one.reason in HARMLESS:
            yield Finding(about, "ok", f"{found}; {one.remedy}")
        else:
            yield Finding(about, "warn", found, one.remedy)
    if card.passed_over_count > len(card.passed_over):
        more = card.passed_over_count - len(card.passed_over)
        yield Finding("models", "warn", f"{more} more things lie there that are not taken", CLEAR)
    if not mine:
        found = f"{len(card.models)} on this node's disk, and nothing in their folders that is none"
        yield Finding("models", "ok", found)
