"""A conversation as the messages that one chat template shows whole. Pure.

Hugging Face templates know `content`, `reasoning_content`, `tool_calls`, and on results
`tool_call_id` and the tool's `name`. Where templates differ, a `TemplateShape` says how.
"""

from __future__ import annotations

import hashlib
import json
import string
from collections.abc import Mapping, Sequence
from typing import Any

from bus.wire.errors import BadRequest
from bus.wire.messages.requests import ChatMessage, ChatPrompt, TextPart, ToolCall, ToolSpec
from runner.text.families import object_of
from runner.text.shapes.shape import PLAIN, TemplateShape

JOINED_BY = "\n\n"
"""Stands between texts that become one message."""
NINE = 9
_ALPHABET = string.ascii_letters + string.digits

Message = dict[str, Any]


def chat_messages(
    prompt: ChatPrompt, shape: TemplateShape = PLAIN, tools: Sequence[ToolSpec] = ()
) -> list[Message]:
    """Return the messages in the shape that a template wants, the results of calls made together
    in the order of those calls: most templates show no ids, and tell results apart by order.

    `tools` go into a system message where the template looks for them there. Raises BadRequest,
    naming the field.
    """
    names = {call.call_id: call.name for message in prompt.messages for call in message.tool_calls}
    made: list[Message] = []
    for place in _places(prompt.messages):
        message = _message(prompt.messages[place], f"messages[{place}]", names, shape)
        made += _apart(message, shape)
    if shape.calls == "single":
        made = _single_calls(made)
    made = _with_system(made, shape)
    if shape.tools == "system" and tools:
        made = _with_tools(made, tools)
    if shape.turns == "alternating":
        made = _joined_turns(made)
    return [_in_parts(message) for message in made] if shape.content == "parts" else made


def message_text(message: Mapping[str, Any]) -> str:
    """Return the content of a message as one text, whichever shape it has."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def tool_objects(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Return the tools as templates and tool parsers know them."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description or "",
                "parameters": tool.parameters or {"type": "object", "properties": {}},
            },
        }
        for tool in tools
    ]


def _places(messages: Sequence[ChatMessage]) -> list[int]:
    """Return the places of all messages, results of one turn's calls as these were made; results
    among which one answers no call of that turn stay as they came."""
    found: list[int] = []
    results: list[int] = []
    calls: dict[str | None, int] = {}
    for place, message in enumerate(messages):
        if message.role == "tool":
            results.append(place)
            continue
        found += _as_called(results, messages, calls)
        found.append(place)
        results = []
        calls = {call.call_id: number for number, call in enumerate(message.tool_calls)}
    return found + _as_called(results, messages, calls)


def _as_called(
    results: list[int], messages: Sequence[ChatMessage], calls: Mapping[str | None, int]
) -> list[int]:
    numbers = {place: calls.get(messages[place].tool_call_id) for place in results}
    if None in numbers.values():
        return results
    return sorted(results, key=lambda place: numbers[place] or 0)


def _message(
    message: ChatMessage, field: str, names: Mapping[str, str], shape: TemplateShape
) -> Message:
    made: Message = {"role": message.role, "content": _content(message, field)}
    if message.reasoning is not None and message.role == "assistant":
        made["reasoning_content"] = message.reasoning
    if message.tool_calls:
        made["tool_calls"] = [_tool_call(call, shape) for call in message.tool_calls]
        if not made["content"] and shape.empty == "null":
            made["content"] = None
        elif not made["content"] and shape.empty == "absent":
            del made["content"]
    if message.tool_call_id is not None:
        made["tool_call_id"] = _call_id(message.tool_call_id, shape)
    name = message.name or names.get(message.tool_call_id or "")
    if name is not None:
        made["name"] = name
    return made


def _content(message: ChatMessage, field: str) -> str:
    texts: list[str] = []
    for place, part in enumerate(message.parts):
        if not isinstance(part, TextPart):
            raise BadRequest(
                "this model reads text only; it cannot see images",
                field=f"{field}.content[{place}]",
            )
        texts.append(part.text)
    return "\n".join(texts)


def _tool_call(call: ToolCall, shape: TemplateShape) -> dict[str, Any]:
    """Return the call as templates know it. Arguments that break off, as the limit leaves them, are
    closed; those that are no object stay text: what a model once said must not end its
    conversation."""
    found = object_of(call.arguments)
    arguments: Any = call.arguments if found is None else found
    if shape.arguments == "text" and found is not None:
        arguments = call.arguments if call.arguments.strip() else "{}"
    return {
        "id": _call_id(call.call_id, shape),
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def _call_id(known: str, shape: TemplateShape) -> str:
    """Return a call's id, or nine letters and digits that stand for it."""
    if shape.ids == "any" or (len(known) == NINE and known.isascii() and known.isalnum()):
        return known
    number = int.from_bytes(hashlib.sha256(known.encode("utf-8", "replace")).digest())
    letters = ""
    for _ in range(NINE):
        number, place = divmod(number, len(_ALPHABET))
        letters += _ALPHABET[place]
    return letters


