"""OpenAI's chat completions: takes a conversation, returns one or more assistant turns.

Pure. Every field is honoured, or refused with an error that names it. The exceptions are the fields
that `bodies` lists as having no effect, each with its reason. `developer` is read as `system`, and
an assistant's `refusal` as its text. `tool_choice` with `allowed_tools` offers only those tools. A
custom tool, which takes text, is offered as a function with one argument (`custom_tools`). Tools of
other kinds are not offered to the model but reported as ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bus.wire.errors import BadRequest
from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    ContentPart,
    GenerationRequest,
    ImagePart,
    TextPart,
    ToolCall,
    ToolChoice,
    ToolSpec,
)
from gateway.dialects import sse
from gateway.dialects.body import bad_field, read_body
from gateway.dialects.collect import Collected
from gateway.dialects.dialect import Limits, ParseContext, Parsed
from gateway.dialects.encode import json_bytes
from gateway.dialects.openai import bodies, fields, messages
from gateway.dialects.openai.chat_render import FUNCTION_CALL, ChatStream, render_chat
from gateway.dialects.openai.custom_tools import (
    CustomChoiceBody,
    CustomToolBody,
    custom_function,
    custom_tells,
)
from gateway.dialects.openai.formats import SETS_FORMAT, TEXT, output_of
from gateway.dialects.openai.stored import to_keep_of
from gateway.dialects.shared_fields import (
    ThinkingAsked,
    named_model,
    stops_of,
    thinking_asked,
    tools_of,
    top_logprobs_of,
)

RARE = frozenset(
    ("chat_template_kwargs", "continue_final_message", "logprobs", "modalities", "prediction",
     "service_tier", "stop", "stream_options", "top_logprobs", "verbosity")
)  # fmt: skip
"""Fields that most bodies lack; they are read only if a body has one of them."""
SETS_TOOLS = frozenset(("tools", "tool_choice", "functions", "function_call"))
SETS_THINKING = frozenset(
    ("reasoning_effort", "reasoning", "thinking", "enable_thinking", "thinking_budget",
     "thinking_budget_tokens", "thinking_token_budget", "chat_template_kwargs")
)  # fmt: skip


class OpenAIChat:
    """The endpoint `POST /v1/chat/completions`."""

    name = "openai_chat"
    stream_content_type = sse.CONTENT_TYPE

    def parse(self, body: bytes, context: ParseContext) -> Parsed:
        """Return one request with `n` choices."""
        parsed_body, extras = read_body(bodies.ChatCompletionsBody, body, context.limits)
        sent, older = parsed_body.model_fields_set, parsed_body.functions is not None
        is_plain = sent.isdisjoint(RARE)
        if not is_plain:
            fields.check_offered(parsed_body)
            fields.check_modalities(parsed_body)
        tools, choice, tells = (), ToolChoice(mode="none"), frozenset[str]()
        if not sent.isdisjoint(SETS_TOOLS):
            tools, choice = (_functions_of if older else _tools_of)(parsed_body, context.limits)
            tells = frozenset((FUNCTION_CALL,)) if older else custom_tells(parsed_body.tools)
            extras = fields.report_tools(parsed_body.tools, extras, context.limits)
        request = GenerationRequest(
            request_id=next(context.ids),
            model=named_model(parsed_body.model),
            prompt=ChatPrompt(
                messages=messages_of(parsed_body.messages, context.limits),
                tools=tools,
                continue_final=not is_plain and _continues(parsed_body),
            ),
            n=parsed_body.n or 1,
            max_tokens=_max_tokens_of(parsed_body),
            **({} if is_plain else _rare_of(parsed_body, context.limits)),
            sampling=fields.sampling_of(parsed_body),
            output=TEXT if sent.isdisjoint(SETS_FORMAT) else output_of(parsed_body, context.limits),
            tool_choice=choice,
            parallel_tool_calls=parsed_body.parallel_tool_calls is not False and not older,
            ignore_eos=bool(parsed_body.ignore_eos),
            min_tokens=parsed_body.min_tokens or None,
            priority=extras.priority
            if is_plain
            else fields.priority_of(parsed_body.service_tier, extras),
            client_id=fields.client_of(parsed_body, extras),
            speculate=extras.speculate,
        )
        if not sent.isdisjoint(SETS_THINKING):
            thinking = _thinking_of(parsed_body)
            request = thinking.set_in(request)
            extras = thinking.report_in(extras, context.limits)
        answer_id = f"chatcmpl-{request.request_id}"
        stored = to_keep_of(parsed_body, answer_id, context.now_s) if parsed_body.store else None
        return Parsed(
            requests=(request,),
            model=parsed_body.model,
            stream=bool(parsed_body.stream),
            answer_id=answer_id,
            to_keep=stored,
            created_at_s=context.now_s,
            fingerprint=context.fingerprint,
            include_usage=not is_plain and fields.includes_usage(parsed_body),
            extras=extras,
            echoed_fields={} if is_plain else fields.echoed_fields_of(parsed_body),
            tells=tells,
            manner="" if is_plain else fields.manner_of(parsed_body.verbosity),
            affinity=parsed_body.prompt_cache_key or "",
        )

    def stream(self, parsed: Parsed, *, load_s: float = 0.0) -> ChatStream:
        """Return a renderer of `chat.completion.chunk`. While the model loads, the renderer sends
        only comments."""
        return ChatStream(parsed)

    def render_whole(
        self, parsed: Parsed, collected: Sequence[Collected], *, load_s: float = 0.0
    ) -> bytes:
        """Return a `chat.completion` object."""
        return render_chat(parsed, collected[0])


class OpenAIBench(OpenAIChat):
    """`POST /bench/chat/completions`: the body of chat completions, answered in one piece."""

    def parse(self, body: bytes, context: ParseContext) -> Parsed:
        """Return one request with `n` choices. Raises BadRequest if the body asks for a stream."""
        parsed = super().parse(body, context)
        if parsed.stream:
            raise bad_field("stream", "answers with timings are not streamed; omit it")
        return parsed


def messages_of(turns: Sequence[messages.MessageBody], limits: Limits) -> tuple[ChatMessage, ...]:
    """Return the conversation. Raises BadRequest for too many turns, or for an empty assistant
    turn."""
    if len(turns) > limits.messages:
        raise bad_field("messages", f"too many messages; the limit is {limits.messages}")
    made: list[ChatMessage] = []
    called = ""
    for index, message in enumerate(turns):
        if isinstance(message, messages.AssistantMessageBody) and message.function_call is not None:
            called = f"call_{index}"
        made.append(_message_of(message, index, called))
    return tuple(made)


def _message_of(message: messages.MessageBody, index: int, called: str) -> ChatMessage:
    """Return a turn. `called` is the id of the last call in OpenAI's deprecated form, where calls
    have no ids."""
    match message:
        case messages.AssistantMessageBody():
            return _assistant_of(message, index, called)
        case messages.FunctionMessageBody():
            return ChatMessage(
                role="tool",
                parts=(TextPart(text=message.content or ""),),
                tool_call_id=called or f"call_{message.name}",
                name=message.name,
            )
        case messages.ToolMessageBody():
            return ChatMessage(
                role="tool",
                parts=_parts_of(message.content),
                tool_call_id=message.tool_call_id,
                name=message.name,
            )
        case messages.SystemMessageBody():
            return ChatMessage(role="system", parts=_parts_of(message.content), name=message.name)
        case _:
            return ChatMessage(role="user", parts=_parts_of(message.content), name=message.name)


def _assistant_of(message: messages.AssistantMessageBody, index: int, called: str) -> ChatMessage:
    content = message.content if message.content is not None else message.refusal
    calls = [_call_of(call) for call in message.tool_calls or ()]
    if message.function_call is not None:
        calls.append(_function_call_of(called, message.function_call))
    if content is None and not calls:
        field = f"messages[{index}].content"
        raise BadRequest(f"{field} is required without tool_calls", field=field)
    return ChatMessage(
        role="assistant",
        parts=() if content is None else _parts_of(content),
        reasoning=message.reasoning_content or message.reasoning,
        tool_calls=tuple(calls),
        name=message.name,
    )


def _call_of(call: messages.CallBody) -> ToolCall:
    if isinstance(call, messages.ToolCallBody):
        return _function_call_of(call.id, call.function)
    arguments = json_bytes({"input": call.custom.input}).decode()
    return ToolCall(call_id=call.id, name=call.custom.name, arguments=arguments)


def _function_call_of(call_id: str, function: messages.CalledFunctionBody) -> ToolCall:
    # a call without arguments is often sent back as empty text
    return ToolCall(call_id=call_id, name=function.name, arguments=function.arguments or "{}")


_Part = messages.TextPartBody | messages.ImagePartBody | messages.RefusalPartBody


def _parts_of(content: str | Sequence[_Part]) -> tuple[ContentPart, ...]:
    if isinstance(content, str):
        return (TextPart(text=content),)
    return tuple(_part_of(part) for part in content)


def _part_of(part: _Part) -> ContentPart:
    match part:
        case messages.TextPartBody():
            return TextPart(text=part.text)
        case messages.RefusalPartBody():
            return TextPart(text=part.refusal)
        case messages.ImagePartBody():
            return ImagePart(url=part.image_url.url, detail=part.image_url.detail)


def _tools_of(
    body: bodies.ChatCompletionsBody, limits: Limits
) -> tuple[tuple[ToolSpec, ...], ToolChoice]:
    if body.function_call is not None:
        raise bad_field("function_call", "needs functions; with tools send 'tool_choice'")
    specs = tools_of([function_of(tool) for tool in body.tools or ()], limits)
    tools = tuple(specs.values())
    match body.tool_choice:
        case None | "auto":
            return tools, ToolChoice(mode="auto" if tools else "none")
        case "none":
            return tools, ToolChoice(mode="none")
        case "required":
            if not tools:
                raise bad_field("tool_choice", "'required' needs a client tool")
            return tools, ToolChoice(mode="required")
        case bodies.NamedChoiceBody() | CustomChoiceBody() as named:
            kind, name = fields.tool_named(named)
            _check_known(name, specs, f"tool_choice.{kind}.name")
            return tools, ToolChoice(mode="named", name=name)
        case bodies.AllowedChoiceBody() as allowed:
            return _allowed_of(allowed, specs)


def _functions_of(
    body: bodies.ChatCompletionsBody, limits: Limits
) -> tuple[tuple[ToolSpec, ...], ToolChoice]:
    """Return the tools and the choice of a body with the older `functions` and `function_call`."""
    for field in ("tools", "tool_choice"):
        if getattr(body, field):
            raise bad_field(field, "replaces functions and function_call; send only one form")
    functions = [tool_of(function) for function in body.functions or ()]
    specs = tools_of(functions, limits, "name", "functions")
    tools = tuple(specs.values())
    match body.function_call:
        case bodies.NamedFunctionBody(name=name):
            _check_known(name, specs, "function_call.name")
            return tools, ToolChoice(mode="named", name=name)
        case "none":
            return tools, ToolChoice(mode="none")
        case _:
            return tools, ToolChoice(mode="auto" if tools else "none")


def function_of(tool: bodies.ToolBody) -> ToolSpec | None:
    """Return the function that the model gets for a function tool or a custom tool; None for a tool
    of any other type."""
    if isinstance(tool, bodies.ForeignToolBody):
        return None
    return custom_function(tool) if isinstance(tool, CustomToolBody) else tool_of(tool.function)


def tool_of(function: bodies.FunctionBody) -> ToolSpec:
    """Return a function as the model gets it."""
    return ToolSpec(
        name=function.name,
        description=function.description,
        parameters=function.parameters or {},
        strict=bool(function.strict),
    )


def _allowed_of(
    choice: bodies.AllowedChoiceBody, specs: Mapping[str, ToolSpec]
) -> tuple[tuple[ToolSpec, ...], ToolChoice]:
    allowed: dict[str, ToolSpec] = {}
    for index, tool in enumerate(choice.allowed_tools.tools):
        kind, name = fields.tool_named(tool)
        _check_known(name, specs, f"tool_choice.allowed_tools.tools[{index}].{kind}.name")
        allowed[name] = specs[name]
    return tuple(allowed.values()), ToolChoice(mode=choice.allowed_tools.mode)


def _check_known(name: str, specs: Mapping[str, ToolSpec], field: str) -> None:
    if name not in specs:
        raise bad_field(field, f"'{name}' is not one of the tools")


def _rare_of(body: bodies.ChatCompletionsBody, limits: Limits) -> dict[str, Any]:
    """Return the request's fields that come from rare fields of the body."""
    return {
        "stop": stops_of("stop", body.stop, limits),
        "top_logprobs": top_logprobs_of(body.logprobs, body.top_logprobs),
        "variables": fields.variables_of(body.chat_template_kwargs),
        "prediction": fields.predicted_of(body.prediction),
    }


