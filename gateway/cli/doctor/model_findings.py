"""What lies where a node's models do and is not taken, as `shoal doctor` says it.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from bus.wire.cards import NodeCard
from gateway.cli.doctor.check import Finding
from gateway.cli.node.node_state import NodeState

HARMLESS = ("stray", "odd_name", "still_written", "being_pulled")
NAMED = 5
CLEAR = "move the files that are not models, then check again"


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
    yield from _fast_synchs(card)
    if card.passed_over_count > len(card.passed_over):
        more = card.passed_over_count - len(card.passed_over)
        yield Finding("models", "warn", f"{more} more entries are not models", CLEAR)
    if not mine:
        found = f"{len(card.models)} on this node's disk; the model folders hold nothing else"
        yield Finding("models", "ok", found)


def _fast_synchs(card: NodeCard) -> Iterator[Finding]:
    """Yield a warning for who has Metal's fast synchronisation switched on, with the models."""
    told = {
        "node": (
            "this node's settings turn it on",
            'set `metal_fast_synch = "card"` or `"off"` in [runner]',
        ),
        "card": (
            "their card.toml turns it on",
            "if the GPU hangs, remove the line with `shoal card edit`",
        ),
    }
    for by, (why, remedy) in told.items():
        on = [
            model.model
            for model in card.models
            if model.metal_fast_synch and model.metal_fast_synch_by == by
        ]
        if on:
            names = ", ".join(on[:NAMED]) + (f" and {len(on) - NAMED} more" if on[NAMED:] else "")
            found = f"on for {names}: {why}; MLX warns that it may hang the GPU"
            yield Finding("metal_fast_synch", "warn", found, remedy)
