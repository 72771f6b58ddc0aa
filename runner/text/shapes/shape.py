"""The shape of messages that one chat template shows whole. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class TemplateShape:
    """How messages are written for one template; the defaults are what most templates take.

    `content`: one string, or a list of text parts. `system`: messages of that role are shown
    anywhere, at the beginning only, or nowhere (the rest becomes the user's text). `turns`: two
    messages of one role in a row are shown, or must be joined. `empty`: the content of a message
    with calls and no text. `arguments`: an object, or its JSON text. `ids`: a call's id as it is,
    or nine letters and digits. `calls`: several in one message, one in each, or not shown.
    `beside`: text beside calls is shown, only in a message of its own, or not at all. `results`
    and `tools`: whether they are shown; tools by their variable, or as JSON in a system message.
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
        """Return what differs from most templates, for people; nothing where nothing does."""
        told = (getattr(self, name) for name in _WORDS)
        return tuple(
            words[value]
            for words, value in zip(_WORDS.values(), told, strict=True)
            if value in words
        )


PLAIN = TemplateShape()

_WORDS: dict[str, dict[str, str]] = {
    "content": {"parts": "content as a list of parts"},
    "system": {
        "first": "system text at the beginning only; later system text goes into user messages",
        "none": "no system role; system text goes into user messages",
    },
    "turns": {"alternating": "messages of one role in a row are joined"},
    "tools": {
        "system": "tools as JSON in the system message",
        "unseen": "tools are not shown",
    },
    "calls": {
        "single": "one tool call in each message",
        "unseen": "tool calls of earlier turns are not shown",
    },
    "empty": {
        "null": "content is null beside tool calls",
        "absent": "no content beside tool calls",
    },
    "arguments": {"text": "arguments of tool calls as JSON text"},
    "ids": {"nine": "ids of tool calls have nine letters and digits"},
    "beside": {
        "apart": "text beside tool calls in a message of its own",
        "unseen": "text beside tool calls is not shown",
    },
    "results": {"unseen": "tool results are not shown"},
}
