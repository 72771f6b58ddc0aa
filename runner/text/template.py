"""From a conversation to the text of a prompt, by the model's own chat template.

Pure, but for the template itself, which belongs to the model. What a template is given is
the shape that Hugging Face templates know: `content` as one string (text parts joined by line
breaks), `reasoning_content`, `tool_calls` with arguments as objects, `tool_call_id` and the
tool's name on results. A template that raises refuses the request in its own words. Where a turn
is to be continued, `marked` and `up_to_mark` do what transformers does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from bus.wire.errors import BadRequest
from bus.wire.messages.requests import ChatMessage, ChatPrompt, TextPart, ToolCall, ToolSpec
from runner.text.families import Family
from runner.text.prepared import SpanState
from runner.text.rendering import TemplateStopped

MARK = "CONTINUE_FINAL_MESSAGE_TAG "
"""Stands where a turn is to go on; some templates trim the blank at its end."""


class StoppedTemplate(BadRequest):
    """The model's template took more than it may for this conversation."""


class Template(Protocol):
    """The part of `runner.text.tokenizer.ModelTokenizer` that renders."""

    family: Family

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        thinking: bool,
        continue_final: bool,
        variables: Mapping[str, Any],
    ) -> str:
        """Return the prompt's text. `variables` are the template's own. Raises what the template
        raises."""
        ...


@dataclass(frozen=True, slots=True)
class Rendered:
    """The prompt's text, and where output behind it begins."""

    text: str
    opening: SpanState


def render_chat(
    template: Template,
    prompt: ChatPrompt,
    *,
    tools: Sequence[ToolSpec],
    thinking: bool,
    is_held: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> Rendered:
    """Return the prompt of a conversation; `tools` are those that the model shall see, `is_held`
    says that its answer must follow a grammar, `variables` are told to the template.

    Raises BadRequest, naming the field where there is one.
    """
    messages = chat_messages(prompt)
    continues = prompt.continue_final
    if continues:
        _check_final(prompt.messages)
        if not messages[-1]["content"]:
            # There is nothing to continue: an empty last turn is a new turn.
            messages, continues = messages[:-1], False
    try:
        text = template.render(
            messages,
            tool_objects(tools),
            thinking=thinking,
            continue_final=continues,
            variables=variables or {},
        )
    except TemplateStopped as problem:
        raise StoppedTemplate(
            f"the model's chat template was stopped: {problem}", field="messages"
        ) from problem
    except Exception as problem:  # whatever a template raises, the request is at fault
        raise BadRequest(
            f"the model's chat template refuses these messages: {_words(problem)}",
            field="messages",
        ) from problem
    family = template.family
    if continues:
        return Rendered(text, family.opening(text, str(messages[-1]["content"])))
    text += family.prefill(thinking=thinking, is_held=is_held, has_tools=bool(tools))
    return Rendered(text, family.opening(text, None))


def marked(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with the place marked where the last one is to be continued."""
    *before, last = (dict(message) for message in messages)
    return [*before, {**last, "content": last["content"] + MARK}]


def up_to_mark(text: str, final: str) -> str:
    """Return what a template made of `marked` messages up to the mark; `final` is the content of
    the last. Raises ValueError where the template does not show it."""
    found = text.rfind(MARK.strip())
    if found < 0 or final.strip() not in text:
        raise ValueError("it does not show the message that is to be continued")
    kept = text[:found]
    return kept if text.startswith(MARK, found) else kept.rstrip()


def chat_messages(prompt: ChatPrompt) -> list[dict[str, Any]]:
    """Return the messages as templates know them, the results of calls made together in the order
    of those calls: most templates show no ids, and tell results apart by their order alone."""
    names = {call.call_id: call.name for message in prompt.messages for call in message.tool_calls}
    return [
        _message(prompt.messages[place], f"messages[{place}]", names)
        for place in _places(prompt.messages)
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


def _message(message: ChatMessage, field: str, names: Mapping[str, str]) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role, "content": _content(message, field)}
    if message.reasoning is not None and message.role == "assistant":
        made["reasoning_content"] = message.reasoning
    if message.tool_calls:
        made["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        made["tool_call_id"] = message.tool_call_id
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


def _tool_call(call: ToolCall) -> dict[str, Any]:
    """Return the call as templates know it. Arguments that are not the JSON text of an object stay
    as they are: what a model once said must not make its conversation unusable."""
    arguments: Any = call.arguments
    try:
        found: Any = json.loads(call.arguments) if call.arguments.strip() else {}
        arguments = cast(Any, found) if isinstance(found, dict) else arguments
    except (ValueError, RecursionError):
        pass
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def _check_final(messages: Sequence[ChatMessage]) -> None:
    last = messages[-1] if messages else None
    if last is None or last.role != "assistant":
        raise BadRequest("only an assistant message can be continued", field="messages")
    if last.tool_calls:
        raise BadRequest(
            "an assistant message with tool calls is complete and cannot be continued",
            field=f"messages[{len(messages) - 1}].tool_calls",
        )


def _words(problem: Exception) -> str:
    return str(problem)[:500] or type(problem).__name__
