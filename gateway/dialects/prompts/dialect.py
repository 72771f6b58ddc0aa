"""Answers questions about prompts: a body becomes one request with a question to the runner, and
the runner's reply becomes JSON.

Pure. Both vLLM's and llama.cpp's servers have these paths, so answers have the fields of both. As
in those servers, a text gets the special tokens that begin and end a prompt, unless the text came
in llama.cpp's field `content`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bus.wire.errors import BadRequest
from bus.wire.messages.requests import (
    ChatPrompt,
    GenerationRequest,
    Prompt,
    PromptQuestion,
    TextPrompt,
    TokensPrompt,
)
from bus.wire.messages.tokens import PromptAnswer
from gateway.dialects.body import bad_field, read_body
from gateway.dialects.collect import Collected
from gateway.dialects.dialect import Extras, Limits, ParseContext, Parsed
from gateway.dialects.encode import json_bytes
from gateway.dialects.openai.bodies import TemplateArgumentsBody
from gateway.dialects.openai.chat import function_of, messages_of, switches_of
from gateway.dialects.openai.fields import report_tools, variables_of
from gateway.dialects.prompts import bodies
from gateway.dialects.shared_fields import (
    ThinkingAsked,
    named_model,
    thinking_asked,
    tools_of,
)


class Tokenize:
    """The endpoint `POST /tokenize`."""

    name = "tokenize"

    def parse(self, body: bytes, context: ParseContext) -> Parsed:
        """Return one request for the tokens of the body's prompt."""
        parsed_body, extras = read_body(bodies.TokenizeBody, body, context.limits)
        prompt, special = _tokenized_of(parsed_body, context.limits)
        question = PromptQuestion(wants="tokens", special=special)
        return _conversing(parsed_body, prompt, question, extras, context)

    def render_whole(
        self, parsed: Parsed, collected: Sequence[Collected], *, load_s: float = 0.0
    ) -> bytes:
        """Return the tokens, their number, and the maximum context of an instance in tokens, as
        JSON."""
        answer = _answer_of(collected)
        tokens = answer.token_ids
        fields = {"tokens": tokens, "count": len(tokens), "max_model_len": answer.context_tokens}
        return json_bytes(fields)


class Detokenize:
    """The endpoint `POST /detokenize`."""

    name = "detokenize"

    def parse(self, body: bytes, context: ParseContext) -> Parsed:
        """Return one request for the text of the body's tokens."""
        parsed_body, extras = read_body(bodies.DetokenizeBody, body, context.limits)
        prompt = TokensPrompt(token_ids=tuple(parsed_body.tokens))
        return _parsed(parsed_body, prompt, PromptQuestion(wants="text"), extras, context)

    def render_whole(
        self, parsed: Parsed, collected: Sequence[Collected], *, load_s: float = 0.0
    ) -> bytes:
        """Return the text as JSON, under the field names of both vLLM's and llama.cpp's servers."""
        text = _answer_of(collected).text
        return json_bytes({"prompt": text, "content": text})


class ApplyTemplate:
    """The endpoint `POST /apply-template`."""

    name = "apply_template"

    def parse(self, body: bytes, context: ParseContext) -> Parsed:
        """Return one request for the prompt that the model's template makes of the body's
        conversation, as text."""
        parsed_body, extras = read_body(bodies.ApplyTemplateBody, body, context.limits)
        prompt = _conversation_of(parsed_body, context.limits)
        question = PromptQuestion(wants="text")
        return _conversing(parsed_body, prompt, question, extras, context)

    def render_whole(
        self, parsed: Parsed, collected: Sequence[Collected], *, load_s: float = 0.0
    ) -> bytes:
        return json_bytes({"prompt": _answer_of(collected).text})


