"""The message shape that a chat template shows completely. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class TemplateShape:
    """How to write messages for one template; the defaults suit most templates.

    A part of a message is shown if the template writes it into the prompt.

    `content`: one string, or a list of text parts. `system`: system messages are shown anywhere, at
    the beginning only, or nowhere (the rest becomes the user's text). `turns`: consecutive messages
    of one role are shown, or must be joined. `empty`: the content of a message with calls and no
    text. `arguments`: an object, or its JSON text. `ids`: a call's id unchanged, or nine letters
    and digits. `calls`: several per message, one per message, or not shown. `beside`: text next to
    calls is shown, only in a message of its own, or not at all. `results` and `tools`: whether they
    are shown; tools by their variable, or as JSON in a system message.
    """

    content: Literal["text", "parts"] = "text"
    system: Literal["anywhere", "first", "none"] = "anywhere"
    turns: Literal["free", "alternating"] = "free"
    empty: Literal["text", "null", "absent"] = "text"
    arguments: Literal["object", "text"] = "object"
    ids: Literal["any", "nine"] = "any"
    calls: Literal["several", "single", "unseen"] = "several"
    beside: Literal["together", "apart", "unseen"] = "together"
    results: Literal["seen", "unseen"] = "seen"
    tools: Literal["variable", "system", "unseen"] = "variable"

    @property
    def words(self) -> tuple[str, ...]:
        """Return phrases that say how this shape differs from that of most templates; empty if it
        does not differ."""
        values = (getattr(self, name) for name in _WORDS)
        return tuple(
            words[value]
            for words, value in zip(_WORDS.values(), values, strict=True)
            if value in words
        )


PLAIN = TemplateShape()

_WORDS: dict[str, dict[str, str]] = {
    "content": {"parts": "content as a list of parts"},
    "system": {
        "first": "system text only at the beginning; later system text goes into user messages",
        "none": "no system role; system text goes into user messages",
    },
    "turns": {"alternating": "consecutive messages of one role are joined"},
    "tools": {
        "system": "tools as JSON in the system message",
        "unseen": "the template omits tools",
    },
    "calls": {
        "single": "one tool call per message",
        "unseen": "the template omits tool calls of earlier turns",
    },
    "empty": {
        "null": "content is null next to tool calls",
        "absent": "no content next to tool calls",
    },
    "arguments": {"text": "arguments of tool calls as JSON text"},
    "ids": {"nine": "ids of tool calls have nine letters and digits"},
    "beside": {
        "apart": "text next to tool calls goes into a message of its own",
        "unseen": "the template omits text next to tool calls",
    },
    "results": {"unseen": "the template omits tool results"},
}
