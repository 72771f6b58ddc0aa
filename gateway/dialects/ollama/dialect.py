"""Ollama's chat and generate: one choice, streamed by default.

Pure. A body with nothing to answer loads the model, or unloads it if `keep_alive` is 0. `raw` and
`suffix` prompts are tokenised unchanged; all other prompts go through the model's template. A
tool's result is matched to its call by id, else by name, else by order, since older clients send no
ids. A whole generate answer without `raw` and `suffix` returns its tokens as `context`, so that a
later request can continue from these tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    ContentPart,
    GenerationRequest,
    Prompt,
    TextPart,
    TextPrompt,
    ToolCall,
    ToolChoice,
    ToolSpec,
)
from gateway.dialects.body import bad_field, read_body
from gateway.dialects.collect import Collected
from gateway.dialects.dialect import Extras, Intent, ParseContext, Parsed
from gateway.dialects.encode import json_bytes
from gateway.dialects.ollama import bodies, fields, render
from gateway.dialects.shared_fields import stops_of, tools_of, top_logprobs_of


class _Rendered:
    """The rendering that chat and generate share: lines with a `message` or a `response`."""

    stream_content_type = render.CONTENT_TYPE
    shape: render.Shape

    def stream(self, parsed: Parsed, *, load_s: float = 0.0) -> render.OllamaStream:
        return render.OllamaStream(parsed, shape=self.shape, load_s=load_s)

    def render_whole(
        self, parsed: Parsed, collected: Sequence[Collected], *, load_s: float = 0.0
    ) -> bytes:
        """Return the whole answer as one line."""
        if parsed.intent != "generate":
            return render.render_empty(parsed, shape=self.shape, load_s=load_s)
        return render.render_ollama(parsed, collected[0], shape=self.shape, load_s=load_s)


class OllamaChat(_Rendered):
    """The endpoint `POST /api/chat`."""

    name = "ollama_chat"
    shape = "chat"

    def parse(self, body: bytes, context: ParseContext) -> Parsed:
        """Return one request; no request if the body has no messages. Raises BadRequest."""
        parsed_body, extras = read_body(bodies.OllamaChatBody, body, context.limits)
        messages = parsed_body.messages or []
        if len(messages) > context.limits.messages:
            raise bad_field(
                "messages", f"too many messages; the limit is {context.limits.messages}"
            )
        if not messages:
            return _parsed(parsed_body, None, extras, context)
        turns = tuple(_messages_of(messages))
        tools = tools_of([_tool_of(body) for body in parsed_body.tools or ()], context.limits)
        prompt = ChatPrompt(messages=turns, tools=tuple(tools.values()))
        return _parsed(parsed_body, prompt, extras, context)


class OllamaGenerate(_Rendered):
    """The endpoint `POST /api/generate`."""

    name = "ollama_generate"
    shape = "generate"

    def parse(self, body: bytes, context: ParseContext) -> Parsed:
        """Return one request; no request if the body has no prompt. Raises BadRequest."""
        parsed_body, extras = read_body(bodies.OllamaGenerateBody, body, context.limits)
        prompt = _prompt_of(parsed_body)
        history = tuple(parsed_body.context or ()) if isinstance(prompt, ChatPrompt) else None
        return _parsed(parsed_body, prompt, extras, context, history)


def _parsed(
    body: bodies.SharedBody,
    prompt: Prompt | None,
    extras: Extras,
    context: ParseContext,
    history: tuple[int, ...] | None = None,
) -> Parsed:
    model = fields.model_of(body.model)
    fields.check_offered(body)
    options, ignored = fields.options_of(body, strict=context.limits.strict_fields)
    keep_alive_s = fields.keep_alive_of(body)
    request = GenerationRequest(
        request_id=next(context.ids),
        model=model,
        prompt=prompt if prompt is not None else TextPrompt(text=""),
        max_tokens=fields.max_tokens_of(options),
        stop=stops_of("options.stop", options.stop, context.limits),
        sampling=fields.sampling_of(options),
        output=fields.output_of(body),
        tool_choice=ToolChoice(mode="auto" if _offers_tools(prompt) else "none"),
        top_logprobs=top_logprobs_of(body.logprobs, body.top_logprobs),
        priority=extras.priority,
        client_id=extras.client_id,
        speculate=extras.speculate,
        history=history,
    )
    empty: Intent = "unload" if keep_alive_s == 0 else "load"
    return Parsed(
        requests=() if prompt is None else (fields.thinking_of(body).set_in(request),),
        model=body.model,
        stream=body.stream is not False,
        answer_id=request.request_id,
        created_at_s=context.now_s,
        fingerprint=context.fingerprint,
        include_usage=True,
        extras=replace(extras, keep_alive_s=keep_alive_s, ignored=(*extras.ignored, *ignored)),
        intent=empty if prompt is None else "generate",
        cuts=bool(body.truncate),
    )


def _offers_tools(prompt: Prompt | None) -> bool:
    return isinstance(prompt, ChatPrompt) and bool(prompt.tools)


def _prompt_of(body: bodies.OllamaGenerateBody) -> Prompt | None:
    text = body.prompt or ""
    if not text and not body.suffix and not body.images:
        return None
    if body.raw or body.suffix:
        how = "raw" if body.raw else "suffix"
        no_place = (
            ("system", body.system),
            ("images", body.images),
            ("think", body.think),
            ("context", body.context),
        )
        for name, value in no_place:
            if value:
                raise bad_field(name, f"cannot be used in a prompt with {how}")
        return TextPrompt(text=text, suffix=body.suffix or None)
    system = (_system(body.system),) if body.system else ()
    images = _images_of(body.images, "images")
    user = ChatMessage(role="user", parts=(TextPart(text=text), *images))
    return ChatPrompt(messages=(*system, user))


def _messages_of(messages: Sequence[bodies.OllamaMessageBody]) -> list[ChatMessage]:
    turns: list[ChatMessage] = []
    unanswered: list[ToolCall] = []
    for index, message in enumerate(messages):
        turn = _turn_of(message, index)
        if message.role == "assistant":
            unanswered = list(turn.tool_calls)
        elif message.role == "tool":
            turn = _answering(turn, message, unanswered)
        turns.append(turn)
    return turns


def _system(text: str) -> ChatMessage:
    return ChatMessage(role="system", parts=(TextPart(text=text),))


def _turn_of(message: bodies.OllamaMessageBody, index: int) -> ChatMessage:
    """Return one turn. Raises BadRequest for a field that the role may not have."""
    speaks = message.role == "assistant"
    for name, value in (("thinking", message.thinking), ("tool_calls", message.tool_calls)):
        if value and not speaks:
            raise bad_field(f"messages[{index}].{name}", "only assistant messages can have it")
    content = message.content or ""
    text = () if speaks and not content else (TextPart(text=content),)
    return ChatMessage(
        role=message.role,
        parts=(*text, *_images_of(message.images, f"messages[{index}].images")),
        reasoning=message.thinking or None,
        tool_calls=tuple(
            ToolCall(
                call_id=call.id or f"call_{index}_{position}",
                name=call.function.name,
                arguments=json_bytes(call.function.arguments).decode(),
            )
            for position, call in enumerate(message.tool_calls or ())
        ),
    )


def _answering(
    turn: ChatMessage, message: bodies.OllamaMessageBody, unanswered: list[ToolCall]
) -> ChatMessage:
    """Return the turn of a tool with the id and name of the call that it answers. Removes that call
    from `unanswered`."""
    name = message.tool_name or message.name or None
    own_id = message.tool_call_id or None
    fitting = (
        call
        for call in unanswered
        if call.call_id == own_id or (own_id is None and name in (None, call.name))
    )
    call = next(fitting, None)
    if call is not None:
        unanswered.remove(call)
    call_id = own_id or (None if call is None else call.call_id)
    call_name = name or (None if call is None else call.name)
    return turn.model_copy(update={"tool_call_id": call_id, "name": call_name})


def _images_of(images: Sequence[str] | None, field: str) -> tuple[ContentPart, ...]:
    return tuple(
        fields.image_of(encoded, f"{field}[{index}]") for index, encoded in enumerate(images or ())
    )


def _tool_of(body: bodies.OllamaToolBody) -> ToolSpec:
    return ToolSpec(
        name=body.function.name,
        description=body.function.description,
        parameters=body.function.parameters or {},
    )
