"""OpenAI's responses: takes items, returns one answer that later requests may continue.

Pure. Every field is honoured, or refused with an error that names it. Exceptions are the fields
that `bodies` lists as having no effect, each with its reason. The model sees functions and custom
tools only. A request that continues an answer gets that answer's items, but not its instructions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bus.wire.errors import BadRequest
from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    OutputFormat,
    PromptQuestion,
    Sampling,
    TextPart,
)
from gateway.dialects import sse
from gateway.dialects.body import bad_field, ignoring, read_body, read_object, validate
from gateway.dialects.collect import Collected
from gateway.dialects.dialect import (
    ConversationTurn,
    Extras,
    KeptAnswer,
    Limits,
    ParseContext,
    Parsed,
    ToKeep,
)
from gateway.dialects.encode import json_bytes
from gateway.dialects.openai.custom_tools import NOT_HELD, custom_tells, unheld_in
from gateway.dialects.openai.fields import manner_of, priority_of
from gateway.dialects.openai.responses import bodies
from gateway.dialects.openai.responses.background import in_background
from gateway.dialects.openai.responses.conversations import begun_turn, turn_of
from gateway.dialects.openai.responses.echo import (
    conversation_of,
    echoed_fields,
    echoed_prompt_fields,
    summary_of,
)
from gateway.dialects.openai.responses.functions import foreign_tools_of, functions_of
from gateway.dialects.openai.responses.items import AnyItem, ResponsesItems
from gateway.dialects.openai.responses.listing import (
    item_named,
    items_of,
    kept_items,
    output_of,
    read_items,
    references_of,
    resolved,
)
from gateway.dialects.openai.responses.render import ResponsesStream, render_response
from gateway.dialects.openai.responses.shapes import ENCRYPTED, PREFIX, SUMMARY
from gateway.dialects.openai.responses.turns import skipped_of, turns_of, unseen_of
from gateway.dialects.shared_fields import (
    LEAST_TOP_P,
    NO_SUCH_TOOL,
    TEXT_ONLY,
    ThinkingAsked,
    named_model,
    sampling_of,
    temperature_of,
    thinking_asked,
)

NONE_NAMED: Mapping[str, bytes] = {}
LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that requests log-probabilities. shoal has none of the other parts that
`include` may name."""


class OpenAIResponses:
    """The endpoint `POST /v1/responses`."""

    name = "openai_responses"
    stream_content_type = sse.CONTENT_TYPE

    def parse(self, body: bytes, context: ParseContext) -> Parsed:
        """Return one request with one choice, from the body alone."""
        parsed_body, extras = read_body(bodies.ResponsesBody, body, context.limits)
        _check_offered(parsed_body)
        items = _items_of(parsed_body, context.limits)
        thinking = _thinking_of(parsed_body)
        about = {
            "max_tokens": parsed_body.max_output_tokens,
            "sampling": _sampling_of(parsed_body),
            "top_logprobs": _top_logprobs_of(parsed_body),
            "priority": priority_of(parsed_body.service_tier, extras),
        }
        request = _request_of(parsed_body, items, extras, context).model_copy(update=about)
        keeps = parsed_body.store is not False
        references = references_of(items)
        stores_items = keeps or _goes_on(parsed_body) or bool(references)
        stored_items = kept_items(items, request.request_id) if stores_items else ()
        parsed = Parsed(
            requests=(thinking.set_in(request),),
            model=parsed_body.model,
            stream=bool(parsed_body.stream),
            answer_id=f"{PREFIX}{request.request_id}",
            created_at_s=context.now_s,
            fingerprint=context.fingerprint,
            include_usage=True,
            extras=_report_ignored(
                parsed_body, items, thinking.report_in(extras, context.limits), context.limits
            ),
            echoed_fields=echoed_fields(parsed_body),
            tells=_tells_of(parsed_body) | custom_tells(parsed_body.tools),
            manner=manner_of(None if parsed_body.text is None else parsed_body.text.verbosity),
            affinity=parsed_body.prompt_cache_key or "",
            cuts=parsed_body.truncation == "auto",
            to_keep=ToKeep(
                stored_items,
                previous=parsed_body.previous_response_id,
                keep=keeps,
                named=references,
                turn=_turn_of(parsed_body),
            ),
        )
        if not parsed_body.background:
            return parsed
        return in_background(parsed, read_object(body, context.limits))

    def item_named(self, stored: KeptAnswer, item_id: str) -> bytes | None:
        """Return an item of a stored answer or of its input; None if neither has the item."""
        return item_named(stored, item_id)

    def continued(
        self,
        parsed: Parsed,
        previous: KeptAnswer | None,
        limits: Limits,
        named: Mapping[str, bytes] = NONE_NAMED,
        conversation: Sequence[bytes] = (),
    ) -> Parsed:
        """Return the request with earlier items before its own items."""
        return _continued(parsed, previous, limits, named, conversation)

    def stream(self, parsed: Parsed, *, load_s: float = 0.0) -> ResponsesStream:
        """Return a renderer of named events. While the model loads, the renderer sends only
        comments."""
        return ResponsesStream(parsed, load_s)

    def render_whole(
        self, parsed: Parsed, collected: Sequence[Collected], *, load_s: float = 0.0
    ) -> bytes:
        return render_response(parsed, collected[0], load_s)


