"""Render a conversation into a prompt, with the model's own chat template.

Pure, except the template, which belongs to the model. It gets messages in the shape that it shows
completely (`runner.text.shapes`), and its result is checked. If it does not show a part, the
request is refused, naming the part. If a template raises, the refusal quotes its words. Markup
spelled in messages is text (`runner.text.markup`). To continue a turn, `marked` and `up_to_mark`
cut the rendered text at a mark in the last message, as transformers does.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from bus.wire.errors import BadRequest
from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    ToolSpec,
)
from runner.text.checks import Unsupported
from runner.text.families import Family
from runner.text.markup import Markup, Span, marking_of, spans_in
from runner.text.prepared import SpanState
from runner.text.rendering import RendererNotReady, TemplateStopped
from runner.text.shapes import (
    PLAIN,
    LostPart,
    TemplateShape,
    chat_messages,
    lost_parts,
    message_text,
    probe_template,
    tool_objects,
    unseen_parts,
)

MARK = "CONTINUE_FINAL_MESSAGE_TAG "
"""A text that is inserted where the last message is to be continued. Some templates trim the space
at its end."""
FILL_IN = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)
"""Fill-in-the-middle tokens by model family: before the prefix, before the suffix, and before the
text to fill in."""


class StoppedTemplate(BadRequest):
    """The model's template exceeded its limits for this conversation."""


class Template(Protocol):
    """The part of `runner.text.tokenizer.ModelTokenizer` that renders conversations."""

    family: Family
    markup: Markup

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        thinking: bool,
        continue_final: bool,
        variables: Mapping[str, Any],
    ) -> str:
        """Return the prompt's text. `variables` are additional variables that the model's own
        template knows. Raises the template's errors."""
        ...


@dataclass(frozen=True, slots=True)
class Rendered:
    """The prompt's text and the state in which the output begins. `spelled` are the places where
    messages spell markup, which are not tokens. `unshown` are the paths of texts beside tool calls
    that the template does not show; `thinking` and `tools` are what the template got."""

    text: str
    opening: SpanState
    spelled: tuple[Span, ...] = ()
    unshown: tuple[str, ...] = ()
    thinking: bool = False
    tools: tuple[ToolSpec, ...] = ()


def find_shape(template: Template) -> TemplateShape:
    """Return the shape of messages that the model's template shows completely. Raises
    StoppedTemplate if it exceeds its limits for a few marked words."""

    def render(prompt: ChatPrompt, shape: TemplateShape, tools: Sequence[ToolSpec]) -> str | None:
        """Return the prompt as text, its messages arranged as `shape` says; None if the template
        raises an error for it."""
        return _rendered_again(template, prompt, shape, tools, thinking=False, variables={})

    with _blamed():
        return probe_template(render, makes_calls=template.family.calls is not None)


def render_chat(
    template: Template,
    prompt: ChatPrompt,
    *,
    tools: Sequence[ToolSpec],
    thinking: bool,
    is_held: bool = False,
    variables: Mapping[str, Any] | None = None,
    shape: TemplateShape = PLAIN,
) -> Rendered:
    """Return the prompt of a conversation. `tools` are those shown to the model; `is_held` says
    that its answer must follow a grammar. The template gets `variables`, and messages in this
    `shape`.

    Raises BadRequest, naming the field if there is one.
    """
    messages = chat_messages(prompt, shape, tools)
    continues = prompt.continue_final
    if continues:
        _check_final(prompt.messages)
        if not message_text(messages[-1]):
            # There is nothing to continue: an empty last turn is a new turn.
            messages, continues = messages[:-1], False
    final = message_text(messages[-1]) if continues else None
    own_values = variables or {}
    shown_tools = tool_objects(tools) if tools else []
    marking = marking_of(messages, [*shown_tools, own_values], template.markup)
    messages, (*objects, texts) = marking.messages, marking.tools
    with _blamed(lambda: _unshown_call(prompt, template, shape)):
        text = template.render(
            messages, objects, thinking=thinking, continue_final=continues, variables=texts
        )
    spelled: tuple[Span, ...] = ()
    if marking.mark:
        text, spelled = spans_in(text, marking.mark, template.markup)
    unshown: tuple[str, ...] = ()
    if unseen := unseen_parts(prompt, text, shape):
        unshown = _unshown(
            prompt,
            unseen,
            lambda other: _rendered_again(
                template, other, shape, tools, thinking=thinking, variables=own_values
            ),
        )
    family = template.family
    if final is None:
        text += family.prefill(thinking=thinking, is_held=is_held, has_tools=bool(tools))
    plain = _without_markup(text, spelled) if spelled else text
    return Rendered(text, family.opening(plain, final), spelled, unshown)


