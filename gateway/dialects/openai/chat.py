"""OpenAI's chat completions: a conversation in, one or more assistant turns out.

Pure. Every field is honoured or refused by name; those accepted without effect stand in
`bodies` with the reason. `developer` is read as `system`. An assistant's `refusal`
is read as its text. `tool_choice` with `allowed_tools` offers only those tools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
from gateway.dialects.openai import bodies, fields, messages
from gateway.dialects.openai.chat_render import ChatStream, render_chat
from gateway.dialects.openai.formats import output_of
from gateway.dialects.shared_fields import stops_of, tools_of, top_logprobs_of

UNTHINKING_EFFORTS = ("none", "minimal")
"""Models here think or do not; how long is theirs to say."""


class OpenAIChat:
    """`POST /v1/chat/completions`."""

    name = "openai_chat"
    stream_content_type = sse.CONTENT_TYPE

    def parse(self, body: bytes, context: ParseContext) -> Parsed:
        """Return one request of `n` choices."""
        asked, extras = read_body(bodies.ChatCompletionsBody, body, context.limits)
        fields.check_offered(asked)
        _check_offered(asked)
        tools, choice = _tools_of(asked, context.limits)
        request = GenerationRequest(
            request_id=next(context.ids),
            model=fields.model_of(asked),
            prompt=ChatPrompt(
                messages=messages_of(asked.messages, context.limits),
                tools=tools,
                continue_final=_continues(asked),
            ),
            n=asked.n or 1,
            max_tokens=_max_tokens_of(asked),
            stop=stops_of("stop", asked.stop, context.limits),
            sampling=fields.sampling_of(asked),
            output=output_of(asked, context.limits),
            tool_choice=choice,
            parallel_tool_calls=asked.parallel_tool_calls is not False,
            top_logprobs=top_logprobs_of(asked.logprobs, asked.top_logprobs),
            thinking=_thinking_of(asked),
            ignore_eos=bool(asked.ignore_eos),
            min_tokens=asked.min_tokens or None,
            priority=extras.priority,
            client_id=fields.client_of(asked, extras),
        )
        return Parsed(
            requests=(request,),
            model=asked.model,
            stream=bool(asked.stream),
            answer_id=f"chatcmpl-{request.request_id}",
            created_at_s=context.now_s,
            fingerprint=context.fingerprint,
            include_usage=fields.includes_usage(asked),
            extras=extras,
        )

    def stream(self, parsed: Parsed, *, load_s: float = 0.0) -> ChatStream:
        """Return a renderer of `chat.completion.chunk`; loading is told in comments only."""
        return ChatStream(parsed)

    def render_whole(
        self, parsed: Parsed, collected: Sequence[Collected], *, load_s: float = 0.0
    ) -> bytes:
        """Return one `chat.completion`."""
        return render_chat(parsed, collected[0])


def _check_offered(asked: bodies.ChatCompletionsBody) -> None:
    if asked.modalities is not None and asked.modalities != ["text"]:
        raise bad_field("modalities", 'only ["text"] is offered')
    if asked.verbosity not in (None, "medium"):
        raise bad_field("verbosity", "only 'medium' is offered; ask for a length in the prompt")


def messages_of(turns: Sequence[messages.MessageBody], limits: Limits) -> tuple[ChatMessage, ...]:
    """Return the conversation. BadRequest for too many turns, or naming one that says nothing."""
    if len(turns) > limits.messages:
        raise bad_field("messages", f"at most {limits.messages}")
    return tuple(_message_of(message, index) for index, message in enumerate(turns))


def _message_of(message: messages.MessageBody, index: int) -> ChatMessage:
    match message:
        case messages.AssistantMessageBody():
            return _assistant_of(message, index)
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


def _assistant_of(message: messages.AssistantMessageBody, index: int) -> ChatMessage:
    content = message.content if message.content is not None else message.refusal
    if content is None and not message.tool_calls:
        field = f"messages[{index}].content"
        raise BadRequest(f"{field} is required without tool_calls", field=field)
    return ChatMessage(
        role="assistant",
        parts=() if content is None else _parts_of(content),
        reasoning=message.reasoning_content or message.reasoning,
        tool_calls=tuple(
            ToolCall(
                call_id=call.id,
                name=call.function.name,
                # a call without arguments is often sent back as empty text
                arguments=call.function.arguments or "{}",
            )
            for call in message.tool_calls or ()
        ),
        name=message.name,
    )


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
    asked: bodies.ChatCompletionsBody, limits: Limits
) -> tuple[tuple[ToolSpec, ...], ToolChoice]:
    specs = tools_of([tool_of(body) for body in asked.tools or ()], limits)
    tools = tuple(specs.values())
    match asked.tool_choice:
        case None | "auto":
            return tools, ToolChoice(mode="auto" if tools else "none")
        case "none":
            return tools, ToolChoice(mode="none")
        case "required":
            if not tools:
                raise bad_field("tool_choice", "'required' needs tools")
            return tools, ToolChoice(mode="required")
        case bodies.NamedChoiceBody() as named:
            name = named.function.name
            _check_known(name, specs, "tool_choice.function.name")
            return tools, ToolChoice(mode="named", name=name)
        case bodies.AllowedChoiceBody() as allowed:
            return _allowed_of(allowed, specs)


def tool_of(body: bodies.ToolBody) -> ToolSpec:
    """Return a tool as the model is to see it."""
    return ToolSpec(
        name=body.function.name,
        description=body.function.description,
        parameters=body.function.parameters or {},
        strict=bool(body.function.strict),
    )


def _allowed_of(
    choice: bodies.AllowedChoiceBody, specs: Mapping[str, ToolSpec]
) -> tuple[tuple[ToolSpec, ...], ToolChoice]:
    allowed: dict[str, ToolSpec] = {}
    for index, one in enumerate(choice.allowed_tools.tools):
        field = f"tool_choice.allowed_tools.tools[{index}].function.name"
        _check_known(one.function.name, specs, field)
        allowed[one.function.name] = specs[one.function.name]
    return tuple(allowed.values()), ToolChoice(mode=choice.allowed_tools.mode)


def _check_known(name: str, specs: Mapping[str, ToolSpec], field: str) -> None:
    if name not in specs:
        raise bad_field(field, f"'{name}' is not among the tools")


def _continues(asked: bodies.ChatCompletionsBody) -> bool:
    if not asked.continue_final_message:
        return False
    if not isinstance(asked.messages[-1], messages.AssistantMessageBody):
        raise bad_field("continue_final_message", "the last message must be the assistant's")
    return True


def _max_tokens_of(asked: bodies.ChatCompletionsBody) -> int | None:
    old, new = asked.max_tokens, asked.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise BadRequest(
            f"max_tokens ({old}) and max_completion_tokens ({new}) differ; send one",
            field="max_tokens",
        )
    return new if new is not None else old


def _thinking_of(asked: bodies.ChatCompletionsBody) -> bool | None:
    effort = asked.reasoning_effort
    by_effort = None if effort is None else effort not in UNTHINKING_EFFORTS
    arguments = asked.chat_template_kwargs
    by_template = None if arguments is None else arguments.enable_thinking
    if by_effort is None:
        return by_template
    if by_template is not None and by_template != by_effort:
        raise BadRequest(
            f"chat_template_kwargs.enable_thinking says other than reasoning_effort '{effort}'",
            field="chat_template_kwargs.enable_thinking",
        )
    return by_effort
