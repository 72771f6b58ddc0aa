"""The functions that a response's body offers to the model, and the choice among them.

Pure. A custom tool is offered as a function (`custom_tools`). Tools of other kinds are not offered,
but reported as ignored (`foreign_tools_of`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bus.wire.messages.requests import ToolChoice, ToolSpec
from gateway.dialects.body import bad_field
from gateway.dialects.dialect import Limits
from gateway.dialects.openai.bodies import ForeignToolBody
from gateway.dialects.openai.custom_tools import ResponsesCustomToolBody, custom_function
from gateway.dialects.openai.responses import bodies
from gateway.dialects.shared_fields import foreign_in, tools_of

OWN = ("function", "custom")
"""Types of tools that the client runs."""


def functions_of(
    body: bodies.ResponsesPromptBody, limits: Limits
) -> tuple[tuple[ToolSpec, ...], ToolChoice]:
    """Return the functions and the tool choice. Raises BadRequest if the choice names a function
    that is not offered."""
    specs = tools_of([_tool_of(tool) for tool in body.tools or ()], limits, "name")
    tools = tuple(specs.values())
    match body.tool_choice:
        case None | "auto":
            return tools, ToolChoice(mode="auto" if tools else "none")
        case "none":
            return tools, ToolChoice(mode="none")
        case "required":
            _check_any(tools)
            return tools, ToolChoice(mode="required")
        case bodies.ResponsesNamedChoiceBody(name=name):
            _check_known(name, specs, "tool_choice.name")
            return tools, ToolChoice(mode="named", name=name)
        case bodies.ResponsesAllowedChoiceBody() as allowed:
            return _allowed_of(allowed, specs)


def foreign_tools_of(body: bodies.ResponsesPromptBody) -> tuple[str, ...]:
    """Return the paths of the tools that are neither functions nor custom tools, including those
    among the allowed tools."""
    paths = foreign_in(body.tools, ForeignToolBody)
    choice = body.tool_choice
    if not isinstance(choice, bodies.ResponsesAllowedChoiceBody):
        return paths
    return paths + tuple(
        f"tool_choice.tools[{n}]" for n, tool in enumerate(choice.tools) if tool.type not in OWN
    )


def _tool_of(tool: bodies.ResponsesTool) -> ToolSpec | None:
    """Return the function that the model gets for a function tool or a custom tool; None for a tool
    of any other type."""
    if isinstance(tool, ForeignToolBody):
        return None
    if isinstance(tool, ResponsesCustomToolBody):
        return custom_function(tool)
    return ToolSpec(
        name=tool.name,
        description=tool.description,
        parameters=tool.parameters or {},
        strict=bool(tool.strict),
    )


def _allowed_of(
    choice: bodies.ResponsesAllowedChoiceBody, specs: Mapping[str, ToolSpec]
) -> tuple[tuple[ToolSpec, ...], ToolChoice]:
    """Return the allowed functions; tools that are neither functions nor custom tools are
    skipped."""
    allowed: dict[str, ToolSpec] = {}
    for index, tool in enumerate(choice.tools):
        if tool.type in OWN:
            name = tool.name or ""
            _check_known(name, specs, f"tool_choice.tools[{index}].name")
            allowed[name] = specs[name]
    tools = tuple(allowed.values())
    if choice.mode == "required":
        _check_any(tools)
    return tools, ToolChoice(mode=choice.mode if tools else "none")


def _check_any(tools: Sequence[ToolSpec]) -> None:
    if not tools:
        raise bad_field("tool_choice", "'required' needs a client tool")


def _check_known(name: str, specs: Mapping[str, ToolSpec], field: str) -> None:
    if name not in specs:
        raise bad_field(field, f"'{name[:128]}' is not among the functions in tools")
