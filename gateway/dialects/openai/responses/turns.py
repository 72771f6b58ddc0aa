"""Converts items to turns: consecutive thinking, text and calls of the assistant become one turn.

Pure. Images and files are refused, and the error names their path. In a tool's result they are
accepted, since the client cannot change that result: the model reads a note instead (`unseen_of`).
References, and items of tools of other kinds (`skipped_of`), belong to no turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bus.wire.messages.requests import ChatMessage, TextPart, ToolCall
from gateway.dialects.body import bad_field
from gateway.dialects.encode import json_bytes
from gateway.dialects.openai.responses import items
from gateway.dialects.openai.responses.shapes import unpacked_thought
from gateway.dialects.shared_fields import TEXT_ONLY, unseen

_Part = items.ResponsesTextPartBody | items.ResponsesRefusalPartBody | items.ResponsesMediaPartBody


@dataclass(slots=True)
class _AssistantTurn:
    """The assistant's thinking, text and calls since the last turn of another role."""

    thoughts: list[str] = field(default_factory=list[str])
    texts: list[TextPart] = field(default_factory=list[TextPart])
    calls: list[ToolCall] = field(default_factory=list[ToolCall])

    def messages(self) -> list[ChatMessage]:
        """Return the turn as a list; empty if it has no content."""
        if not (self.thoughts or self.texts or self.calls):
            return []
        turn = ChatMessage(
            role="assistant",
            parts=tuple(self.texts),
            reasoning="\n".join(self.thoughts) or None,
            tool_calls=tuple(self.calls),
        )
        return [turn]


def turns_of(input_items: Sequence[items.AnyItem], field: str = "input") -> tuple[ChatMessage, ...]:
    """Return the conversation. Raises BadRequest naming a part that is not text.

    `field` is the path of the items in the client's body.
    """
    turns: list[ChatMessage] = []
    open_turn = _AssistantTurn()
    for index, item in enumerate(input_items):
        where = f"{field}[{index}]"
        if _begins_a_turn(item, open_turn):
            turns += open_turn.messages()
            open_turn = _AssistantTurn()
        other = _add(item, open_turn, where)
        if other is not None:
            turns.append(other)
    return (*turns, *open_turn.messages())


def _begins_a_turn(item: items.AnyItem, open_turn: _AssistantTurn) -> bool:
    match item:
        case items.ResponsesReasoningBody():
            return bool(open_turn.texts or open_turn.calls)
        case items.ResponsesMessageBody(role="assistant"):
            return bool(open_turn.texts or open_turn.calls)
        case items.ResponsesCallBody() | items.ResponsesCustomCallBody():
            return False
        case items.ResponsesReferenceBody() | items.ResponsesForeignItemBody():
            return False
        case _:
            return True


def _add(item: items.AnyItem, open_turn: _AssistantTurn, where: str) -> ChatMessage | None:
    """Add an assistant's item to `open_turn`. If the item belongs to another role, return it as a
    turn; None otherwise."""
    match item:
        case items.ResponsesReasoningBody():
            open_turn.thoughts += _thoughts_of(item)
        case items.ResponsesCallBody():
            # a call without arguments is often sent back as empty text
            arguments = item.arguments or "{}"
            open_turn.calls.append(
                ToolCall(call_id=item.call_id, name=item.name, arguments=arguments)
            )
        case items.ResponsesCustomCallBody():
            arguments = json_bytes({"input": item.input}).decode()
            open_turn.calls.append(
                ToolCall(call_id=item.call_id, name=item.name, arguments=arguments)
            )
        case items.ResponsesMessageBody(role="assistant"):
            open_turn.texts += _texts_of(item.content, f"{where}.content")
        case items.ResponsesMessageBody():
            parts = _texts_of(item.content, f"{where}.content")
            return ChatMessage(role="user" if item.role == "user" else "system", parts=parts)
        case items.ResponsesCallOutputBody() | items.ResponsesCustomOutputBody():
            parts = _result_of(item.output)
            return ChatMessage(role="tool", parts=parts, tool_call_id=item.call_id)
        case items.ResponsesReferenceBody() | items.ResponsesForeignItemBody():
            pass
    return None


def _thoughts_of(item: items.ResponsesReasoningBody) -> list[str]:
    packed = None if item.content else unpacked_thought(item.encrypted_content)
    return [piece.text for piece in item.content or item.summary or ()] if not packed else [packed]


def unseen_of(input_items: Sequence[items.AnyItem], field: str = "input") -> list[str]:
    """Return the paths of non-text content in tool results."""
    return [
        f"{field}[{index}].output[{place}]"
        for index, item in enumerate(input_items)
        if isinstance(item, items.ResponsesCallOutputBody | items.ResponsesCustomOutputBody)
        and not isinstance(item.output, str)
        for place, part in enumerate(item.output)
        if isinstance(part, items.ResponsesMediaPartBody)
    ]


def skipped_of(input_items: Sequence[items.AnyItem], field: str = "input") -> list[str]:
    """Return the paths of items that belong to tools other than functions and custom tools."""
    return [
        f"{field}[{index}]"
        for index, item in enumerate(input_items)
        if isinstance(item, items.ResponsesForeignItemBody)
    ]


def _result_of(content: str | Sequence[_Part]) -> tuple[TextPart, ...]:
    """Return the text of a tool's result; a note replaces content that is not text."""
    if isinstance(content, str):
        return (TextPart(text=content),)
    texts = [
        unseen(part.type.removeprefix("input_"))
        if isinstance(part, items.ResponsesMediaPartBody)
        else TextPart(text=_text_of(part))
        for part in content
    ]
    return tuple(texts) or (TextPart(text=""),)


def _text_of(part: items.ResponsesTextPartBody | items.ResponsesRefusalPartBody) -> str:
    return part.text if isinstance(part, items.ResponsesTextPartBody) else part.refusal


def _texts_of(content: str | Sequence[_Part], field: str) -> tuple[TextPart, ...]:
    """Return the texts in the content of an item. If the content has no text, return one empty
    text."""
    if isinstance(content, str):
        return (TextPart(text=content),)
    texts: list[TextPart] = []
    for index, part in enumerate(content):
        if isinstance(part, items.ResponsesMediaPartBody):
            text = f"{TEXT_ONLY}; send the {part.type}'s text instead"
            raise bad_field(f"{field}[{index}]", text)
        texts.append(TextPart(text=_text_of(part)))
    return tuple(texts) or (TextPart(text=""),)
