"""What a response says back of the body that asked for it.

Pure. Defaults are said as what they are; what has no effect here is said as what was done: tools
of other kinds than functions are not offered.
"""

from __future__ import annotations

from typing import Any

from gateway.dialects.openai.custom_tools import ResponsesCustomToolBody
from gateway.dialects.openai.fields import tier_of
from gateway.dialects.openai.responses import bodies
from gateway.dialects.openai.responses.functions import OWN


def said_back(asked: bodies.ResponsesBody) -> dict[str, Any]:
    """Return the members of a response that its body decides."""
    return {
        **said_of_prompt(asked),
        "temperature": 1.0 if asked.temperature is None else asked.temperature,
        "top_p": 1.0 if asked.top_p is None else asked.top_p,
        "presence_penalty": asked.presence_penalty or 0.0,
        "frequency_penalty": asked.frequency_penalty or 0.0,
        "top_logprobs": asked.top_logprobs or 0,
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": asked.max_tool_calls,
        "truncation": asked.truncation or "disabled",
        "background": bool(asked.background),
        "store": asked.store is not False,
        "service_tier": tier_of(asked.service_tier),
        "metadata": asked.metadata or {},
        "user": asked.user,
        "safety_identifier": asked.safety_identifier,
        "prompt_cache_key": asked.prompt_cache_key,
    }


def said_of_prompt(asked: bodies.ResponsesPromptBody) -> dict[str, Any]:
    """Return those of them that are about what the model reads."""
    named = conversation_of(asked)
    return {
        "previous_response_id": asked.previous_response_id,
        "conversation": None if named is None else {"id": named},
        "instructions": asked.instructions,
        "tools": [
            _tool(tool)
            for tool in asked.tools or ()
            if not isinstance(tool, bodies.ForeignToolBody)
        ],
        "tool_choice": _choice(asked.tool_choice),
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "text": {"format": _format(asked.text), "verbosity": _verbosity(asked)},
        "reasoning": {
            "effort": None if asked.reasoning is None else asked.reasoning.effort,
            "summary": summary_of(asked),
        },
    }


def conversation_of(asked: bodies.ResponsesPromptBody) -> str | None:
    """Return the id of the conversation that a body names; None for none."""
    said = asked.conversation
    return said.id if isinstance(said, bodies.ResponsesConversationBody) else said


def _verbosity(asked: bodies.ResponsesPromptBody) -> str:
    return "medium" if asked.text is None else asked.text.verbosity or "medium"


def summary_of(asked: bodies.ResponsesPromptBody) -> str | None:
    """Return the summary of thinking that is asked for, by either of its names."""
    said = asked.reasoning
    summary = None if said is None else said.summary or said.generate_summary
    return None if summary == "none" else summary


def _tool(tool: bodies.ResponsesTool) -> dict[str, Any]:
    if isinstance(tool, ResponsesCustomToolBody):
        wanted = {"type": "text"} if tool.format is None else tool.format.model_dump()
        told = {"type": "custom", "name": tool.name, "description": tool.description}
        return {**told, "format": wanted}
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
