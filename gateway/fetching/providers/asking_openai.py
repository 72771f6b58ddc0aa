"""Translates a request into a body for OpenAI's chat completions.

Pure. The answer is always streamed, with its usage. Other servers with this API know the field
`max_tokens`; OpenAI's own API accepts only the newer name of that field.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from bus.models.tasks import ProviderModel
from bus.wire.messages.requests import (
    ChatMessage,
    GenerationRequest,
    ImagePart,
    OutputFormat,
    TextPart,
    ToolCall,
    ToolSpec,
)
from gateway.fetching.providers.asking import (
    TranslatedBody,
    answered_call,
    conversation_of,
    not_carried,
    sampled,
    text_of,
    unheeded_of,
)

_SAMPLING = frozenset(
    ("temperature", "top_p", "seed", "frequency_penalty", "presence_penalty")
)  # fmt: skip
"""The sampling fields that are sent. `logit_bias` is not among them, because its token ids belong
to a model of the cluster and other models have other ids."""
_EFFORTS = {"max": "xhigh"}
_OWN_HOSTS = ("openai.com", "openai.azure.com")


def openai_body(target: ProviderModel, request: GenerationRequest) -> TranslatedBody:
    """Return the body. Raises HttpFaultRaised if a field is not supported."""
    prompt = conversation_of(request)
    if prompt.continue_final:
        raise not_carried("continue_final_message", "this provider always starts a new turn")
    fields: dict[str, Any] = {
        "model": target.model,
        "messages": _turns(prompt.messages),
        "stream": True,
        "stream_options": {"include_usage": True},
        **sampled(request.sampling, _SAMPLING),
    }
    unheeded = unheeded_of(request, prompt, _SAMPLING)
    if request.n > 1:
        fields["n"] = request.n
    if request.max_tokens is not None:
        fields[_limit_name(target)] = request.max_tokens
    if request.stop:
        fields["stop"] = list(request.stop)
    if (wanted := _format(request.output)) is not None:
        fields["response_format"] = wanted
    if prompt.tools:
        fields["tools"] = [_tool(tool) for tool in prompt.tools]
        fields["tool_choice"] = _choice(request)
        if not request.parallel_tool_calls:
            fields["parallel_tool_calls"] = False
    if request.effort is not None:
        fields["reasoning_effort"] = _EFFORTS.get(request.effort, request.effort)
    elif request.thinking is not None:
        unheeded.append("thinking")
    if request.thinking_budget is not None:
        unheeded.append("thinking_budget")
    return TranslatedBody(fields, tuple(unheeded))


def _limit_name(target: ProviderModel) -> str:
    host = urlsplit(target.settings.base_url).hostname or ""
    is_own = any(host == own or host.endswith(f".{own}") for own in _OWN_HOSTS)
    return "max_completion_tokens" if is_own else "max_tokens"


def _turns(turns: tuple[ChatMessage, ...]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    open_calls: list[str] = []
    for turn in turns:
        message: dict[str, Any] = {"role": turn.role, "content": _content(turn)}
        if turn.role == "tool":
            message["tool_call_id"] = answered_call(turn, open_calls)
            open_calls = [
                open_call for open_call in open_calls if open_call != message["tool_call_id"]
            ]
        elif turn.name:
            message["name"] = turn.name
        if turn.tool_calls:
            message["tool_calls"] = [_call(call) for call in turn.tool_calls]
            open_calls = [call.call_id for call in turn.tool_calls]
            message["content"] = message["content"] or None
        messages.append(message)
    return messages


def _content(turn: ChatMessage) -> str | list[dict[str, Any]]:
    if turn.role == "tool" or not any(isinstance(part, ImagePart) for part in turn.parts):
        return text_of(turn)
    return [_part(part) for part in turn.parts]


def _part(part: TextPart | ImagePart) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    image = {"url": part.url} if part.detail is None else {"url": part.url, "detail": part.detail}
    return {"type": "image_url", "image_url": image}


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": function}


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.parameters}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _choice(request: GenerationRequest) -> str | dict[str, Any]:
    choice = request.tool_choice
    if choice.mode != "named":
        return choice.mode
    return {"type": "function", "function": {"name": choice.name}}


def _format(output: OutputFormat) -> dict[str, Any] | None:
    match output.kind:
        case "text":
            return None
        case "json_object":
            return {"type": "json_object"}
        case "json_schema":
            schema = {"name": "answer", "schema": output.json_schema or {}}
            return {"type": "json_schema", "json_schema": schema}
        case "regex" | "choice" | "grammar":
            raise not_carried(output.field, "this provider enforces only JSON")
