"""The settings that a model is served with, and where each comes from.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bus.wire.cards import ModelCard
from bus.wire.model_cards.fields import NEUTRAL, NUMBERS
from bus.wire.shares import PRIORITIES

CARD, FILES, NODE = "card.toml", "the model's files", "the node's settings"
DEFAULT = "shoal's default"
AT_LOAD = "takes effect at the next load"
PARSERS = ("tool_parser", "reasoning_parser")
IN_MESSAGES = "special_tokens_in_messages"


def resolved(card: ModelCard) -> Iterator[tuple[str, Any, str, str]]:
    """Yield (name, value, source, remark) of each setting, by the names of `card.toml`; a value
    None is left to the source."""

    def source(key: str, other: str) -> str:
        """Return where a value comes from: the card where it says it."""
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
        yield "adapters", [one.name for one in card.adapters], CARD, AT_LOAD
    for name in PARSERS:
        if value := getattr(card, name):
            yield name, value, CARD, AT_LOAD
    if IN_MESSAGES in card.noted:
        yield IN_MESSAGES, card.special_tokens_in_messages, CARD, AT_LOAD
    if card.makes == "text":
        yield "kv", card.kv, source("kv", FILES if card.kv_full_because else NODE), AT_LOAD
    if "thinking" in card.capabilities:
        said = None if card.defaults is None else card.defaults.thinking
        thinks = card.thinking if said is None else said
        yield "thinking_default", thinks, source("thinking_default", FILES), ""
    if card.aliases:
        yield "aliases", list(card.aliases), CARD, ""
    if (said := card.defaults) is None:
        return
    for name in said.sampled:
        yield name, getattr(said.sampling, name), CARD, ""
    if said.priority is not None:
        yield "priority", said.priority, CARD, ""
    texts = ("stop", list(said.stop)), ("system", said.system), ("adapter", said.adapter)
    for name, value in texts:
        if value:
            yield name, value, CARD, ""
    if said.template:
        yield "template", said.template, CARD, ""


def all_settings(card: ModelCard) -> Iterator[tuple[str, Any, str, str]]:
    """Yield them as `resolved` does, and behind them what neither the card nor the model's files
    say, with the value that shoal takes then; None: none is taken."""
    said: set[str] = set()
    for one in resolved(card):
        said.add(one[0])
        yield one
    for key, value in (("pin", False), ("priority", PRIORITIES["normal"])):
        if key not in said:
            yield key, value, DEFAULT, ""
    if "memory_bytes" not in said:
        yield "memory_bytes", card.weights_bytes, FILES, ""
    if "metal_fast_synch" not in said:
        yield "metal_fast_synch", False, DEFAULT, AT_LOAD
    for key in ("compatible_backends", "backend_preference"):
        value = list(getattr(card, key))
        yield key, value or None, CARD if key in card.noted else DEFAULT, AT_LOAD
    if card.makes != "text":
        return
    if "adapters" not in said:
        yield "adapters", [one.name for one in card.adapters] or None, FILES, AT_LOAD
    if "adapter" not in said:
        yield "adapter", None, DEFAULT, ""
    for name in PARSERS:
        if name not in said:
            yield name, None, FILES, AT_LOAD
    if IN_MESSAGES not in said:
        yield IN_MESSAGES, False, DEFAULT, AT_LOAD
    for key in ("system", "stop", *NUMBERS):
        if key not in said:
            yield key, getattr(NEUTRAL, key, None), DEFAULT, ""
