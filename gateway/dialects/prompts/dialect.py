"""Questions about prompts: a body becomes one request with a question, its answer becomes JSON.

Pure. Answers have the fields of both servers whose paths these are. A text gets the tokens that
stand around a prompt, unless it came as llama.cpp's `content`, as those servers have it.
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
from gateway.dialects.openai.chat import function_of, messages_of, switches_of, variables_of
from gateway.dialects.openai.fields import report_tools
from gateway.dialects.prompts import bodies
from gateway.dialects.shared_fields import (
    ThinkingAsked,
    named_model,
    thinking_asked,
    tools_of,
)


class Tokenize:
    """`POST /tokenize`."""

    name = "tokenize"

    def parse(self, body: bytes, context: ParseContext) -> Parsed:
        """Return one request that asks for the tokens of its prompt."""
        asked, extras = read_body(bodies.TokenizeBody, body, context.limits)
        prompt, special = _tokenized_of(asked, context.limits)
        question = PromptQuestion(wants="tokens", special=special)
        return _conversing(asked, prompt, question, extras, context)

    def render_whole(
        self, parsed: Parsed, collected: Sequence[Collected], *, load_s: float = 0.0
    ) -> bytes:
        """Return the tokens, how many they are, and how many a loaded copy takes."""
        answer = _answer_of(collected)
        tokens = answer.token_ids
        said = {"tokens": tokens, "count": len(tokens), "max_model_len": answer.context_tokens}
        return json_bytes(said)


class Detokenize:
    """`POST /detokenize`."""

    name = "detokenize"

    def parse(self, body: bytes, context: ParseContext) -> Parsed:
        """Return one request that asks for the text of its tokens."""
        asked, extras = read_body(bodies.DetokenizeBody, body, context.limits)
        prompt = TokensPrompt(token_ids=tuple(asked.tokens))
        return _parsed(asked, prompt, PromptQuestion(wants="text"), extras, context)

    def render_whole(
        self, parsed: Parsed, collected: Sequence[Collected], *, load_s: float = 0.0
    ) -> bytes:
        """Return the text, under the names that both servers have for it."""
        text = _answer_of(collected).text
        return json_bytes({"prompt": text, "content": text})


class ApplyTemplate:
    """`POST /apply-template`."""

    name = "apply_template"

    def parse(self, body: bytes, context: ParseContext) -> Parsed:
        """Return one request that asks for the text of its conversation."""
        asked, extras = read_body(bodies.ApplyTemplateBody, body, context.limits)
        prompt = _conversation_of(asked, context.limits)
        question = PromptQuestion(wants="text")
        return _conversing(asked, prompt, question, extras, context)

    def render_whole(
        self, parsed: Parsed, collected: Sequence[Collected], *, load_s: float = 0.0
    ) -> bytes:
        """Return the text."""
        return json_bytes({"prompt": _answer_of(collected).text})


def _tokenized_of(asked: bodies.TokenizeBody, limits: Limits) -> tuple[Prompt, bool]:
    """Return what to tokenise, and whether it gets what stands around a prompt."""
    given = [name for name in ("prompt", "content", "messages") if getattr(asked, name) is not None]
    if len(given) != 1:
        text = "send one of 'prompt', 'content' and 'messages'"
        raise BadRequest(text, field=given[1] if given else "prompt")
    if asked.parse_special is False:
        raise bad_field("parse_special", "names of special tokens are always read as such")
    special = _special_of(asked)
    if asked.messages is not None:
        if special:
            text = "a conversation gets only the special tokens of its template"
            raise bad_field("add_special_tokens", text)
        return _conversation_of(asked, limits), False
    _check_raw(asked)
    if asked.prompt is not None:
        return TextPrompt(text=asked.prompt), special is not False
    return TextPrompt(text=asked.content or ""), bool(special)


def _special_of(asked: bodies.TokenizeBody) -> bool | None:
    one, other = asked.add_special_tokens, asked.add_special
    if one is not None and other is not None and one != other:
        raise bad_field("add_special", "contradicts add_special_tokens")
    return other if one is None else one


def _check_raw(asked: bodies.TokenizeBody) -> None:
    for name in ("tools", "chat_template_kwargs", "continue_final_message"):
        if getattr(asked, name):
            raise bad_field(name, "needs messages")


def _conversation_of(asked: bodies.ConversationBody, limits: Limits) -> ChatPrompt:
    if asked.messages is None:
        raise BadRequest("messages is required", field="messages")
    continues = bool(asked.continue_final_message)
    if continues and asked.messages[-1].role != "assistant":
        raise bad_field("continue_final_message", "the last message must be from the assistant")
    if asked.add_generation_prompt is not None and asked.add_generation_prompt is continues:
        text = (
            "must be true unless continue_final_message is true: a prompt ends where the "
            "answer begins"
        )
        raise bad_field("add_generation_prompt", text)
    tools = tools_of([function_of(tool) for tool in asked.tools or ()], limits)
    return ChatPrompt(
        messages=messages_of(asked.messages, limits),
        tools=tuple(tools.values()),
        continue_final=continues,
    )


def _conversing(
    asked: bodies.ConversationBody,
    prompt: Prompt,
    question: PromptQuestion,
    extras: Extras,
    context: ParseContext,
) -> Parsed:
    """Return the request with what its template is told."""
    arguments = asked.chat_template_kwargs
    thinking = _thinking_of(arguments or TemplateArgumentsBody())
    extras = thinking.report_in(extras, context.limits)
    extras = report_tools(asked.tools, extras, context.limits)
    parsed = _parsed(asked, prompt, question, extras, context)
    request = thinking.set_in(parsed.requests[0])
    told = request.model_copy(update={"variables": variables_of(arguments)})
    return replace(parsed, requests=(told,))


def _thinking_of(arguments: TemplateArgumentsBody) -> ThinkingAsked:
    return thinking_asked(
        switches=switches_of(arguments),
        efforts={"chat_template_kwargs.reasoning_effort": arguments.reasoning_effort},
        budgets={"chat_template_kwargs.thinking_budget": arguments.thinking_budget},
    )


def _parsed(
    asked: bodies.AskedModelBody,
    prompt: Prompt,
    question: PromptQuestion,
    extras: Extras,
    context: ParseContext,
) -> Parsed:
    model = _model_of(asked, context)
    request = GenerationRequest(
        request_id=next(context.ids),
        model=named_model(model),
        prompt=prompt,
        priority=extras.priority,
        client_id=extras.client_id,
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


def _model_of(asked: bodies.AskedModelBody, context: ParseContext) -> str:
    """Return the model asked for; the one there is, where none is named."""
    if asked.model is not None:
        return asked.model
    here = sorted(context.context_tokens)
    if len(here) == 1:
        return here[0]
    raise BadRequest(f"model is required: the cluster has {len(here)} text models", field="model")


def _answer_of(collected: Sequence[Collected]) -> PromptAnswer:
    answer = collected[0].prompt
    if answer is None:
        raise ValueError("a prompt request ended without an answer")
    return answer
