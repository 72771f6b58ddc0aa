"""Anthropic's messages: a conversation in, one assistant turn out, or the count of its tokens.

Pure. Every field is honoured or refused by name; those accepted without effect stand in `bodies`
with the reason. A conversation that ends with the assistant's turn is continued from there. Without
`thinking` the model does not think, as this API has it; `adaptive` leaves it to the model's card.
Tools that the provider would run are not offered to the model, and named; the others are, those
that Anthropic defines with their known schemas.
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
    """`POST /v1/messages`."""

    name = "anthropic_messages"
    stream_content_type = sse.CONTENT_TYPE

    def parse(self, body: bytes, context: ParseContext) -> Parsed:
        """Return one request of one choice."""
        asked, extras = read_body(bodies.AnthropicMessagesBody, body, context.limits)
        about = {
            "max_tokens": asked.max_tokens,
            "stop": stops_of("stop_sequences", asked.stop_sequences, context.limits),
            "sampling": _sampling_of(asked),
        }
        _check_budget(asked)
        request = _request_of(asked, extras, context).model_copy(update=about)
        return _parsed(request, asked, extras, context, stream=bool(asked.stream))

    def stream(self, parsed: Parsed, *, load_s: float = 0.0) -> MessagesStream:
        """Return a renderer of named events; loading is told by pings only."""
        return MessagesStream(parsed)

    def render_whole(
        self, parsed: Parsed, collected: Sequence[Collected], *, load_s: float = 0.0
    ) -> bytes:
        """Return one `message`."""
        return render_message(parsed, collected[0])


class AnthropicCount:
    """`POST /v1/messages/count_tokens`."""

    name = "anthropic_count_tokens"

    def parse(self, body: bytes, context: ParseContext) -> Parsed:
        """Return one request that asks how many tokens its prompt has."""
        asked, extras = read_body(bodies.AnthropicCountBody, body, context.limits)
        question = {"question": PromptQuestion(wants="count")}
        request = _request_of(asked, extras, context).model_copy(update=question)
        return _parsed(request, asked, extras, context)

    def render_whole(
        self, parsed: Parsed, collected: Sequence[Collected], *, load_s: float = 0.0
    ) -> bytes:
        """Return how many there are: all of the prompt, cached or not."""
        return json_bytes({"input_tokens": collected[0].usage.prompt_tokens})


def _request_of(
    asked: bodies.AnthropicPromptBody, extras: Extras, context: ParseContext
) -> GenerationRequest:
    """Return the request as far as both bodies say it: what the model reads, and who asks."""
    turns = _turns_of(asked, context.limits)
    tools = tools_of([_tool_of(tool) for tool in asked.tools or ()], context.limits, "name")
    return GenerationRequest(
        request_id=next(context.ids),
        model=named_model(asked.model),
        prompt=ChatPrompt(
            messages=turns,
            tools=_deferred_last(asked, tools),
            continue_final=turns[-1].role == "assistant",
        ),
        output=_output_of(asked),
        tool_choice=_choice_of(asked, tools),
        parallel_tool_calls=not _one_call(asked),
        priority=extras.priority,
        client_id=_client_of(asked, extras),
    )


def _parsed(
    request: GenerationRequest,
    asked: bodies.AnthropicPromptBody,
    extras: Extras,
    context: ParseContext,
    *,
    stream: bool = False,
) -> Parsed:
    thinking = _thinking_of(asked)
    extras = thinking.told_in(extras, context.limits)
    extras = ignoring(extras, provided_in(asked.messages), PROVIDED, context.limits)
    foreign = foreign_in(asked.tools, bodies.AnthropicServerToolBody)
    extras = ignoring(extras, foreign, NO_SUCH_TOOL, context.limits)
    return Parsed(
        requests=(thinking.asked_of(request),),
        model=asked.model,
        stream=stream,
        answer_id=f"msg_{request.request_id}",
        created_at_s=context.now_s,
        fingerprint=context.fingerprint,
        include_usage=True,
        extras=ignoring(extras, unseen_of(asked.messages), TEXT_ONLY, context.limits),
    )


def _turns_of(asked: bodies.AnthropicPromptBody, limits: Limits) -> tuple[ChatMessage, ...]:
    if len(asked.messages) > limits.messages:
        raise bad_field("messages", f"at most {limits.messages}")
    turns = turns_of(asked.system, asked.messages)
    if all(turn.role == "system" for turn in turns):
        raise bad_field("messages", "must contain a user or an assistant turn")
    if turns[-1].tool_calls:
        field = f"messages[{len(asked.messages) - 1}].content"
        raise bad_field(field, "cannot continue a last turn with tool_use; send a tool_result")
    return turns


def _tool_of(tool: bodies.ToolBody) -> ToolSpec | None:
    """Return a tool that the client runs; None for one that the provider would run."""
    if isinstance(tool, bodies.AnthropicServerToolBody):
        return None
    if isinstance(tool, bodies.AnthropicClientToolBody):
        known = client_tool(tool.type)
        return ToolSpec(
            name=tool.name,
            description=known.description,
            parameters=dict(known.parameters),
            strict=bool(tool.strict),
        )
    return ToolSpec(
        name=tool.name,
        description=tool.description,
        parameters=tool.input_schema,
        strict=bool(tool.strict),
    )


def _deferred_last(
    asked: bodies.AnthropicPromptBody, tools: Mapping[str, ToolSpec]
) -> tuple[ToolSpec, ...]:
    """Return the tools, those last that a client adds while it goes on: what stands before them in
    the prompt is found again."""
    deferred = {
        tool.name
        for tool in asked.tools or ()
        if isinstance(tool, bodies.AnthropicOfferedBody) and tool.defer_loading
    }
    return tuple(sorted(tools.values(), key=lambda tool: tool.name in deferred))


def _choice_of(asked: bodies.AnthropicPromptBody, tools: Mapping[str, ToolSpec]) -> ToolChoice:
    match asked.tool_choice:
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


def _one_call(asked: bodies.AnthropicPromptBody) -> bool:
    match asked.tool_choice:
        case None | bodies.AnthropicNoChoiceBody():
            return False
        case choice:
            return bool(choice.disable_parallel_tool_use)


def _sampling_of(asked: bodies.AnthropicMessagesBody) -> Sampling:
    return sampling_of(
        {
            "temperature": None if asked.temperature is None else temperature_of(asked.temperature),
            "top_p": None if asked.top_p is None else max(LEAST_TOP_P, asked.top_p),
            "top_k": asked.top_k,
        }
    )


def _output_of(asked: bodies.AnthropicPromptBody) -> OutputFormat:
    config = asked.output_config
    wanted = asked.output_format if config is None or config.format is None else config.format
    if asked.output_format not in (None, wanted):
        raise bad_field("output_format", "contradicts output_config.format; send only that")
    if wanted is None:
        return OutputFormat()
    return OutputFormat(kind="json_schema", json_schema=wanted.schema_)


def _check_budget(asked: bodies.AnthropicMessagesBody) -> None:
    """Refuse a budget that leaves no token for the answer, as this API does."""
    budget = None if asked.thinking is None else asked.thinking.budget_tokens
    if budget is not None and budget >= asked.max_tokens:
        text = f"must be above thinking.budget_tokens ({budget})"
        raise bad_field("max_tokens", text)


def _thinking_of(asked: bodies.AnthropicPromptBody) -> ThinkingAsked:
    """Return how much to think: not at all where the body does not say."""
    said = asked.thinking or bodies.AnthropicThinkingBody(type="disabled")
    config = asked.output_config
    asks = thinking_asked(
        switches={"thinking.type": None if said.type == "adaptive" else said.type == "enabled"},
        efforts={},
        budgets={"thinking.budget_tokens": said.budget_tokens},
    )
    effort = None if config is None else config.effort
    if effort is None:
        return asks
    path = ("output_config.effort",)
    if asks.thinking is False:
        return replace(asks, unheeded=(*asks.unheeded, *path))
    hints = () if asks.thinking else (*asks.for_thinking, *path)
    return replace(asks, effort=effort, for_thinking=hints)


def _client_of(asked: bodies.AnthropicPromptBody, extras: Extras) -> str | None:
    named = None if asked.metadata is None else asked.metadata.user_id
    return extras.client_id or named
