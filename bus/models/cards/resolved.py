"""The settings that a model is served with, and where each value comes from: its card, its files or
the node's settings.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bus.models.cards.fields import NEUTRAL, NUMBERS
from bus.wire.cards import ModelCard
from bus.wire.shares import PRIORITIES

CARD, FILES, NODE = "card.toml", "the model's files", "the node's settings"
DEFAULT = "shoal's default"
AT_LOAD = "takes effect at the next load"
PARSERS = ("tool_parser", "reasoning_parser")
IN_MESSAGES = "special_tokens_in_messages"


def resolved(card: ModelCard) -> Iterator[tuple[str, Any, str, str]]:
    """Yield (name, value, source, remark) of each setting, by the names of `card.toml`. A value
    None means that no value is set here and the source decides."""

    def source(key: str, other: str) -> str:
        """Return `CARD` as the source of `key` if the card sets that key, else `other`."""
        return CARD if key in card.noted else other

    yield "context_tokens", card.context_tokens, source("context_tokens", FILES), AT_LOAD
    yield "default_max_tokens", card.default_max_tokens, source("default_max_tokens", NODE), AT_LOAD
    yield "keep_alive_s", card.keep_alive_s, source("keep_alive_s", NODE), AT_LOAD
    if "pin" in card.noted:
        yield "pin", card.pin, CARD, ""
    if card.memory_bytes:
        yield "memory_bytes", card.memory_bytes, CARD, ""
    if card.metal_fast_synch_by:
        by = CARD if card.metal_fast_synch_by == "card" else NODE
        yield "metal_fast_synch", card.metal_fast_synch, by, AT_LOAD
    if "adapters" in card.noted:
        yield "adapters", [adapter.name for adapter in card.adapters], CARD, AT_LOAD
    for name in PARSERS:
        if value := getattr(card, name):
            yield name, value, CARD, AT_LOAD
    if IN_MESSAGES in card.noted:
        yield IN_MESSAGES, card.special_tokens_in_messages, CARD, AT_LOAD
    if card.speculate is not None:
        yield "speculate", card.speculate, CARD, AT_LOAD
    for key, value in _proposer(card):
        yield key, value, source(key, DEFAULT), AT_LOAD
    if card.makes == "text":
        yield "kv", card.kv, source("kv", FILES if card.kv_full_because else NODE), AT_LOAD
    if "thinking" in card.capabilities:
        choice = None if card.defaults is None else card.defaults.thinking
        thinks = card.thinking if choice is None else choice
        yield "thinking_default", thinks, source("thinking_default", FILES), ""
    for key, value in (("prefill_on", card.prefill_on), ("aliases", list(card.aliases))):
        if value:
            yield key, value, CARD, ""
    if (defaults := card.defaults) is None:
        return
    for name in defaults.sampled:
        yield name, getattr(defaults.sampling, name), CARD, ""
    if defaults.priority is not None:
        yield "priority", defaults.priority, CARD, ""
    texts = (
        ("stop", list(defaults.stop)),
        ("system", defaults.system),
        ("adapter", defaults.adapter),
    )
    for name, value in texts:
        if value:
            yield name, value, CARD, ""
    if defaults.template:
        yield "template", defaults.template, CARD, ""


def _proposer(card: ModelCard) -> Iterator[tuple[str, Any]]:
    """Yield the settings that decide what drafts the model's tokens."""
    if (draft := card.draft) is None:
        return
    if draft.drafter == "draft_model":
        yield "draft_model", draft.model
        return
    if draft.drafter == "block":
        yield "block_folder", draft.folder or None
        return
    if draft.folder:
        yield "mtp_folder", draft.folder
    yield "mtp_depth", draft.depth


def all_settings(card: ModelCard) -> Iterator[tuple[str, Any, str, str]]:
    """Yield the settings of `resolved`, then all others with shoal's default; None: no default."""
    names: set[str] = set()
    for setting in resolved(card):
        names.add(setting[0])
        yield setting
    for key, value in (("pin", False), ("priority", PRIORITIES["normal"])):
        if key not in names:
            yield key, value, DEFAULT, ""
    if "memory_bytes" not in names:
        yield "memory_bytes", card.weights_bytes, FILES, ""
    if "metal_fast_synch" not in names:
        yield "metal_fast_synch", False, DEFAULT, AT_LOAD
    for key in ("compatible_backends", "backend_preference"):
        value = list(getattr(card, key))
        yield key, value or None, CARD if key in card.noted else DEFAULT, AT_LOAD
    if card.makes != "text":
        return
    if "adapters" not in names:
        yield "adapters", [adapter.name for adapter in card.adapters] or None, FILES, AT_LOAD
    if "adapter" not in names:
        yield "adapter", None, DEFAULT, ""
    for name in PARSERS:
        if name not in names:
            yield name, None, FILES, AT_LOAD
    if IN_MESSAGES not in names:
        yield IN_MESSAGES, False, DEFAULT, AT_LOAD
    for key in ("draft_model", "mtp_folder", "mtp_depth", "block_folder"):
        if key not in names:
            yield key, None, DEFAULT, AT_LOAD
    if "prefill_on" not in names:
        yield "prefill_on", None, DEFAULT, ""
    if "speculate" not in names:
        yield "speculate", None, NODE, AT_LOAD
    for key in ("system", "stop", *NUMBERS):
        if key not in names:
            yield key, getattr(NEUTRAL, key, None), DEFAULT, ""
