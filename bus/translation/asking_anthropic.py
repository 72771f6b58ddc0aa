"""Translates a conversation into a body for Anthropic's messages API.

Pure. The answer is always streamed. Roles alternate in this API, so consecutive turns of one side
become one message of several blocks. All system turns become one system prompt, in order. The API
needs a limit of tokens: if the client sets none, the default of the cluster's models applies.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

from bus.translation.asking import (
    MAX_TOKENS,
    TranslatedBody,
    answered_call,
    conversation_of,
    sampled,
    text_of,
    unheeded_of,
)
from bus.translation.target import Target
from bus.translation.troubles import NotCarried
from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    ImagePart,
    TextPart,
    ToolCall,
    ToolSpec,
)

PATH = "/v1/messages"
MOST_TEMPERATURE = 1.0
_SAMPLING = frozenset(("temperature", "top_p", "top_k"))
_NO_ID = re.compile(r"[^a-zA-Z0-9_-]")
_DATA_URL = re.compile(r"data:(?P<type>[^;,]+);base64,(?P<data>.*)", re.DOTALL)
_EFFORTS = {"minimal": "low"}
_MODES = {"auto": "auto", "required": "any", "named": "tool", "none": "none"}


def anthropic_body(target: Target, request: GenerationRequest) -> TranslatedBody:
    """Return the body. Raises NotCarried if a field is not supported."""
    prompt = conversation_of(target, request)
    if request.n > 1:
        raise NotCarried("n", "this provider gives one answer per request")
    fields: dict[str, Any] = {
        "model": target.model,
        "messages": _messages(prompt),
        "max_tokens": MAX_TOKENS if request.max_tokens is None else request.max_tokens,
        "stream": True,
        **sampled(request, _SAMPLING),
    }
    unheeded = unheeded_of(request, prompt, _SAMPLING)
    if fields.get("temperature", 0.0) > MOST_TEMPERATURE:
        fields["temperature"] = MOST_TEMPERATURE
        unheeded.append("temperature")
    if fields.get("top_k") == 0:
        del fields["top_k"]
    if any(turn.name for turn in prompt.messages if turn.role != "tool"):
        unheeded.append("messages.name")
    system = "\n\n".join(text_of(turn) for turn in prompt.messages if turn.role == "system")
    if system:
        fields["system"] = system
    if request.stop:
        fields["stop_sequences"] = list(request.stop)
    if prompt.tools:
        fields["tools"] = [_tool(tool) for tool in prompt.tools]
        fields["tool_choice"] = _choice(request)
    fields |= _thinking(request, fields)
    fields |= _output(request, fields)
    return TranslatedBody(fields, tuple(unheeded), PATH)


def _messages(prompt: ChatPrompt) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    open_calls: list[str] = []
    for turn in prompt.messages:
        if turn.role == "system":
            continue
        if turn.role == "tool":
            call = answered_call(turn, open_calls)
            open_calls = [open_call for open_call in open_calls if open_call != call]
            blocks = [_result(turn, call)]
        else:
            blocks = [*_blocks(turn), *(_use(call) for call in turn.tool_calls)]
            open_calls = [call.call_id for call in turn.tool_calls] or open_calls
        if not blocks:
            continue
        role = "assistant" if turn.role == "assistant" else "user"
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        else:
            messages.append({"role": role, "content": blocks})
    if messages and messages[-1]["role"] == "assistant" and not prompt.continue_final:
        why = "this provider would continue a last assistant turn; end with a user turn"
        raise NotCarried("messages", why)
    return messages


def _blocks(turn: ChatMessage) -> list[dict[str, Any]]:
    """Return the content blocks of a turn, for its text and images. Empty texts are left out,
    because this API refuses them."""
    return [_block(part) for part in turn.parts if isinstance(part, ImagePart) or part.text]


def _block(part: TextPart | ImagePart) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    data = _DATA_URL.fullmatch(part.url)
    source = (
        {"type": "url", "url": part.url}
        if data is None
        else {"type": "base64", "media_type": data["type"], "data": data["data"]}
    )
    return {"type": "image", "source": source}


def _result(turn: ChatMessage, call: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": _id(call), "content": _blocks(turn)}


def _use(call: ToolCall) -> dict[str, Any]:
    try:
        arguments: Any = json.loads(call.arguments or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        why = f"the arguments of the call '{call.call_id}' are not a JSON object"
        raise NotCarried("messages", why)
    parsed = cast(dict[str, Any], arguments)
    return {"type": "tool_use", "id": _id(call.call_id), "name": call.name, "input": parsed}


def _id(call_id: str) -> str:
    """Return the id of a call with only the characters that this API accepts."""
    return _NO_ID.sub("_", call_id)


def _tool(tool: ToolSpec) -> dict[str, Any]:
    schema = {"type": "object", **tool.parameters}
    fields: dict[str, Any] = {"name": tool.name, "input_schema": schema}
    if tool.description is not None:
        fields["description"] = tool.description
    if tool.strict:
        fields["strict"] = True
    return fields


def _choice(request: GenerationRequest) -> dict[str, Any]:
    choice = request.tool_choice
    fields: dict[str, Any] = {"type": _MODES[choice.mode]}
    if choice.mode == "named":
        fields["name"] = choice.name
    if not request.parallel_tool_calls and choice.mode != "none":
        fields["disable_parallel_tool_use"] = True
    return fields


def _thinking(request: GenerationRequest, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the body about thinking. A budget counts towards the limit of the
    answer."""
    if request.thinking is False:
        return {"thinking": {"type": "disabled"}}
    if (budget := request.thinking_budget) is not None:
        enabled = {"thinking": {"type": "enabled", "budget_tokens": budget}}
        most = fields["max_tokens"]
        return enabled if budget < most else {**enabled, "max_tokens": budget + most}
    return {"thinking": {"type": "adaptive"}} if request.thinking or request.effort else {}


def _output(request: GenerationRequest, fields: dict[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    if request.effort is not None:
        config["effort"] = _EFFORTS.get(request.effort, request.effort)
    output = request.output
    if output.kind == "json_schema":
        config["format"] = {"type": "json_schema", "schema": output.json_schema or {}}
    elif output.kind != "text":
        raise NotCarried(output.field, "this provider enforces only JSON schemas")
    return {"output_config": config} if config else {}