class OpenAIInputTokens:
    """The endpoint `POST /v1/responses/input_tokens`."""

    name = "openai_input_tokens"

    def parse(self, body: bytes, context: ParseContext) -> Parsed:
        """Return one request that counts the tokens of its prompt."""
        parsed_body, extras = read_body(bodies.ResponsesCountBody, body, context.limits)
        _check_one_before(parsed_body)
        items = _items_of(parsed_body, context.limits)
        thinking = _thinking_of(parsed_body)
        question = {"question": PromptQuestion(wants="count")}
        request = _request_of(parsed_body, items, extras, context).model_copy(update=question)
        return Parsed(
            requests=(thinking.set_in(request),),
            model=parsed_body.model,
            stream=False,
            answer_id=f"{PREFIX}{request.request_id}",
            created_at_s=context.now_s,
            fingerprint=context.fingerprint,
            extras=_report_ignored(
                parsed_body, items, thinking.report_in(extras, context.limits), context.limits
            ),
            echoed_fields=echoed_prompt_fields(parsed_body),
            manner=manner_of(None if parsed_body.text is None else parsed_body.text.verbosity),
            to_keep=ToKeep(
                kept_items(items, request.request_id),
                previous=parsed_body.previous_response_id,
                keep=False,
                named=references_of(items),
                turn=_turn_of(parsed_body),
            ),
        )

    def item_named(self, stored: KeptAnswer, item_id: str) -> bytes | None:
        """Return an item of a stored answer or of its input; None if neither has the item."""
        return item_named(stored, item_id)

    def continued(
        self,
        parsed: Parsed,
        previous: KeptAnswer | None,
        limits: Limits,
        named: Mapping[str, bytes] = NONE_NAMED,
        conversation: Sequence[bytes] = (),
    ) -> Parsed:
        """Return the request with earlier items before its own items. A count adds nothing to its
        conversation."""
        return replace(_continued(parsed, previous, limits, named, conversation), to_keep=None)

    def render_whole(
        self, parsed: Parsed, collected: Sequence[Collected], *, load_s: float = 0.0
    ) -> bytes:
        """Return the number of prompt tokens as JSON; tokens in the prefix cache count, too."""
        tokens = collected[0].usage.prompt_tokens
        return json_bytes({"object": "response.input_tokens", "input_tokens": tokens})


def _continued(
    parsed: Parsed,
    previous: KeptAnswer | None,
    limits: Limits,
    named: Mapping[str, bytes],
    conversation: Sequence[bytes],
) -> Parsed:
    """Return the request with earlier items before its own, and with references replaced by the
    items in `named`.

    The earlier items are a previous answer's input and output, or a conversation's items. Raises
    BadRequest if the request has no items or too many, or if an item occurs twice.
    """
    to_keep, request = parsed.to_keep, parsed.requests[0]
    prompt = request.prompt
    if to_keep is None or not isinstance(prompt, ChatPrompt):
        return parsed
    earlier_items = conversation if previous is None else (*previous.items, *output_of(previous))
    own = resolved(to_keep.items, named)
    together = (*earlier_items, *own)
    _check_count(len(together), limits)
    if not together:
        raise _no_input()
    again, _ = validate(ResponsesItems, {"items": read_items(together)})
    first = prompt.messages[:1] if parsed.echoed_fields["instructions"] is not None else ()
    whole_prompt = prompt.model_copy(update={"messages": first + turns_of(again.items)})
    return replace(
        parsed,
        requests=(request.model_copy(update={"prompt": whole_prompt}),),
        to_keep=replace(
            to_keep,
            items=together,
            turn=None if to_keep.turn is None else turn_of(to_keep.turn, earlier_items, own),
        ),
    )


def _goes_on(body: bodies.ResponsesPromptBody) -> bool:
    """Return whether a body continues a stored answer or a conversation."""
    return body.previous_response_id is not None or body.conversation is not None


