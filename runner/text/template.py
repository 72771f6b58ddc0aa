"""From a conversation to the text of a prompt, by the model's own chat template or a client's.

Pure, but for the template itself, which belongs to the model, or came with the request. What a
template is given is the shape that Hugging Face templates know: `content` as one string (text parts
joined by line breaks), `reasoning_content`, `tool_calls` with arguments as objects, `tool_call_id`
and the tool's name on results. A template that raises refuses the request in its own words. Where a
turn is to be continued, `marked` and `up_to_mark` do what transformers does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast

from bus.wire.errors import BadRequest
from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    TextPart,
    TextPrompt,
    ToolCall,
    ToolSpec,
)
from runner.text.families import Family
from runner.text.prepared import SpanState
from runner.text.rendering import TemplateStopped

MARK = "CONTINUE_FINAL_MESSAGE_TAG "
"""Stands where a turn is to go on; some templates trim the blank at its end."""
_FILL_IN = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)
"""Tokens around prefix and suffix, and before what is to be filled in, by model family."""


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

    def fill(self, template: str, told: Mapping[str, Any]) -> str:
        """Return what a template in Go's language makes of what it is told. Raises as `render`."""
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
    own: str | None = None,
) -> Rendered:
    """Return the prompt of a conversation; `tools` are those that the model shall see, `is_held`
    says that its answer must follow a grammar, `variables` are told to the template: the model's,
    or its client's `own`, in Go's language.

    Raises BadRequest, naming the field where there is one.
    """
    messages = chat_messages(prompt)
    continues = prompt.continue_final
    if continues:
        _check_final(prompt.messages)
        if not messages[-1]["content"]:
            # There is nothing to continue: an empty last turn is a new turn.
            messages, continues = messages[:-1], False
    told, objects = variables or {}, tool_objects(tools)
    with _blamed(own):
        if own is None:
            text = template.render(
                messages, objects, thinking=thinking, continue_final=continues, variables=told
            )
        else:
            shown = marked(messages) if continues else messages
            told = {**told, "messages": shown, "tools": objects, "think": thinking}
            text = template.fill(own, told)
            text = up_to_mark(text, messages[-1]["content"]) if continues else text
    family = template.family
    if continues:
        return Rendered(text, family.opening(text, str(messages[-1]["content"])))
    text += family.prefill(thinking=thinking, is_held=is_held, has_tools=bool(tools))
    return Rendered(text, family.opening(text, None))


def render_filled(
    template: Template, prompt: TextPrompt, own: str, variables: Mapping[str, Any]
) -> str:
    """Return what a client's own template makes of a text and what comes behind it. Raises
    BadRequest."""
    with _blamed(own):
        return template.fill(own, {**variables, "prompt": prompt.text, "suffix": prompt.suffix})


def fill_in_tokens(token_id: Callable[[str], int | None]) -> tuple[int, int, int] | None:
    """Return the tokens before a prefix, before a suffix and before what is to be filled in, of a
    model that has all of a family's; None of others."""
    for family in _FILL_IN:
        before, after, middle = (token_id(token) for token in family)
        if before is not None and after is not None and middle is not None:
            return before, after, middle
    return None


def own_variables(request: GenerationRequest) -> dict[str, Any]:
    """Return what a client's own template is told of thinking, beside whether to think."""
    is_set = request.thinking is not None or request.effort is not None
    return {"think_level": request.effort or "", "is_think_set": is_set}


@contextmanager
def _blamed(own: str | None) -> Generator[None]:
    """Tell all that a template may raise as a refusal: the request is at fault."""
    whose, field = ("the model's chat", "messages") if own is None else ("this", "template")
    try:
        yield
    except TemplateStopped as problem:
        text = f"{whose} template was stopped: {problem}"
        raise StoppedTemplate(text, field=field) from problem
    except Exception as problem:
        text = f"{whose} template refuses these messages: {_words(problem)}"
        raise BadRequest(text, field=field) from problem


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