def _tokenized_of(body: bodies.TokenizeBody, limits: Limits) -> tuple[Prompt, bool]:
    """Return the prompt to tokenise, and whether it gets special tokens."""
    present = [
        name for name in ("prompt", "content", "messages") if getattr(body, name) is not None
    ]
    if len(present) != 1:
        text = "send one of 'prompt', 'content' and 'messages'"
        raise BadRequest(text, field=present[1] if present else "prompt")
    if body.parse_special is False:
        raise bad_field("parse_special", "names of special tokens are always read as such")
    special = _special_of(body)
    if body.messages is not None:
        if special:
            text = "a conversation gets only the special tokens of its template"
            raise bad_field("add_special_tokens", text)
        return _conversation_of(body, limits), False
    _check_raw(body)
    if body.prompt is not None:
        return TextPrompt(text=body.prompt), special is not False
    return TextPrompt(text=body.content or ""), bool(special)


def _special_of(body: bodies.TokenizeBody) -> bool | None:
    long, short = body.add_special_tokens, body.add_special
    if long is not None and short is not None and long != short:
        raise bad_field("add_special", "contradicts add_special_tokens")
    return short if long is None else long


def _check_raw(body: bodies.TokenizeBody) -> None:
    for name in ("tools", "chat_template_kwargs", "continue_final_message"):
        if getattr(body, name):
            raise bad_field(name, "needs messages")


def _conversation_of(body: bodies.ConversationBody, limits: Limits) -> ChatPrompt:
    if body.messages is None:
        raise BadRequest("messages is required", field="messages")
    continues = bool(body.continue_final_message)
    if continues and body.messages[-1].role != "assistant":
        raise bad_field("continue_final_message", "the last message must be from the assistant")
    if body.add_generation_prompt is not None and body.add_generation_prompt is continues:
        text = (
            "must be true unless continue_final_message is true: a prompt ends where the "
            "answer begins"
        )
        raise bad_field("add_generation_prompt", text)
    tools = tools_of([function_of(tool) for tool in body.tools or ()], limits)
    return ChatPrompt(
        messages=messages_of(body.messages, limits),
        tools=tuple(tools.values()),
        continue_final=continues,
    )


def _conversing(
    body: bodies.ConversationBody,
    prompt: Prompt,
    question: PromptQuestion,
    extras: Extras,
    context: ParseContext,
) -> Parsed:
    """Return the request for a conversation, with the arguments of the model's chat template."""
    arguments = body.chat_template_kwargs
    thinking = _thinking_of(arguments or TemplateArgumentsBody())
    extras = thinking.report_in(extras, context.limits)
    extras = report_tools(body.tools, extras, context.limits)
    parsed = _parsed(body, prompt, question, extras, context)
    request = thinking.set_in(parsed.requests[0])
    changed = request.model_copy(update={"variables": variables_of(arguments)})
    return replace(parsed, requests=(changed,))


def _thinking_of(arguments: TemplateArgumentsBody) -> ThinkingAsked:
    return thinking_asked(
        switches=switches_of(arguments),
        efforts={"chat_template_kwargs.reasoning_effort": arguments.reasoning_effort},
        budgets={"chat_template_kwargs.thinking_budget": arguments.thinking_budget},
    )


def _parsed(
    body: bodies.AskedModelBody,
    prompt: Prompt,
    question: PromptQuestion,
    extras: Extras,
    context: ParseContext,
) -> Parsed:
    model = _model_of(body, context)
    request = GenerationRequest(
        request_id=next(context.ids),
        model=named_model(model),
        prompt=prompt,
        priority=extras.priority,
        client_id=extras.client_id,
        speculate=extras.speculate,
        question=question,
    )
    return Parsed(
        requests=(request,),
        model=model,
        stream=False,
        answer_id=f"prompt-{request.request_id}",
        created_at_s=context.now_s,
        fingerprint=context.fingerprint,
        extras=extras,
    )


def _model_of(body: bodies.AskedModelBody, context: ParseContext) -> str:
    """Return the requested model. Without a name, return the only model of the cluster."""
    if body.model is not None:
        return body.model
    models = sorted(context.text_models())
    if len(models) == 1:
        return models[0]
    raise BadRequest(f"model is required: the cluster has {len(models)} text models", field="model")


def _answer_of(collected: Sequence[Collected]) -> PromptAnswer:
    answer = collected[0].prompt
    if answer is None:
        raise ValueError("a prompt request ended without an answer")
    return answer
