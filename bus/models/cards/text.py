"""Writes the text of a `card.toml`: from settings, by adding a setting to a text, or as a template
for an editor.

Pure. The text reads back as the same settings (`bus.models.cards.fields`).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import Any, cast

from bus.models.cards.fields import BadCard, notes_from
from bus.wire.ids import ModelId

EXAMPLES: Mapping[str, tuple[str, str]] = {
    "aliases": ('["short-name"]', "more names of the model"),
    "system": ('"Answer in one sentence."', "system prompt of conversations without one"),
    "temperature": ("0.7", "default sampling, for requests that do not set it"),
    "top_p": ("0.9", ""),
    "top_k": ("40", ""),
    "min_p": ("0.05", ""),
    "seed": ("7", ""),
    "frequency_penalty": ("0.0", ""),
    "presence_penalty": ("0.0", ""),
    "repetition_penalty": ("1.1", ""),
    "stop": ('["END"]', "strings that end an answer"),
    "thinking_default": ("false", "default, for requests that do not set it"),
    "pin": ("true", "the model stays in memory"),
    "priority": (
        '"low"',
        "default priority of requests: urgent, high, normal, low, batch, 0 to 1000",
    ),
    "adapter": ('"pirate"', "default, for requests that name no adapter"),
    "adapters": ('["pirate"]', "adapters to load; not set: all; from the next load on"),
    "context_tokens": ("8192", "at most the model's own limit; from the next load on"),
    "default_max_tokens": ("1024", "default limit of an answer; from the next load on"),
    "keep_alive_s": ("600", "idle seconds until it is unloaded, -1: never; from the next load on"),
    "memory_bytes": ("5_000_000_000", "memory of the model's weights, for placement"),
    "metal_fast_synch": ("true", "Metal's fast synchronisation; from the next load on"),
    "tool_parser": ('"qwen3_coder"', "parser of tool calls, or none; from the next load on"),
    "reasoning_parser": ('"think"', "parser of thinking, or none; from the next load on"),
    "special_tokens_in_messages": (
        "true",
        "special tokens in messages are tokens, not text; from the next load on",
    ),
    "speculate": (
        '"ngram"',
        "how tokens are drafted: auto, off, ngram, grammar, draft_model, mtp, block or "
        "remote; from the next load on",
    ),
    "draft_model": (
        '"small-model"',
        "smaller model with the same tokenizer that drafts tokens; from the next load on",
    ),
    "mtp_folder": (
        '"mtp"',
        "folder inside the model's folder with its MTP head, which drafts tokens; from the next "
        "load on",
    ),
    "mtp_depth": ("1", "the most tokens that the MTP head guesses in a row; from the next load on"),
    "block_folder": (
        '"block"',
        "folder inside the model's folder with its block drafter; from the next load on",
    ),
    "prefill_on": (
        '"auto"',
        "node that computes long prompts for instances on other nodes; auto: the fastest",
    ),
    "kv": (
        '"8bit"',
        "KV format: full, 8bit, 4bit or a window such as window:4096; from the next load on",
    ),
    "compatible_backends": ('["mlx-metal", "mlx-cpu"]', "backends that can run it"),
    "backend_preference": ('["mlx-metal"]', "preferred backends, best first"),
    "name": ('"A model"', "for display"),
    "summary": ('"What it is good at."', "for display"),
    "license": ('"apache-2.0"', "for display"),
}
"""All keys of a card: an example of the value, and a comment."""
_ESCAPED_DELETE = "\\u007f"


def card_text(fields: Mapping[str, Any]) -> str:
    """Return the text of a card with these settings. Raises BadCard for an invalid setting."""
    notes_from(fields)
    return "".join(f"{key} = {_value(fields[key])}\n" for key in fields)


def beginning(model: ModelId) -> str:
    """Return an editor's first text for a model without a card: all keys, commented out."""
    lines = [
        f"# The card of {model}: remove the # before each setting that you want.",
        "# All nodes that have the model share it. It takes effect when it is written.",
        "",
    ]
    for key, (value, about) in EXAMPLES.items():
        lines.append(f"# {key} = {value}" + (f"  # {about}" if about else ""))
    return "\n".join(lines) + "\n"


def with_setting(text: str, key: str, value: str) -> str:
    """Return the text of a card with one more setting. `value` is TOML; a value that is not valid
    TOML is quoted as a string. Raises BadCard if the card already has that key."""
    try:
        existing = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadCard(f"the existing card is not valid TOML: {error}; fix that first") from error
    if key in existing:
        raise BadCard(f"{key} is already set; change that line with `shoal card edit`", key)
    try:
        tomllib.loads(f"it = {value}")
        literal = value
    except ValueError:
        literal = _text(value)
    ended = text if not text or text.endswith("\n") else f"{text}\n"
    return f"{ended}{key} = {literal}\n"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, cast(list[object], value)))}]"
    return repr(value)


def _text(text: str) -> str:
    """Return a string in TOML's notation: a multi-line string if it has line breaks."""
    if "\n" not in text:
        return f'"{_escaped(text)}"'
    return '"""\n' + "\n".join(map(_escaped, text.split("\n"))) + '"""'


def _escaped(line: str) -> str:
    return json.dumps(line, ensure_ascii=False)[1:-1].replace("\x7f", _ESCAPED_DELETE)
