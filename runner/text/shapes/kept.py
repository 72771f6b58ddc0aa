"""Whether all that a conversation says stands in the prompt that a template made of it. Pure.

Texts are sought as they are, which is cheap. One that is not there may have been trimmed, quoted
or taken apart by the template: then the conversation is rendered once more with a mark in its
place, and only where the mark does not show is the text lost.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
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
    """A part of a conversation that the template does not show: message `place`, and of its calls
    the one at `call`; None: its text. `is_beside`: the text of a message that has calls as well."""

    place: int
    call: int | None
    message: ChatMessage

    @property
    def field(self) -> str:
        """Return the path of the part."""
        path = f"messages[{self.place}]"
        return f"{path}.content" if self.call is None else f"{path}.tool_calls[{self.call}]"

    @property
    def is_beside(self) -> bool:
        """Return whether it is the text of a message that has calls as well."""
        return self.call is None and bool(self.message.tool_calls)

    @property
    def words(self) -> str:
        """Return what it is, for people, with how it begins."""
        if self.call is not None:
            return f"a call of the tool {self.message.tool_calls[self.call].name!r}"
        text = " ".join(_text(self.message).split())
        cut = text if len(text) <= QUOTED_CHARACTERS else text[:QUOTED_CHARACTERS] + "..."
        return f"{_WORDS[self.message.role]} ({json.dumps(cut, ensure_ascii=False)})"


def lost_parts(
    prompt: ChatPrompt,
    text: str,
    shape: TemplateShape,
    render: Callable[[ChatPrompt], str | None],
) -> tuple[LostPart, ...]:
    """Return what of `prompt` does not stand in `text`, which a template of this shape made of it.
    `render` returns what it makes of another prompt, None where it refuses that one."""
    unseen = [*_unseen(prompt, text, shape)]
    if not unseen:
        return ()
    marked = render(_marked(prompt, unseen))
    if marked is None:
        return ()
    return tuple(lost for number, lost in enumerate(unseen) if _mark(number) not in marked)


def _unseen(prompt: ChatPrompt, text: str, shape: TemplateShape) -> Iterator[LostPart]:
    """Yield the parts of a prompt that do not stand in its text as they are, and those of kinds
    that a template of this shape does not show: their words may stand there for another reason."""
    sought = _Sought(text)
    for place, message in enumerate(prompt.messages):
        content = _text(message).strip()
        is_unseen = message.role == "tool" and shape.results == "unseen" and bool(content)
        if is_unseen or not sought.has(content):
            yield LostPart(place, None, message)
        for number, call in enumerate(message.tool_calls):
            is_unseen = shape.calls == "unseen"
            if is_unseen or not all(map(sought.has_somewhere, _texts_of(call))):
                yield LostPart(place, number, message)


class _Sought:
    """A prompt's text in which those of its messages are sought, one after the other."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._from = 0
        self._counts: Counter[str] = Counter()

    def has(self, part: str) -> bool:
        """Return whether a part stands behind the last one, or elsewhere once for each time that
        it was sought."""
        if not part:
            return True
        self._counts[part] += 1
        found = self._text.find(part, self._from)
        if found >= 0:
            self._from = found + len(part)
            return True
        quoted = _quoted(part)
        count = self._counts[part]
        return self._text.count(part) >= count or (
            quoted != part and self._text.count(quoted) >= count
        )

    def has_somewhere(self, part: str) -> bool:
        """Return whether a part stands anywhere, as it is or within JSON."""
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
            known = cast(Mapping[str, Any], value)
            yield from known
            left += known.values()
        elif isinstance(value, list):
            left += cast(list[Any], value)
        elif isinstance(value, str):
            yield value.strip()


def _mark(number: int) -> str:
    return f"qvx{number}xvq"


def _marked(prompt: ChatPrompt, unseen: list[LostPart]) -> ChatPrompt:
    """Return the prompt with a mark in the place of each part that is not seen."""
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
