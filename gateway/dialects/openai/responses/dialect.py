"""OpenAI's responses: items in, one answer out, which later requests may go on from.

Pure. Every field is honoured or refused by name; those accepted without effect stand in `bodies`
with the reason. Tools of other kinds than functions are not offered to the model. An answer that is
gone on from gives its items, and not its instructions.
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
    said_back,
    said_of_prompt,
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
"""What `include` has for log-probabilities; the rest of what it may have is not made here."""


class OpenAIResponses:
    """`POST /v1/responses`."""

    name = "openai_responses"
    stream_content_type = sse.CONTENT_TYPE

    def parse(self, body: bytes, context: ParseContext) -> Parsed:
        """Return one request of one choice, of what the body itself says."""
        asked, extras = read_body(bodies.ResponsesBody, body, context.limits)
        _check_offered(asked)
        found = _items_of(asked, context.limits)
        thinking = _thinking_of(asked)
        about = {
            "max_tokens": asked.max_output_tokens,
            "sampling": _sampling_of(asked),
            "top_logprobs": _top_logprobs_of(asked),
            "priority": priority_of(asked.service_tier, extras),
        }
        request = _request_of(asked, found, extras, context).model_copy(update=about)
        keeps = asked.store is not False
        named = references_of(found)
        held = keeps or _goes_on(asked) or bool(named)
        kept = kept_items(found, request.request_id) if held else ()
        parsed = Parsed(
            requests=(thinking.set_in(request),),
            model=asked.model,
            stream=bool(asked.stream),
            answer_id=f"{PREFIX}{request.request_id}",
            created_at_s=context.now_s,
            fingerprint=context.fingerprint,
            include_usage=True,
            extras=_told(asked, found, thinking.report_in(extras, context.limits), context.limits),
            said_back=said_back(asked),
            tells=_tells_of(asked) | custom_tells(asked.tools),
            manner=manner_of(None if asked.text is None else asked.text.verbosity),
            affinity=asked.prompt_cache_key or "",
            cuts=asked.truncation == "auto",
            to_keep=ToKeep(
                kept,
                previous=asked.previous_response_id,
                keep=keeps,
                named=named,
                turn=_turn_of(asked),
            ),
        )
        if not asked.background:
            return parsed
        return in_background(parsed, read_object(body, context.limits))

    def item_named(self, kept: KeptAnswer, item_id: str) -> bytes | None:
        """Return an item of a kept answer, or of what that was made from; None without it."""
        return item_named(kept, item_id)

    def continued(
        self,
        parsed: Parsed,
        previous: KeptAnswer | None,
        limits: Limits,
        named: Mapping[str, bytes] = NONE_NAMED,
        conversation: Sequence[bytes] = (),
    ) -> Parsed:
        """Return the request with the conversation that it goes on from before its own."""
        return _continued(parsed, previous, limits, named, conversation)

    def stream(self, parsed: Parsed, *, load_s: float = 0.0) -> ResponsesStream:
        """Return a renderer of named events; loading is told in comments only."""
        return ResponsesStream(parsed, load_s)

    def render_whole(
        self, parsed: Parsed, collected: Sequence[Collected], *, load_s: float = 0.0
    ) -> bytes:
        """Return one `response`."""
        return render_response(parsed, collected[0], load_s)


class OpenAIInputTokens:
    """`POST /v1/responses/input_tokens`."""

    name = "openai_input_tokens"

    def parse(self, body: bytes, context: ParseContext) -> Parsed:
        """Return one request that asks how many tokens its prompt has."""
        asked, extras = read_body(bodies.ResponsesCountBody, body, context.limits)
        _check_one_before(asked)
        found = _items_of(asked, context.limits)
        thinking = _thinking_of(asked)
        question = {"question": PromptQuestion(wants="count")}
        request = _request_of(asked, found, extras, context).model_copy(update=question)
        return Parsed(
            requests=(thinking.set_in(request),),
            model=asked.model,
            stream=False,
            answer_id=f"{PREFIX}{request.request_id}",
            created_at_s=context.now_s,
            fingerprint=context.fingerprint,
            extras=_told(asked, found, thinking.report_in(extras, context.limits), context.limits),
            said_back=said_of_prompt(asked),
            manner=manner_of(None if asked.text is None else asked.text.verbosity),
            to_keep=ToKeep(
                kept_items(found, request.request_id),
                previous=asked.previous_response_id,
                keep=False,
                named=references_of(found),
                turn=_turn_of(asked),
            ),
        )

    def item_named(self, kept: KeptAnswer, item_id: str) -> bytes | None:
        """Return an item of a kept answer, or of what that was made from; None without it."""
        return item_named(kept, item_id)

    def continued(
        self,
        parsed: Parsed,
        previous: KeptAnswer | None,
        limits: Limits,
        named: Mapping[str, bytes] = NONE_NAMED,
        conversation: Sequence[bytes] = (),
    ) -> Parsed:
        """Return the request with the conversation that it goes on from before its own; that gains
        nothing by it."""
        return replace(_continued(parsed, previous, limits, named, conversation), to_keep=None)

    def render_whole(
        self, parsed: Parsed, collected: Sequence[Collected], *, load_s: float = 0.0
    ) -> bytes:
        """Return how many there are: all of the prompt, cached or not."""
        tokens = collected[0].usage.prompt_tokens
        return json_bytes({"object": "response.input_tokens", "input_tokens": tokens})


def _continued(
    parsed: Parsed,
    previous: KeptAnswer | None,
    limits: Limits,
    named: Mapping[str, bytes],
    conversation: Sequence[bytes],
) -> Parsed:
    """Return the request with the conversation of an earlier answer, and that answer, or with the
    items of a conversation before its own, and with the items that it names by their ids.
    BadRequest where they are none or too many together, or one is there twice."""
    kept, request = parsed.to_keep, parsed.requests[0]
    prompt = request.prompt
    if kept is None or not isinstance(prompt, ChatPrompt):
        return parsed
    before = conversation if previous is None else (*previous.items, *output_of(previous))
    own = resolved(kept.items, named)
    together = (*before, *own)
    _check_count(len(together), limits)
    if not together:
        raise _no_input()
    again, _ = validate(ResponsesItems, {"items": read_items(together)})
    first = prompt.messages[:1] if parsed.said_back["instructions"] is not None else ()
    made = prompt.model_copy(update={"messages": first + turns_of(again.items)})
    return replace(
        parsed,
        requests=(request.model_copy(update={"prompt": made}),),
        to_keep=replace(
            kept,
            items=together,
            turn=None if kept.turn is None else turn_of(kept.turn, before, own),
        ),
    )


def _goes_on(asked: bodies.ResponsesPromptBody) -> bool:
    """Return whether a body goes on from an answer or a conversation that is kept."""
    return asked.previous_response_id is not None or asked.conversation is not None


def _turn_of(asked: bodies.ResponsesPromptBody) -> ConversationTurn | None:
    """Return what a body is to the conversation that it names; None for none."""
    conversation = conversation_of(asked)
    return None if conversation is None else begun_turn(conversation)


def _request_of(
    asked: bodies.ResponsesPromptBody,
    found: Sequence[AnyItem],
    extras: Extras,
    context: ParseContext,
) -> GenerationRequest:
    """Return the request as far as both bodies say it: what the model reads, and who asks."""
    tools, choice = functions_of(asked, context.limits)
    return GenerationRequest(
        request_id=next(context.ids),
        model=named_model(asked.model),
        prompt=ChatPrompt(messages=_instructions_of(asked) + turns_of(found), tools=tools),
        output=_output_of(asked),
        tool_choice=choice,
        parallel_tool_calls=asked.parallel_tool_calls is not False,
        priority=extras.priority,
        client_id=_client_of(asked, extras),
    )


def _items_of(asked: bodies.ResponsesPromptBody, limits: Limits) -> Sequence[AnyItem]:
    found = items_of(asked.input)
    _check_count(len(found), limits)
    if not found and not _goes_on(asked):
        raise _no_input()
    return found


def _told(
    asked: bodies.ResponsesPromptBody, found: Sequence[AnyItem], extras: Extras, limits: Limits
) -> Extras:
    """Return the extras with the tools, items and parts that no model reads here."""
    extras = ignoring(extras, foreign_tools_of(asked), NO_SUCH_TOOL, limits)
    extras = ignoring(extras, unheld_in(asked.tools), NOT_HELD, limits)
    extras = ignoring(extras, skipped_of(found), NO_SUCH_TOOL, limits)
    return ignoring(extras, unseen_of(found), TEXT_ONLY, limits)


def _no_input() -> BadRequest:
    return bad_field("input", "must have at least one item, or text")


def _check_one_before(asked: bodies.ResponsesPromptBody) -> None:
    if asked.conversation is not None and asked.previous_response_id is not None:
        raise BadRequest(
            "Mutually exclusive parameters: 'conversation' and 'previous_response_id'. Ensure you "
            "are only providing one of: 'previous_response_id' or 'conversation'.",
            field="conversation",
        )


def _check_offered(asked: bodies.ResponsesBody) -> None:
    _check_one_before(asked)
    if asked.background and asked.store is False:
        raise bad_field("background", "needs an answer that is kept: leave 'store' out")
    if asked.stream_options is not None and not asked.stream:
        raise bad_field("stream_options", "is only allowed when stream is true")


def _check_count(count: int, limits: Limits) -> None:
    if count > limits.messages:
        text = f"at most {limits.messages} items, with those that are gone on from"
        raise bad_field("input", text)


def _instructions_of(asked: bodies.ResponsesPromptBody) -> tuple[ChatMessage, ...]:
    if asked.instructions is None:
        return ()
    return (ChatMessage(role="system", parts=(TextPart(text=asked.instructions),)),)


def _sampling_of(asked: bodies.ResponsesBody) -> Sampling:
    return sampling_of(
        {
            "temperature": None if asked.temperature is None else temperature_of(asked.temperature),
            "top_p": None if asked.top_p is None else max(LEAST_TOP_P, asked.top_p),
            "frequency_penalty": asked.frequency_penalty,
            "presence_penalty": asked.presence_penalty,
        }
    )


def _output_of(asked: bodies.ResponsesPromptBody) -> OutputFormat:
    match None if asked.text is None else asked.text.format:
        case bodies.ResponsesJsonFormatBody():
            return OutputFormat(kind="json_object")
        case bodies.ResponsesSchemaFormatBody() as wanted:
            return OutputFormat(kind="json_schema", json_schema=wanted.schema_)
        case _:
            return OutputFormat()


def _top_logprobs_of(asked: bodies.ResponsesBody) -> int | None:
    """Return how many alternatives to show; None for no log-probabilities."""
    if asked.top_logprobs or LOGPROBS in (asked.include or ()):
        return asked.top_logprobs or 0
    return None


def _tells_of(asked: bodies.ResponsesBody) -> frozenset[str]:
    """Return what of thinking an answer tells beside its text."""
    found = set[str]() if summary_of(asked) is None else {SUMMARY}
    return frozenset(found | {ENCRYPTED} & set(asked.include or ()))


def _thinking_of(asked: bodies.ResponsesPromptBody) -> ThinkingAsked:
    said = asked.reasoning or bodies.ResponsesEffortBody()
    return thinking_asked(
        switches={},
        efforts={"reasoning.effort": said.effort},
        budgets={"reasoning.max_tokens": said.max_tokens},
    )


def _client_of(asked: bodies.ResponsesPromptBody, extras: Extras) -> str | None:
    return extras.client_id or asked.user or asked.safety_identifier
