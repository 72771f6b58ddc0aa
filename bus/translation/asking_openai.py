"""Translates a request into a body for OpenAI's API: a conversation for chat completions, a raw
prompt for the completions of an engine of the cluster.

Pure. The answer is always streamed, with its usage. Other servers with this API know the field
`max_tokens`; OpenAI's own API accepts only the newer name of that field (`Target.limit_name`). For
raw prompts the API's own limit is 16 tokens, so a limit is always sent: a caller that knows how
many tokens fit sets `max_tokens` in the request.
"""

from __future__ import annotations

from typing import Any

from bus.translation.asking import (
    MAX_TOKENS,
    TranslatedBody,
    answered_call,
    conversation_of,
    sampled,
    text_of,
    unheeded_of,
)
from bus.translation.target import BUDGET_FIELD, IDS_FIELD, REASONING, TEMPLATE_FIELD, Target
from bus.translation.troubles import NotCarried
from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    ImagePart,
    OutputFormat,
    TextPart,
    TextPrompt,
    TokensPrompt,
    ToolCall,
    ToolSpec,
)

CHAT_PATH, RAW_PATH = "/v1/chat/completions", "/v1/completions"
OPENAI_SAMPLING = frozenset(
    ("temperature", "top_p", "seed", "frequency_penalty", "presence_penalty")
)  # fmt: skip
"""The sampling fields of OpenAI's API that are sent. `logit_bias` is not among them: its token ids
belong to a model of the cluster, and models of other servers have other ids."""
SEEDS = 2**64
_EFFORTS = {"max": "xhigh"}


def openai_body(target: Target, request: GenerationRequest) -> TranslatedBody:
    """Return the body. Raises NotCarried if a field is not supported."""
    if target.completes:
        _refuse_beyond_engines(request)
        if not isinstance(request.prompt, ChatPrompt):
            return _raw(target, request)
    prompt = conversation_of(target, request)
    if prompt.continue_final and not target.completes:
        raise NotCarried(
            "continue_final_message",
            "this provider cannot continue the last turn; it always starts a new one",
        )
    fields: dict[str, Any] = {
        "messages": _turns(target, prompt.messages),
        **_shared(target, request),
    }
    if prompt.continue_final:
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    if request.max_tokens is not None:
        fields[target.limit_name] = request.max_tokens
    if request.top_logprobs is not None:
        fields |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    fields |= _tools(request, prompt)
    fields |= _thinking(target, request)
    return TranslatedBody(fields, tuple(_unheeded(target, request, prompt)), CHAT_PATH)


def _refuse_beyond_engines(request: GenerationRequest) -> None:
    """Refuse the fields that no engine with vLLM's API supports in a stream. Raises NotCarried."""
    if request.question is not None:
        raise NotCarried(
            "prompt", "this engine cannot answer questions about a prompt, such as its tokens"
        )
    if request.history:
        raise NotCarried("history", "this engine cannot continue the tokens of an earlier answer")
    if request.prompt_logprobs is not None:
        why = "this engine returns no log-probabilities of prompts; leave out echo or logprobs"
        raise NotCarried("prompt_logprobs", why)
    if request.template is not None:
        raise NotCarried("template", "shoal runs no Go templates; leave the template out")


def _raw(target: Target, request: GenerationRequest) -> TranslatedBody:
    fields: dict[str, Any] = {
        "prompt": _raw_prompt(request),
        "max_tokens": MAX_TOKENS if request.max_tokens is None else request.max_tokens,
        **_shared(target, request),
    }
    if request.top_logprobs is not None:
        fields["logprobs"] = request.top_logprobs
    supported = (OPENAI_SAMPLING | target.takes) - {TEMPLATE_FIELD}
    unheeded = unheeded_of(request, None, supported)
    if request.effort is not None:
        unheeded.append("reasoning_effort")
    if request.thinking_budget is not None and BUDGET_FIELD not in target.takes:
        unheeded.append("thinking_budget")
    return TranslatedBody(fields, tuple(unheeded), RAW_PATH)