def _turn_of(body: bodies.ResponsesPromptBody) -> ConversationTurn | None:
    """Return a body's turn in its conversation; None if the body names no conversation."""
    conversation = conversation_of(body)
    return None if conversation is None else begun_turn(conversation)


def _request_of(
    body: bodies.ResponsesPromptBody,
    items: Sequence[AnyItem],
    extras: Extras,
    context: ParseContext,
) -> GenerationRequest:
    tools, choice = functions_of(body, context.limits)
    return GenerationRequest(
        request_id=next(context.ids),
        model=named_model(body.model),
        prompt=ChatPrompt(messages=_instructions_of(body) + turns_of(items), tools=tools),
        output=_output_of(body),
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        priority=extras.priority,
        client_id=_client_of(body, extras),
        speculate=extras.speculate,
    )


def _items_of(body: bodies.ResponsesPromptBody, limits: Limits) -> Sequence[AnyItem]:
    items = items_of(body.input)
    _check_count(len(items), limits)
    if not items and not _goes_on(body):
        raise _no_input()
    return items


def _report_ignored(
    body: bodies.ResponsesPromptBody, items: Sequence[AnyItem], extras: Extras, limits: Limits
) -> Extras:
    """Return the extras with the paths of tools, items and parts that no model can read."""
    extras = ignoring(extras, foreign_tools_of(body), NO_SUCH_TOOL, limits)
    extras = ignoring(extras, unheld_in(body.tools), NOT_HELD, limits)
    extras = ignoring(extras, skipped_of(items), NO_SUCH_TOOL, limits)
    return ignoring(extras, unseen_of(items), TEXT_ONLY, limits)


def _no_input() -> BadRequest:
    return bad_field("input", "must have at least one item, or text")


def _check_one_before(body: bodies.ResponsesPromptBody) -> None:
    if body.conversation is not None and body.previous_response_id is not None:
        raise BadRequest(
            "Mutually exclusive parameters: 'conversation' and 'previous_response_id'. Ensure you "
            "are only providing one of: 'previous_response_id' or 'conversation'.",
            field="conversation",
        )


def _check_offered(body: bodies.ResponsesBody) -> None:
    _check_one_before(body)
    if body.background and body.store is False:
        raise bad_field("background", "needs a stored answer; omit 'store'")
    if body.stream_options is not None and not body.stream:
        raise bad_field("stream_options", "is only allowed when stream is true")


def _check_count(count: int, limits: Limits) -> None:
    if count > limits.messages:
        raise bad_field(
            "input",
            f"too many items: the limit is {limits.messages:,}, including those of the previous "
            "response or conversation",
        )


def _instructions_of(body: bodies.ResponsesPromptBody) -> tuple[ChatMessage, ...]:
    if body.instructions is None:
        return ()
    return (ChatMessage(role="system", parts=(TextPart(text=body.instructions),)),)


def _sampling_of(body: bodies.ResponsesBody) -> Sampling:
    return sampling_of(
        {
            "temperature": None if body.temperature is None else temperature_of(body.temperature),
            "top_p": None if body.top_p is None else max(LEAST_TOP_P, body.top_p),
            "frequency_penalty": body.frequency_penalty,
            "presence_penalty": body.presence_penalty,
        }
    )


def _output_of(body: bodies.ResponsesPromptBody) -> OutputFormat:
    match None if body.text is None else body.text.format:
        case bodies.ResponsesJsonFormatBody():
            return OutputFormat(kind="json_object")
        case bodies.ResponsesSchemaFormatBody() as wanted:
            return OutputFormat(kind="json_schema", json_schema=wanted.schema_)
        case _:
            return OutputFormat()


def _top_logprobs_of(body: bodies.ResponsesBody) -> int | None:
    """Return the number of alternatives to show; None without log-probabilities."""
    if body.top_logprobs or LOGPROBS in (body.include or ()):
        return body.top_logprobs or 0
    return None


def _tells_of(body: bodies.ResponsesBody) -> frozenset[str]:
    """Return the forms of thinking that the answer must have beyond its text (`shapes`)."""
    parts = set[str]() if summary_of(body) is None else {SUMMARY}
    return frozenset(parts | {ENCRYPTED} & set(body.include or ()))


def _thinking_of(body: bodies.ResponsesPromptBody) -> ThinkingAsked:
    reasoning = body.reasoning or bodies.ResponsesEffortBody()
    return thinking_asked(
        switches={},
        efforts={"reasoning.effort": reasoning.effort},
        budgets={"reasoning.max_tokens": reasoning.max_tokens},
    )


def _client_of(body: bodies.ResponsesPromptBody, extras: Extras) -> str | None:
    return extras.client_id or body.user or body.safety_identifier