def _apart(message: Message, shape: TemplateShape) -> list[Message]:
    """Return the message, or its text and its calls as two."""
    calls, text = message.get("tool_calls"), message.get("content")
    if not calls or not text or shape.beside != "apart":
        return [message]
    bare = {name: value for name, value in message.items() if name != "content"}
    if shape.empty != "absent":
        bare["content"] = None if shape.empty == "null" else ""
    return [{"role": "assistant", "content": text}, bare]


def _single_calls(messages: Sequence[Message]) -> list[Message]:
    """Return messages of one call each, each followed by the results of its call."""
    found: list[Message] = []
    place = 0
    while place < len(messages):
        message = messages[place]
        place += 1
        calls: list[dict[str, Any]] = message.get("tool_calls") or []
        if len(calls) < 2:
            found.append(message)
            continue
        results: list[Message] = []
        while place < len(messages) and messages[place]["role"] == "tool":
            results.append(messages[place])
            place += 1
        for number, call in enumerate(calls):
            mine = [one for one in results if one.get("tool_call_id") == call["id"]]
            results = [one for one in results if one not in mine]
            found.append(_with_call(message, call, is_first=number == 0))
            found += mine
        found += results
    return found


def _with_call(message: Message, call: Mapping[str, Any], *, is_first: bool) -> Message:
    """Return a message with one of its calls; its text and thinking stand in the first alone."""
    made = {**message, "tool_calls": [call]}
    if not is_first:
        made.pop("reasoning_content", None)
        if made.get("content"):
            made["content"] = ""
    return made


def _with_system(messages: Sequence[Message], shape: TemplateShape) -> list[Message]:
    """Return messages whose system texts stand where the template shows them."""
    if shape.system == "anywhere":
        return list(messages)
    leading = 0
    while leading < len(messages) and messages[leading]["role"] == "system":
        leading += 1
    if shape.system == "none":
        leading = 0
    first = [one["content"] for one in messages[:leading] if one["content"]]
    made: list[Message] = [{"role": "system", "content": JOINED_BY.join(first)}] if first else []
    for message in messages[leading:]:
        is_system = message["role"] == "system"
        made.append({"role": "user", "content": message["content"]} if is_system else message)
    return made


def _with_tools(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[Message]:
    """Return messages of which the first, a system message, has the tools as JSON text."""
    told = json.dumps([one["function"] for one in tool_objects(tools)], ensure_ascii=False)
    if messages and messages[0]["role"] == "system":
        return [{**messages[0], "tools": told}, *messages[1:]]
    return [{"role": "system", "content": "", "tools": told}, *messages]


def _joined_turns(messages: Sequence[Message]) -> list[Message]:
    """Return messages of which no two texts of one role stand in a row."""
    found: list[Message] = []
    for message in messages:
        last = found[-1] if found else {}
        is_text = message["role"] != "tool" and not message.get("tool_calls")
        if is_text and last.get("role") == message["role"] and not last.get("tool_calls"):
            texts = [one for one in (last["content"], message["content"]) if one]
            found[-1] = {**last, **message, "content": JOINED_BY.join(texts)}
        else:
            found.append(message)
    return found


def _in_parts(message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, str):
        return message
    parts = [{"type": "text", "text": content}] if content else []
    return {**message, "content": parts}
