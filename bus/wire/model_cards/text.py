"""The text of a `card.toml`: made of its settings, added to, and begun for one who edits it.

Pure. What is made here reads back as what it was made of (`bus.wire.model_cards.fields`).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import Any, cast

from bus.wire.ids import ModelId
from bus.wire.model_cards.fields import BadCard, notes_from

EXAMPLES: Mapping[str, tuple[str, str]] = {
    "aliases": ('["short-name"]', "more names for it"),
    "system": ('"Answer in one sentence."', "for a conversation that begins with none"),
    "temperature": ("0.7", "how tokens are chosen where a request does not say"),
    "top_p": ("0.9", ""),
    "top_k": ("40", ""),
    "min_p": ("0.05", ""),
    "seed": ("7", ""),
    "frequency_penalty": ("0.0", ""),
    "presence_penalty": ("0.0", ""),
    "repetition_penalty": ("1.1", ""),
    "stop": ('["END"]', "texts that end an answer"),
    "thinking_default": ("false", "whether it thinks where a request does not say"),
    "pin": ("true", "it stays in memory"),
    "priority": (
        '"low"',
        "of requests that name none: urgent, high, normal, low, batch, 0 to 1000",
    ),
    "adapter": ('"pirate"', "for requests that name the model alone"),
    "adapters": ('["pirate"]', "which are loaded, else all; from the next load on"),
    "context_tokens": ("8192", "less than it was made for; from the next load on"),
    "default_max_tokens": ("1024", "of an answer that names no limit; from the next load on"),
    "keep_alive_s": ("600", "idle seconds until it leaves, -1: never; from the next load on"),
    "memory_bytes": ("5_000_000_000", "what its weights take in memory, for the bill of a load"),
    "metal_fast_synch": ("true", "Metal's fast synchronisation; from the next load on"),
    "tool_parser": ('"qwen3_coder"', "how calls are read; none: not; from the next load on"),
    "reasoning_parser": ('"think"', "how thinking is read; none: not; from the next load on"),
    "special_tokens_in_messages": (
        "true",
        "those that messages spell are tokens, not text; from the next load on",
    ),
    "kv": (
        '"8bit"',
        "how its KV is held: full, 8bit, 4bit or a window as window:4096; from the next load on",
    ),
    "compatible_backends": ('["mlx-metal", "mlx-cpu"]', "those that can run it"),
    "backend_preference": ('["mlx-metal"]', "the better ones, in order"),
    "name": ('"A model"', "for people"),
    "summary": ('"What it is good at."', "for people"),
    "license": ('"apache-2.0"', "for people"),
}
"""Each key that may be written, with an example of its value, and what it says."""
_ESCAPED_DELETE = "\\u007f"


def card_text(fields: Mapping[str, Any]) -> str:
    """Return the text of a card that says this. Raises BadCard for what no card may say."""
    notes_from(fields)
    return "".join(f"{key} = {_value(fields[key])}\n" for key in fields)


def beginning(model: ModelId) -> str:
    """Return the text that an editor shows for a model without a card: every key, and none said."""
    lines = [
        f"# The card of {model}: remove the # before each setting that you want.",
        "# All nodes that have the model share it. It takes effect when it is written.",
        "",
    ]
    for key, (value, about) in EXAMPLES.items():
        lines.append(f"# {key} = {value}" + (f"  # {about}" if about else ""))
    return "\n".join(lines) + "\n"


def with_setting(text: str, key: str, value: str) -> str:
    """Return the text of a card with one more line. `value` is TOML, and a text where it is none.
    Raises BadCard where the card has that key."""
    try:
        known = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadCard(f"the existing card is not valid TOML: {error}; fix that first") from error
    if key in known:
        raise BadCard(f"{key} is already set; change that line with `shoal card edit`", key)
    try:
        tomllib.loads(f"it = {value}")
        said = value
    except ValueError:
        said = _text(value)
    ended = text if not text or text.endswith("\n") else f"{text}\n"
    return f"{ended}{key} = {said}\n"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, cast(list[object], value)))}]"
    return repr(value)


def _text(text: str) -> str:
    """Return a text in TOML, over several lines where it has some."""
    if "\n" not in text:
        return f'"{_escaped(text)}"'
    return '"""\n' + "\n".join(map(_escaped, text.split("\n"))) + '"""'


def _escaped(line: str) -> str:
    return json.dumps(line, ensure_ascii=False)[1:-1].replace("\x7f", _ESCAPED_DELETE)
