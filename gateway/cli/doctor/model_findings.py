"""Findings about entries in a node's model folders that are not models or have no effect, and about
models that could not be loaded.

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
    """Yield a finding for each entry in this node's model folders that is no model or has no
    effect: a warning, or ok if it is harmless. Other folders, such as the Hugging Face cache, may
    contain anything. Yields a warning for each model that could not be loaded here. Yields nothing
    without a running node."""
    card = next((card for card in state.cards if card.node == state.node), None) if state else None
    if state is None or card is None:
        return
    mine = [
        entry
        for entry in card.passed_over
        if entry.taken or any(Path(entry.path).is_relative_to(folder) for folder in folders)
    ]
    for entry in mine:
        text, about = f"{entry.path}: {entry.why}", f"model {entry.name}"
        if entry.reason in HARMLESS:
            yield Finding(about, "ok", f"{text}; {entry.remedy}")
        else:
            yield Finding(about, "warn", text, entry.remedy)
    yield from _fast_synchs(card)
    yield from _failed(state)
    if card.passed_over_count > len(card.passed_over):
        more = card.passed_over_count - len(card.passed_over)
        yield Finding("models", "warn", f"{more} more entries are not models", CLEAR)
    if not mine:
        text = f"{len(card.models)} on this node's disk; the model folders hold nothing else"
        yield Finding("models", "ok", text)


def _failed(state: NodeState) -> Iterator[Finding]:
    """Yield a warning for each instance on this node whose load was given up."""
    for instance in state.instances:
        if instance.status == "failed" and any(s.node == state.node for s in instance.shards):
            text = f"{instance.model} could not be loaded: {instance.reason}"
            remedy = (
                f"correct the cause, then `shoal load {instance.model}`; see `shoal logs worker`"
            )
            yield Finding(f"model {instance.model}", "warn", text, remedy)


def _fast_synchs(card: NodeCard) -> Iterator[Finding]:
    """Yield a warning for each source (node or card) that turns on Metal's fast synchronisation."""
    texts = {
        "node": (
            "turned on by this node's settings",
            'set `metal_fast_synch = "card"` or `"off"` in [runner]',
        ),
        "card": (
            "turned on by their card.toml",
            "if the GPU hangs, remove the line with `shoal card edit`",
        ),
    }
    for by, (why, remedy) in texts.items():
        on = [
            model.model
            for model in card.models
            if model.metal_fast_synch and model.metal_fast_synch_by == by
        ]
        if on:
            names = ", ".join(on[:NAMED]) + (f" and {len(on) - NAMED} more" if on[NAMED:] else "")
            text = f"on for {names}: {why}; MLX warns that this may hang the GPU"
            yield Finding("metal_fast_synch", "warn", text, remedy)
