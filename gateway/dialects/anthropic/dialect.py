"""Anthropic's messages: takes a conversation, returns one assistant turn or its token count.

Pure. Every field is honoured, or refused with an error that names it. The exceptions are the fields
that `bodies` lists as having no effect, each with its reason. If a conversation ends with the
assistant's turn, the model continues that turn. As in Anthropic's API, a model does not think
without `thinking`; with `adaptive` the model card decides. Server tools, which the provider would
run, are not offered to the model but reported as ignored. Client tools are offered; tools that
Anthropic defines get their known schemas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    OutputFormat,
    PromptQuestion,
    Sampling,
    ToolChoice,
    ToolSpec,
)
from gateway.dialects import sse
from gateway.dialects.anthropic import bodies
from gateway.dialects.anthropic.client_tools import client_tool
from gateway.dialects.anthropic.render import MessagesStream, render_message
from gateway.dialects.anthropic.turns import PROVIDED, provided_in, turns_of, unseen_of
from gateway.dialects.body import bad_field, ignoring, read_body
from gateway.dialects.collect import Collected
from gateway.dialects.dialect import Extras, Limits, ParseContext, Parsed
from gateway.dialects.encode import json_bytes
from gateway.dialects.shared_fields import (
    LEAST_TOP_P,
    TEXT_ONLY,
    ThinkingAsked,
    foreign_in,
    named_model,
    sampling_of,
    stops_of,
    temperature_of,
    thinking_asked,
    tools_of,
)

NO_SUCH_TOOL = "only client tools are supported"


class AnthropicMessages:
    """The endpoint `POST /v1/messages`."""

    name = "anthropic_messages"
    stream_content_type = sse.CONTENT_TYPE

    def parse(self, body: bytes, context: ParseContext) -> Parsed:
        """Return one request with one choice."""
        parsed_body, extras = read_body(bodies.AnthropicMessagesBody, body, context.limits)
        fields = {
            "max_tokens": parsed_body.max_tokens,
            "stop": stops_of("stop_sequences", parsed_body.stop_sequences, context.limits),
            "sampling": _sampling_of(parsed_body),
        }
        _check_budget(parsed_body)
        request = _request_of(parsed_body, extras, context).model_copy(update=fields)
        return _parsed(request, parsed_body, extras, context, stream=bool(parsed_body.stream))

    def stream(self, parsed: Parsed, *, load_s: float = 0.0) -> MessagesStream:
        """Return a renderer of named events. While the model loads, the renderer sends only
        pings."""
        return MessagesStream(parsed)

    def render_whole(
        self, parsed: Parsed, collected: Sequence[Collected], *, load_s: float = 0.0
    ) -> bytes:
        return render_message(parsed, collected[0])


class AnthropicCount:
    """The endpoint `POST /v1/messages/count_tokens`."""

    name = "anthropic_count_tokens"

    def parse(self, body: bytes, context: ParseContext) -> Parsed:
        """Return one request that counts the tokens of its prompt."""
        parsed_body, extras = read_body(bodies.AnthropicCountBody, body, context.limits)
        question = {"question": PromptQuestion(wants="count")}
        request = _request_of(parsed_body, extras, context).model_copy(update=question)
        return _parsed(request, parsed_body, extras, context)

    def render_whole(
        self, parsed: Parsed, collected: Sequence[Collected], *, load_s: float = 0.0
    ) -> bytes:
        """Return the number of prompt tokens as JSON; tokens in the prefix cache count, too."""
        return json_bytes({"input_tokens": collected[0].usage.prompt_tokens})


def _request_of(
    body: bodies.AnthropicPromptBody, extras: Extras, context: ParseContext
) -> GenerationRequest:
    """Return the request with the fields that the bodies of a message and of `count_tokens` share:
    the prompt and the client."""
    turns = _turns_of(body, context.limits)
    tools = tools_of([_tool_of(tool) for tool in body.tools or ()], context.limits, "name")
    return GenerationRequest(
        request_id=next(context.ids),
        model=named_model(body.model),
        prompt=ChatPrompt(
            messages=turns,
            tools=_deferred_last(body, tools),
            continue_final=turns[-1].role == "assistant",
        ),
        output=_output_of(body),
        tool_choice=_choice_of(body, tools),
        parallel_tool_calls=not _one_call(body),
        priority=extras.priority,
        client_id=_client_of(body, extras),
        speculate=extras.speculate,
    )


def _parsed(
    request: GenerationRequest,
    body: bodies.AnthropicPromptBody,
    extras: Extras,
    context: ParseContext,
    *,
    stream: bool = False,
) -> Parsed:
    thinking = _thinking_of(body)
    extras = thinking.report_in(extras, context.limits)
    extras = ignoring(extras, provided_in(body.messages), PROVIDED, context.limits)
    foreign = foreign_in(body.tools, bodies.AnthropicServerToolBody)
    extras = ignoring(extras, foreign, NO_SUCH_TOOL, context.limits)
    return Parsed(
        requests=(thinking.set_in(request),),
        model=body.model,
        stream=stream,
        answer_id=f"msg_{request.request_id}",
        created_at_s=context.now_s,
        fingerprint=context.fingerprint,
        include_usage=True,
        extras=ignoring(extras, unseen_of(body.messages), TEXT_ONLY, context.limits),
    )


def _turns_of(body: bodies.AnthropicPromptBody, limits: Limits) -> tuple[ChatMessage, ...]:
    if len(body.messages) > limits.messages:
        raise bad_field("messages", f"too many messages; the limit is {limits.messages}")
    turns = turns_of(body.system, body.messages)
    if all(turn.role == "system" for turn in turns):
        raise bad_field("messages", "must contain a user or an assistant turn")
    if turns[-1].tool_calls:
        field = f"messages[{len(body.messages) - 1}].content"
        raise bad_field(field, "cannot continue a last turn with tool_use; send a tool_result")
    return turns


def _tool_of(tool: bodies.ToolBody) -> ToolSpec | None:
    """Return a tool that the client runs, as the model gets it; None for a tool that the provider
    would run."""
    if isinstance(tool, bodies.AnthropicServerToolBody):
        return None
    if isinstance(tool, bodies.AnthropicClientToolBody):
        defined = client_tool(tool.type)
        return ToolSpec(
            name=tool.name,
            description=defined.description,
            parameters=dict(defined.parameters),
            strict=bool(tool.strict),
        )
    return ToolSpec(
        name=tool.name,
        description=tool.description,
        parameters=tool.input_schema,
        strict=bool(tool.strict),
    )


def _deferred_last(
    body: bodies.AnthropicPromptBody, tools: Mapping[str, ToolSpec]
) -> tuple[ToolSpec, ...]:
    """Return the tools. Tools with `defer_loading` come last, because a client may add more such
    tools later. The prompt before them then stays the same, so the prefix cache can still be used.
    """
    deferred = {
        tool.name
        for tool in body.tools or ()
        if isinstance(tool, bodies.AnthropicOfferedBody) and tool.defer_loading
    }
    return tuple(sorted(tools.values(), key=lambda tool: tool.name in deferred))


def _choice_of(body: bodies.AnthropicPromptBody, tools: Mapping[str, ToolSpec]) -> ToolChoice:
    match body.tool_choice:
        case bodies.AnthropicNoChoiceBody():
            return ToolChoice(mode="none")
        case bodies.AnthropicNamedChoiceBody(name=name):
            if name not in tools:
                text = f"'{name[:128]}' is not one of the client tools"
                raise bad_field("tool_choice.name", text)
            return ToolChoice(mode="named", name=name)
        case bodies.AnthropicChoiceBody(type="any"):
            if not tools:
                raise bad_field("tool_choice", "'any' needs client tools")
            return ToolChoice(mode="required")
        case _:
            return ToolChoice(mode="auto" if tools else "none")


def _one_call(body: bodies.AnthropicPromptBody) -> bool:
    match body.tool_choice:
        case None | bodies.AnthropicNoChoiceBody():
            return False
        case choice:
            return bool(choice.disable_parallel_tool_use)


def _sampling_of(body: bodies.AnthropicMessagesBody) -> Sampling:
    return sampling_of(
        {
            "temperature": None if body.temperature is None else temperature_of(body.temperature),
            "top_p": None if body.top_p is None else max(LEAST_TOP_P, body.top_p),
            "top_k": body.top_k,
        }
    )


def _output_of(body: bodies.AnthropicPromptBody) -> OutputFormat:
    config = body.output_config
    text_format = body.output_format if config is None or config.format is None else config.format
    if body.output_format not in (None, text_format):
        raise bad_field("output_format", "contradicts output_config.format; send only that")
    if text_format is None:
        return OutputFormat()
    return OutputFormat(kind="json_schema", json_schema=text_format.schema_)


def _check_budget(body: bodies.AnthropicMessagesBody) -> None:
    """Refuse a thinking budget that leaves no token for the answer, as Anthropic's API does."""
    budget = None if body.thinking is None else body.thinking.budget_tokens
    if budget is not None and budget >= body.max_tokens:
        text = f"must be above thinking.budget_tokens ({budget})"
        raise bad_field("max_tokens", text)


def _thinking_of(body: bodies.AnthropicPromptBody) -> ThinkingAsked:
    """Return how much the model should think. If the body does not say, it does not think."""
    settings = body.thinking or bodies.AnthropicThinkingBody(type="disabled")
    config = body.output_config
    asks = thinking_asked(
        switches={
            "thinking.type": None if settings.type == "adaptive" else settings.type == "enabled"
        },
        efforts={},
        budgets={"thinking.budget_tokens": settings.budget_tokens},
    )
    effort = None if config is None else config.effort
    if effort is None:
        return asks
    path = ("output_config.effort",)
    if asks.thinking is False:
        return replace(asks, unheeded=(*asks.unheeded, *path))
    hints = () if asks.thinking else (*asks.for_thinking, *path)
    return replace(asks, effort=effort, for_thinking=hints)


def _client_of(body: bodies.AnthropicPromptBody, extras: Extras) -> str | None:
    user_id = None if body.metadata is None else body.metadata.user_id
    return extras.client_id or user_id
