"""Mark the markup in a client's messages, so that the rendered prompt shows which markup came from
the client.

Pure. If a client's text spells out a markup token, a mark is inserted after the token's first
character. So the template also sees plain text there, and does not split the text at the token or
count it. A mark is one printable letter that occurs nowhere in the request, and that templates do
not trim, quote or change.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from runner.text.families import object_of
from runner.text.markup.spellings import Markup, Span, Spellings

_LETTERS = range(0x13000, 0x13430)
"""Egyptian hieroglyphs: letters without case that JSON and Python write unchanged."""

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Marking:
    """The messages and tools of a request, in which `mark` was inserted into each text that spells
    markup. `mark` is "" if they contain no markup."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    mark: str = ""


def marking_of(messages: Sequence[Message], tools: Sequence[Message], markup: Markup) -> Marking:
    """Return the messages and tools to pass to the template. Where a client's text spells out
    markup that must stay text, a mark is inserted, so that it does not become a control token.
    Messages without such markup are unchanged. All texts in `tools` come from the request."""
    if not _spell(messages, tools, markup):
        return Marking([dict(item) for item in messages], [dict(item) for item in tools])
    written = "".join([markup.written, *_strings(messages), *_strings(tools)])
    mark = next(chr(code) for code in _LETTERS if chr(code) not in written)

    def broken(text: str, spellings: Spellings) -> str:
        return spellings.broken_by(mark, text)

    return Marking(
        [_message(item, markup, broken) for item in messages],
        [_changed(item, lambda text: broken(text, markup.all)) for item in tools],
        mark,
    )


def spans_in(text: str, mark: str, markup: Markup) -> tuple[str, tuple[Span, ...]]:
    """Return a prompt without its marks, and the positions in it at which the client's texts spell
    markup."""
    if not mark:
        return text, ()
    pieces = text.split(mark)
    places: list[int] = []
    at = 0
    for piece in pieces[:-1]:
        at += len(piece)
        places.append(at)
    plain = "".join(pieces)
    return plain, tuple(
        (start, end)
        for start, end in markup.all.find(plain)
        if (after := bisect_right(places, start)) < len(places) and places[after] < end
    )


def _spell(messages: Sequence[Message], tools: Sequence[Message], markup: Markup) -> bool:
    """Return whether a text that the client wrote spells markup that would become control
    tokens."""
    if not markup.control and not markup.tags:
        return False
    has_calls = any("tool_calls" in message for message in messages)  # whose JSON may hide markup
    if not has_calls and not markup.all.occur_in([*_strings(messages), *_strings(tools)]):
        return False
    return markup.all.occur_in(_strings(tools)) or any(
        _spellings(message, field, markup).occur_in(_field_texts(field, value))
        for message in messages
        for field, value in message.items()
    )


def _spellings(message: Message, field: str, markup: Markup) -> Spellings:
    """Return the finder of the markup that must stay text, not become tokens, in this field of a
    message."""
    if field != "content" or message.get("role") == "tool":
        return markup.all
    return markup.in_answers if message.get("role") == "assistant" else markup.in_texts


def _field_texts(field: str, value: object) -> list[str]:
    texts = _strings(value)
    if field == "tool_calls":
        # JSON text, in which an escape may stand for a sign of a spelling
        texts += [inner for text in texts if "\\" in text for inner in _strings(object_of(text))]
    return texts


def _strings(value: object) -> list[str]:
    strings: list[str] = []
    left: list[Any] = [value]
    while left:
        value_left = left.pop()
        if isinstance(value_left, str):
            strings.append(value_left)
        elif isinstance(value_left, Mapping):
            mapping = cast(Mapping[str, Any], value_left)
            strings += mapping
            left += mapping.values()
        elif isinstance(value_left, list | tuple):
            left += cast(Sequence[Any], value_left)
    return strings


def _message(
    message: Message, markup: Markup, broken: Callable[[str, Spellings], str]
) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for field, value in message.items():
        spellings = _spellings(message, field, markup)

        def change(text: str, spellings: Spellings = spellings) -> str:
            """Return a text of this field in which a mark breaks every text of a markup token."""
            return broken(text, spellings)

        is_calls = field == "tool_calls"
        made[field] = _changed(value, _in_json(change, spellings) if is_calls else change)
    return made


def _in_json(change: Callable[[str], str], spellings: Spellings) -> Callable[[str], str]:
    """Return a function that applies `change` to a text. If the text is JSON and its escapes hide
    markup, the function changes the parsed strings and writes the JSON again."""

    def changed(text: str) -> str:
        """Return a text in which a mark breaks every text of a markup token, also inside JSON."""
        made = change(text)
        parsed = object_of(made) if "\\" in made else None
        if parsed is None or not spellings.occur_in(_strings(parsed)):
            return made
        return json.dumps(_changed(parsed, change), ensure_ascii=False)

    return changed


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    """Return plain data with `change` applied to every text in it, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        mapping = cast(Mapping[str, Any], value)
        return {change(name): _changed(item, change) for name, item in mapping.items()}
    if isinstance(value, list | tuple):
        return [_changed(item, change) for item in cast(Sequence[Any], value)]
    return value