def _continues(body: bodies.ChatCompletionsBody) -> bool:
    if not body.continue_final_message:
        return False
    if not isinstance(body.messages[-1], messages.AssistantMessageBody):
        raise bad_field("continue_final_message", "the last message must be from the assistant")
    return True


def _max_tokens_of(body: bodies.ChatCompletionsBody) -> int | None:
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise BadRequest(
            f"max_tokens ({old}) and max_completion_tokens ({new}) differ; send one",
            field="max_tokens",
        )
    field = "max_completion_tokens" if new is not None else "max_tokens"
    return fields.most_of(new if new is not None else old, field)


def _thinking_of(body: bodies.ChatCompletionsBody) -> ThinkingAsked:
    """Return how much the model should think. Bodies may use the field names of several servers."""
    reasoning = body.reasoning or bodies.ChatReasoningBody()
    if reasoning.exclude:
        raise bad_field("reasoning.exclude", "thinking has its own field in the answer")
    template = body.chat_template_kwargs or bodies.TemplateArgumentsBody()
    kind = None if body.thinking is None else body.thinking.type
    budget = None if body.thinking is None else body.thinking.budget_tokens
    return thinking_asked(
        switches={
            "enable_thinking": body.enable_thinking,
            "reasoning.enabled": reasoning.enabled,
            "thinking.type": None if kind in (None, "adaptive") else kind == "enabled",
            **switches_of(template),
        },
        efforts={
            "reasoning_effort": body.reasoning_effort,
            "reasoning.effort": reasoning.effort,
            "chat_template_kwargs.reasoning_effort": template.reasoning_effort,
        },
        budgets={
            "thinking_budget": body.thinking_budget,
            "thinking_budget_tokens": body.thinking_budget_tokens,
            "thinking_token_budget": body.thinking_token_budget,
            "reasoning.max_tokens": reasoning.max_tokens,
            "thinking.budget_tokens": budget,
            "chat_template_kwargs.thinking_budget": template.thinking_budget,
        },
    )


def switches_of(template: bodies.TemplateArgumentsBody) -> dict[str, bool | None]:
    """Return the template arguments that switch thinking, by their paths."""
    return {
        "chat_template_kwargs.enable_thinking": template.enable_thinking,
        "chat_template_kwargs.thinking": template.thinking,
    }