def fill_in_tokens(token_id: Callable[[str], int | None]) -> tuple[int, int, int] | None:
    """Return the tokens before a prefix, before a suffix and before the text to fill in, if the
    model has all three tokens of one family; else None."""
    for family in FILL_IN:
        before, after, middle = (token_id(token) for token in family)
        if before is not None and after is not None and middle is not None:
            return before, after, middle
    return None


@contextmanager
def _blamed(unshown: Callable[[], LostPart | None] = lambda: None) -> Generator[None]:
    """Within the context, turn each error of a template into a refusal. The request is at fault,
    unless the renderer was not ready. `unshown` is the part that the template cannot show, which
    explains more than the template's own error."""
    try:
        yield
    except RendererNotReady:
        raise
    except TemplateStopped as problem:
        text = f"the model's chat template was stopped: {problem}"
        raise StoppedTemplate(text, field="messages") from problem
    except Exception as problem:
        if (lost := unshown()) is not None:
            raise _not_shown(lost) from problem
        text = f"the model's chat template rejects these messages: {_words(problem)}"
        raise BadRequest(text, field="messages") from problem


def marked(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with `MARK` where the last message is to be continued."""
    *before, last = (dict(message) for message in messages)
    content = last["content"]
    if isinstance(content, str):
        return [*before, {**last, "content": content + MARK}]
    text = {"type": "text", "text": message_text(last) + MARK}
    return [*before, {**last, "content": [text]}]


def up_to_mark(text: str, final: Mapping[str, Any]) -> str:
    """Return the text that a template made of `marked` messages, up to the mark; `final` is the
    last message. Raises ValueError if the template does not show it."""
    at = text.rfind(MARK.strip())
    if at < 0 or message_text(final).strip() not in text:
        raise ValueError("the template leaves out the message that is to be continued")
    before = text[:at]
    return before if text.startswith(MARK, at) else before.rstrip()


def _rendered_again(
    template: Template,
    prompt: ChatPrompt,
    shape: TemplateShape,
    tools: Sequence[ToolSpec],
    *,
    thinking: bool,
    variables: Mapping[str, Any],
) -> str | None:
    """Render a test prompt with the model's template, followed by the opening of the model's turn.
    Return None if the template refuses the prompt. Raises TemplateStopped and RendererNotReady."""
    try:
        return template.render(
            chat_messages(prompt, shape, tools),
            tool_objects(tools),
            thinking=thinking,
            continue_final=False,
            variables=variables,
        )
    except (TemplateStopped, RendererNotReady):
        raise
    except Exception:  # a template may raise anything
        return None


def _unshown(
    prompt: ChatPrompt, unseen: Sequence[LostPart], render: Callable[[ChatPrompt], str | None]
) -> tuple[str, ...]:
    """Return the paths of texts beside calls that a template does not show, which is the model
    makers' choice. Raises BadRequest for any other part that it does not show. Only `unseen` parts
    may be lost."""
    with _blamed():
        lost = lost_parts(prompt, unseen, render)
    for part in lost:
        if not part.is_beside:
            raise _not_shown(part)
    return tuple(part.field for part in lost)


def _not_shown(lost: LostPart) -> Unsupported:
    advice = "so the model would not see it; remove it or use another model"
    text = f"this model's chat template does not show {lost.words}, {advice}"
    return Unsupported(text, field=lost.field)


def _unshown_call(prompt: ChatPrompt, template: Template, shape: TemplateShape) -> LostPart | None:
    """Return the first call or result in a conversation if the model has no tool call format or its
    template shows none; else None."""
    if template.family.calls is not None and shape.calls != "unseen":
        return None
    for place, message in enumerate(prompt.messages):
        if message.tool_calls or message.role == "tool":
            return LostPart(place, 0 if message.tool_calls else None, message)
    return None


def _without_markup(text: str, spelled: Sequence[Span]) -> str:
    """Return the prompt with U+FFFD in place of each markup token that a message spells."""
    for start, end in reversed(spelled):
        text = f"{text[:start]}\ufffd{text[end:]}"
    return text


def _check_final(messages: Sequence[ChatMessage]) -> None:
    last = messages[-1] if messages else None
    if last is None or last.role != "assistant":
        raise BadRequest("only an assistant message can be continued", field="messages")
    if last.tool_calls:
        raise BadRequest(
            "an assistant message with tool calls is complete and cannot be continued",
            field=f"messages[{len(messages) - 1}].tool_calls",
        )


def _words(problem: Exception) -> str:
    return str(problem)[:500] or type(problem).__name__
