"""Check that the prompt made by a template contains everything in the conversation. Pure.

Each text is first searched for unchanged, which is cheap. If a text is not found, the template may
have trimmed, quoted or split it. So the conversation is rendered again with a mark in place of that
text. The text counts as lost only if the mark is missing, too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from bus.wire.messages.requests import ChatMessage, ChatPrompt, TextPart, ToolCall
from runner.text.families import object_of
from runner.text.shapes.shape import TemplateShape

QUOTED_CHARACTERS = 60
_WORDS = {"system": "the system text", "user": "a user's text", "assistant": "an answer",
          "tool": "a tool's result"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LostPart:
    """A part of a conversation that the template did not show. It belongs to the message at index
    `place`. It is the text of that message (`call` None) or its tool call number `call`."""

    place: int
    call: int | None
    message: ChatMessage

    @property
    def field(self) -> str:
        path = f"messages[{self.place}]"
        return f"{path}.content" if self.call is None else f"{path}.tool_calls[{self.call}]"

    @property
    def is_beside(self) -> bool:
        """Return whether this part is the text of a message that also has tool calls."""
        return self.call is None and bool(self.message.tool_calls)

    @property
    def words(self) -> str:
        """Return a description of the part for people, with the beginning of its text."""
        if self.call is not None:
            return f"a call of the tool {self.message.tool_calls[self.call].name!r}"
        text = " ".join(_text(self.message).split())
        cut = text if len(text) <= QUOTED_CHARACTERS else text[:QUOTED_CHARACTERS] + "..."
        return f"{_WORDS[self.message.role]} ({json.dumps(cut, ensure_ascii=False)})"


def lost_parts(
    prompt: ChatPrompt, unseen: Sequence[LostPart], render: Callable[[ChatPrompt], str | None]
) -> tuple[LostPart, ...]:
    """Return those of the `unseen` parts of `prompt` that its text does not show in any form.
    `render` returns the rendering of another prompt, None if the template refuses it."""
    marked = render(_marked(prompt, unseen))
    if marked is None:
        return ()
    return tuple(lost for number, lost in enumerate(unseen) if _mark(number) not in marked)


def unseen_parts(prompt: ChatPrompt, text: str, shape: TemplateShape) -> list[LostPart]:
    """Return the parts of a prompt that are not in its text unchanged. Also return parts of kinds
    that a template of this shape does not show: their words may be there for another reason."""
    unseen: list[LostPart] = []
    sought = _Sought(text)
    for place, message in enumerate(prompt.messages):
        content = _text(message).strip()
        is_unseen = message.role == "tool" and shape.results == "unseen" and bool(content)
        if is_unseen or not sought.has(content):
            unseen.append(LostPart(place, None, message))
        for number, call in enumerate(message.tool_calls):
            is_unseen = shape.calls == "unseen"
            if is_unseen or not all(map(sought.has_somewhere, _texts_of(call))):
                unseen.append(LostPart(place, number, message))
    return unseen


class _Sought:
    """The text of a prompt, in which the texts of the messages are searched for in order."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._from = 0
        self._counts: Counter[str] = Counter()

    def has(self, part: str) -> bool:
        """Return whether a part occurs after the previously found part, or anywhere else. Each
        occurrence counts once per search."""
        if not part:
            return True
        self._counts[part] += 1
        at = self._text.find(part, self._from)
        if at >= 0:
            self._from = at + len(part)
            return True
        quoted = _quoted(part)
        count = self._counts[part]
        return self._text.count(part) >= count or (
            quoted != part and self._text.count(quoted) >= count
        )

    def has_somewhere(self, part: str) -> bool:
        """Return whether a part occurs anywhere, unchanged or within JSON."""
        return part in self._text or _quoted(part) in self._text


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _text(message: ChatMessage) -> str:
    return "\n".join(part.text for part in message.parts if isinstance(part, TextPart))


def _texts_of(call: ToolCall) -> Iterator[str]:
    """Yield the texts of a call: its name, and the names and texts of its arguments."""
    yield call.name
    arguments = object_of(call.arguments)
    if arguments is None:
        yield call.arguments.strip()
        return
    left: list[Any] = [arguments]
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            mapping = cast(Mapping[str, Any], value)
            yield from mapping
            left += mapping.values()
        elif isinstance(value, list):
            left += cast(list[Any], value)
        elif isinstance(value, str):
            yield value.strip()


def _mark(number: int) -> str:
    return f"qvx{number}xvq"


def _marked(prompt: ChatPrompt, unseen: Sequence[LostPart]) -> ChatPrompt:
    """Return the prompt with a mark (a unique text) in place of each part in `unseen`: the parts
    that were not found in the rendered text."""
    messages = list(prompt.messages)
    for number, lost in enumerate(unseen):
        message, mark = messages[lost.place], _mark(number)
        if lost.call is None:
            update: dict[str, Any] = {"parts": (TextPart(text=mark),)}
        else:
            calls = list(message.tool_calls)
            arguments = json.dumps({"text": mark})
            calls[lost.call] = calls[lost.call].model_copy(update={"arguments": arguments})
            update = {"tool_calls": tuple(calls)}
        messages[lost.place] = message.model_copy(update=update)
    return prompt.model_copy(update={"messages": tuple(messages)})