def _raw_prompt(request: GenerationRequest) -> str | list[int]:
    prompt = request.prompt
    if request.tool_choice.mode in ("required", "named"):
        raise NotCarried("tool_choice", "tools need messages, not a raw prompt")
    if request.thinking:
        raise NotCarried("thinking", "thinking needs messages, not a raw prompt")
    if isinstance(prompt, TokensPrompt):
        return list(prompt.token_ids)
    if not isinstance(prompt, TextPrompt):
        raise NotCarried("model", "this engine serves a text model; it cannot make embeddings")
    if prompt.suffix is not None:
        raise NotCarried("suffix", "this engine cannot fill in text before a suffix")
    return prompt.text


def _shared(target: Target, request: GenerationRequest) -> dict[str, Any]:
    """Return the fields that chats and raw prompts have in common."""
    fields: dict[str, Any] = {
        "model": target.model,
        "stream": True,
        "stream_options": {"include_usage": True},
        **_sampling(target, request),
        **_format(target, request.output),
    }
    if request.n > 1:
        fields["n"] = request.n
    if request.stop:
        fields["stop"] = list(request.stop)
    return fields


def _sampling(target: Target, request: GenerationRequest) -> dict[str, Any]:
    """Return the sampling fields of a request, and its fields beyond OpenAI's that the server
    supports, except those for its chat template. vLLM's seeds are 64-bit integers with a sign."""
    takes = target.takes
    fields = sampled(request, OPENAI_SAMPLING | takes)
    if "logit_bias" in fields:
        fields["logit_bias"] = {str(token): bias for token, bias in fields["logit_bias"].items()}
    seed = fields.get("seed")
    if target.completes and seed is not None and seed >= SEEDS // 2:
        fields["seed"] = seed - SEEDS
    for name in ("ignore_eos", "min_tokens"):
        if name in takes and (value := getattr(request, name)):
            fields[name] = value
    if IDS_FIELD in takes:
        fields[IDS_FIELD] = True
    if BUDGET_FIELD in takes and request.thinking_budget is not None:
        fields[BUDGET_FIELD] = request.thinking_budget
    return fields


def _format(target: Target, output: OutputFormat) -> dict[str, Any]:
    """Return the fields for the format of the answer. Raises NotCarried if the server does not
    enforce that format."""
    match output.kind:
        case "text":
            return {}
        case "json_object":
            return {"response_format": {"type": "json_object"}}
        case "json_schema":
            schema = {"name": "answer", "schema": output.json_schema or {}}
            return {"response_format": {"type": "json_schema", "json_schema": schema}}
        case "regex" | "choice" | "grammar":
            if not target.completes:
                raise NotCarried(output.field, "this provider enforces only JSON")
            rule = list(output.choices) if output.kind == "choice" else output.rule
            return {"structured_outputs": {output.kind: rule}}


def _unheeded(target: Target, request: GenerationRequest, prompt: ChatPrompt) -> list[str]:
    takes = target.takes
    unheeded = unheeded_of(request, prompt, OPENAI_SAMPLING | takes)
    if request.effort is None and request.thinking is not None and TEMPLATE_FIELD not in takes:
        unheeded.append("thinking")
    if request.thinking_budget is not None and BUDGET_FIELD not in takes:
        unheeded.append("thinking_budget")
    return unheeded


def _thinking(target: Target, request: GenerationRequest) -> dict[str, Any]:
    """Return the effort, and the variables of the server's chat template."""
    fields: dict[str, Any] = {}
    if (effort := request.effort) is not None:
        fields["reasoning_effort"] = effort if target.completes else _EFFORTS.get(effort, effort)
    if TEMPLATE_FIELD in target.takes:
        variables: dict[str, Any] = dict(request.variables or {})
        if request.thinking is not None:
            variables[target.thinking_variable] = request.thinking
        if variables:
            fields[TEMPLATE_FIELD] = variables
    return fields


def _tools(request: GenerationRequest, prompt: ChatPrompt) -> dict[str, Any]:
    if not prompt.tools:
        return {}
    fields: dict[str, Any] = {
        "tools": [_tool(tool) for tool in prompt.tools],
        "tool_choice": _choice(request),
    }
    if not request.parallel_tool_calls:
        fields["parallel_tool_calls"] = False
    return fields


def _turns(target: Target, turns: tuple[ChatMessage, ...]) -> list[dict[str, Any]]:
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
        if turn.reasoning and REASONING in target.takes:
            message["reasoning"] = turn.reasoning
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
