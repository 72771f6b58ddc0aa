"""Write a conversation as the messages that a chat template shows completely. Pure.

Hugging Face templates know `content`, `reasoning_content`, `tool_calls`, and on results
`tool_call_id` and the tool's `name`. A `TemplateShape` describes how templates differ.
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
"""The text between two texts that are joined into one message."""
NINE = 9
_ALPHABET = string.ascii_letters + string.digits

Message = dict[str, Any]


def chat_messages(
    prompt: ChatPrompt, shape: TemplateShape = PLAIN, tools: Sequence[ToolSpec] = ()
) -> list[Message]:
    """Return the messages in the shape that a template needs. Results of parallel calls are in the
    order of the calls, because most templates show no ids and rely on order.

    `tools` go into a system message if the template expects them there. Raises BadRequest, naming
    the field.
    """
    names = {call.call_id: call.name for message in prompt.messages for call in message.tool_calls}
    made: list[Message] = []
    for place in _places(prompt.messages) if names else range(len(prompt.messages)):
        message = _message(prompt.messages[place], f"messages[{place}]", names, shape)
        made += _apart(message, shape) if shape.beside == "apart" else [message]
    if shape.calls == "single":
        made = _single_calls(made)
    if shape.system != "anywhere":
        made = _with_system(made, shape)
    if shape.tools == "system" and tools:
        made = _with_tools(made, tools)
    if shape.turns == "alternating":
        made = _joined_turns(made)
    return [_in_parts(message) for message in made] if shape.content == "parts" else made


def message_text(message: Mapping[str, Any]) -> str:
    """Return the content of a message as one text, in any form."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def tool_objects(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Return the tools as templates and tool parsers expect them."""
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
    """Return the indices of all messages in the order in which to show them: the results of one
    turn are in the order of its calls. If one of the results belongs to no call of that turn, the
    results keep their order."""
    order: list[int] = []
    results: list[int] = []
    calls: dict[str | None, int] = {}
    for place, message in enumerate(messages):
        if message.role == "tool":
            results.append(place)
            continue
        order += _as_called(results, messages, calls)
        order.append(place)
        results = []
        calls = {call.call_id: number for number, call in enumerate(message.tool_calls)}
    return order + _as_called(results, messages, calls)


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
    """Return a tool call as templates expect it. Arguments that a token limit cut off are closed.
    Arguments that are not an object stay text, so that a model's earlier output cannot make its
    conversation unusable."""
    parsed = object_of(call.arguments)
    arguments: Any = call.arguments if parsed is None else parsed
    if shape.arguments == "text" and parsed is not None:
        arguments = call.arguments if call.arguments.strip() else "{}"
    return {
        "id": _call_id(call.call_id, shape),
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def _call_id(call_id: str, shape: TemplateShape) -> str:
    """Return a call's id. If the template requires it, return nine letters and digits that replace
    the id."""
    if shape.ids == "any" or (len(call_id) == NINE and call_id.isascii() and call_id.isalnum()):
        return call_id
    number = int.from_bytes(hashlib.sha256(call_id.encode("utf-8", "replace")).digest())
    letters = ""
    for _ in range(NINE):
        number, place = divmod(number, len(_ALPHABET))
        letters += _ALPHABET[place]
    return letters


def _apart(message: Message, shape: TemplateShape) -> list[Message]:
    """Return the message in a list; its text and its calls as two messages if it has both."""
    calls, text = message.get("tool_calls"), message.get("content")
    if not calls or not text:
        return [message]
    bare = {name: value for name, value in message.items() if name != "content"}
    if shape.empty != "absent":
        bare["content"] = None if shape.empty == "null" else ""
    return [{"role": "assistant", "content": text}, bare]


def _single_calls(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with at most one call each; the results of a call follow its message."""
    separated: list[Message] = []
    place = 0
    while place < len(messages):
        message = messages[place]
        place += 1
        calls: list[dict[str, Any]] = message.get("tool_calls") or []
        if len(calls) < 2:
            separated.append(message)
            continue
        results: list[Message] = []
        while place < len(messages) and messages[place]["role"] == "tool":
            results.append(messages[place])
            place += 1
        for number, call in enumerate(calls):
            mine = [result for result in results if result.get("tool_call_id") == call["id"]]
            results = [result for result in results if result not in mine]
            separated.append(_with_call(message, call, is_first=number == 0))
            separated += mine
        separated += results
    return separated


def _with_call(message: Message, call: Mapping[str, Any], *, is_first: bool) -> Message:
    """Return a copy of the message that has only the call `call`. The copy for the first call also
    has the message's text and thinking."""
    made = {**message, "tool_calls": [call]}
    if not is_first:
        made.pop("reasoning_content", None)
        if made.get("content"):
            made["content"] = ""
    return made


def _with_system(messages: Sequence[Message], shape: TemplateShape) -> list[Message]:
    """Return the messages with the texts of system messages at the places where the template shows
    them."""
    leading = 0
    while leading < len(messages) and messages[leading]["role"] == "system":
        leading += 1
    if shape.system == "none":
        leading = 0
    first = [
        system_message["content"]
        for system_message in messages[:leading]
        if system_message["content"]
    ]
    made: list[Message] = [{"role": "system", "content": JOINED_BY.join(first)}] if first else []
    for message in messages[leading:]:
        is_system = message["role"] == "system"
        made.append({"role": "user", "content": message["content"]} if is_system else message)
    return made


def _with_tools(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[Message]:
    """Return the messages with the tools, as JSON text, in a system message at the beginning."""
    tools_json = json.dumps([tool["function"] for tool in tool_objects(tools)], ensure_ascii=False)
    if messages and messages[0]["role"] == "system":
        return [{**messages[0], "tools": tools_json}, *messages[1:]]
    return [{"role": "system", "content": "", "tools": tools_json}, *messages]


def _joined_turns(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with consecutive messages of one role joined into one."""
    joined: list[Message] = []
    for message in messages:
        last = joined[-1] if joined else {}
        is_text = message["role"] != "tool" and not message.get("tool_calls")
        if is_text and last.get("role") == message["role"] and not last.get("tool_calls"):
            texts = [text for text in (last["content"], message["content"]) if text]
            joined[-1] = {**last, **message, "content": JOINED_BY.join(texts)}
        else:
            joined.append(message)
    return joined


def _in_parts(message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, str):
        return message
    parts = [{"type": "text", "text": content}] if content else []
    return {**message, "content": parts}
