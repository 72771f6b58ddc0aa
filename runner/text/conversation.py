"""Turn a conversation into a prompt, with its tools and its thinking.

Pure, given the model's tokenizer. When `Conversations` is created, it finds out which message shape
the model's template needs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from bus.wire.errors import BadRequest
from bus.wire.messages.requests import ChatPrompt, GenerationRequest, ToolSpec
from runner.text.checks import Unsupported
from runner.text.families import template_variables
from runner.text.shapes import PLAIN
from runner.text.template import (
    Rendered,
    StoppedTemplate,
    Template,
    find_shape,
    render_chat,
)


class ChatTemplate(Template, Protocol):
    """The part of `runner.text.tokenizer.ModelTokenizer` that renders conversations."""

    has_template: bool
    efforts: tuple[str, ...]


class Conversations:
    """Renders the conversations of one model into prompts. `shape` is the form of messages that the
    model's template needs; `facts` describe that form in words."""

    def __init__(self, template: ChatTemplate, *, thinking_by_default: bool) -> None:
        """Find out the template's form by rendering marked messages. `thinking_by_default`, from
        the model card, applies to requests that do not say whether the model thinks."""
        self._template = template
        self._family = template.family
        self._thinking_by_default = thinking_by_default
        self.shape = PLAIN
        self.facts: dict[str, str] = {}
        if not template.has_template:
            return
        try:
            self.shape = find_shape(template)
            self.facts["template"] = "; ".join(self.shape.words) or "accepts all messages unchanged"
        except StoppedTemplate as problem:
            self.facts["template"] = f"unknown: {problem.message}"

    def rendered(self, request: GenerationRequest, prompt: ChatPrompt) -> Rendered:
        """Return the prompt of a conversation. Raises BadRequest, which names the field."""
        if not self._template.has_template:
            raise Unsupported(
                "this model has no chat template; send a raw prompt (completions)",
                field="messages",
            )
        if not prompt.messages:
            raise BadRequest("messages must not be empty", field="messages")
        tools = () if request.tool_choice.mode == "none" else self._tools(request, prompt)
        thinking = self._thinking(request)
        # where thinking has no marks, the template may still know levels of it
        unmarked = self._family.think is None and request.thinking is not False
        levels, thinks = self._template.efforts, thinking or unmarked
        about = (request.thinking, request.effort, request.variables, request.thinking_budget)
        varies = bool(levels) or any(value is not None for value in about)
        rendered = render_chat(
            self._template,
            prompt,
            tools=tools,
            thinking=thinking,
            is_held=request.output.kind != "text",
            variables=template_variables(request, levels, thinking=thinks) if varies else None,
            shape=self.shape,
        )
        return replace(rendered, thinking=thinking, tools=tools)

    def _thinking(self, request: GenerationRequest) -> bool:
        if self._family.think is not None:
            if request.thinking is not None:
                return request.thinking
            if request.effort is not None:
                return request.effort != "minimal" or bool(self._template.efforts)
            return self._thinking_by_default or self._family.thinks_unasked
        if request.thinking:
            text = f"'{request.model}' does not support thinking before it answers"
            raise Unsupported(text, field="thinking")
        return False

    def _tools(self, request: GenerationRequest, prompt: ChatPrompt) -> tuple[ToolSpec, ...]:
        """Return the tools that are shown to the model. Raises BadRequest if the choice of tools
        cannot be met, and Unsupported if the model cannot use tools."""
        choice, tools = request.tool_choice, prompt.tools
        if choice.mode == "named" and choice.name not in {tool.name for tool in tools}:
            raise BadRequest(f"there is no tool named {choice.name!r}", field="tool_choice")
        if choice.mode == "required" and not tools:
            raise BadRequest("a tool call is required, but there are no tools", field="tool_choice")
        if tools and self._family.calls is None:
            text = f"'{request.model}' does not support tools: it has no tool call format"
            raise Unsupported(text, field="tools")
        if tools and self.shape.tools == "unseen":
            text = f"'{request.model}' does not support tools: its chat template does not show them"
            raise Unsupported(text, field="tools")
        return tools
