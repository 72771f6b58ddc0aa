"""The fields of a request's body that its response repeats.

Pure. A missing field is repeated with its default. Some parts of the body that had no effect are
left out or corrected: for example, tools of unsupported kinds are omitted.
"""

from __future__ import annotations

from typing import Any

from gateway.dialects.openai.custom_tools import ResponsesCustomToolBody
from gateway.dialects.openai.fields import tier_of
from gateway.dialects.openai.responses import bodies
from gateway.dialects.openai.responses.functions import OWN


def echoed_fields(body: bodies.ResponsesBody) -> dict[str, Any]:
    """Return the members of a response that its body determines."""
    return {
        **echoed_prompt_fields(body),
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "presence_penalty": body.presence_penalty or 0.0,
        "frequency_penalty": body.frequency_penalty or 0.0,
        "top_logprobs": body.top_logprobs or 0,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "truncation": body.truncation or "disabled",
        "background": bool(body.background),
        "store": body.store is not False,
        "service_tier": tier_of(body.service_tier),
        "metadata": body.metadata or {},
        "user": body.user,
        "safety_identifier": body.safety_identifier,
        "prompt_cache_key": body.prompt_cache_key,
    }


def echoed_prompt_fields(body: bodies.ResponsesPromptBody) -> dict[str, Any]:
    """Return the fields of a response that repeat what the body says about the prompt."""
    conversation = conversation_of(body)
    return {
        "previous_response_id": body.previous_response_id,
        "conversation": None if conversation is None else {"id": conversation},
        "instructions": body.instructions,
        "tools": [
            _tool(tool) for tool in body.tools or () if not isinstance(tool, bodies.ForeignToolBody)
        ],
        "tool_choice": _choice(body.tool_choice),
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "text": {"format": _format(body.text), "verbosity": _verbosity(body)},
        "reasoning": {
            "effort": None if body.reasoning is None else body.reasoning.effort,
            "summary": summary_of(body),
        },
    }


def conversation_of(body: bodies.ResponsesPromptBody) -> str | None:
    """Return the id of the conversation that a body names; None if it names no conversation."""
    conversation = body.conversation
    return (
        conversation.id
        if isinstance(conversation, bodies.ResponsesConversationBody)
        else conversation
    )


def _verbosity(body: bodies.ResponsesPromptBody) -> str:
    return "medium" if body.text is None else body.text.verbosity or "medium"


def summary_of(body: bodies.ResponsesPromptBody) -> str | None:
    """Return the requested summary of thinking, under either of its names."""
    reasoning = body.reasoning
    summary = None if reasoning is None else reasoning.summary or reasoning.generate_summary
    return None if summary == "none" else summary


def _tool(tool: bodies.ResponsesTool) -> dict[str, Any]:
    if isinstance(tool, ResponsesCustomToolBody):
        text_format = {"type": "text"} if tool.format is None else tool.format.model_dump()
        fields = {"type": "custom", "name": tool.name, "description": tool.description}
        return {**fields, "format": text_format}
    assert isinstance(tool, bodies.ResponsesFunctionBody)
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters or {},
        "strict": bool(tool.strict),
    }


def _choice(choice: bodies.ResponsesToolChoice | None) -> str | dict[str, Any]:
    match choice:
        case None:
            return "auto"
        case str():
            return choice
        case bodies.ResponsesNamedChoiceBody(type=kind, name=name):
            return {"type": kind, "name": name}
        case bodies.ResponsesAllowedChoiceBody(mode=mode, tools=tools):
            functions = [
                {"type": tool.type, "name": tool.name} for tool in tools if tool.type in OWN
            ]
            return {"type": "allowed_tools", "mode": mode, "tools": functions}


def _format(text: bodies.ResponsesTextBody | None) -> dict[str, Any]:
    match None if text is None else text.format:
        case bodies.ResponsesJsonFormatBody():
            return {"type": "json_object"}
        case bodies.ResponsesSchemaFormatBody() as wanted:
            return {
                "type": "json_schema",
                "name": wanted.name,
                "description": wanted.description,
                "schema": wanted.schema_,
                "strict": True,
            }
        case _:
            return {"type": "text"}
