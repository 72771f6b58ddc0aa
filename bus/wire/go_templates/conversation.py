"""A conversation as Ollama's templates know it, and the prompt that they make of it.

Pure. A template that looks at `.Messages` is run once, with all of them. An older one knows
`.System`, `.Prompt` and `.Response`: it is run once a turn, and what stands behind `.Response` is
left out of the last, for there the model goes on. One that looks at neither has `.Response` put
behind it. A prompt with a suffix is a template's that knows `.Suffix`.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from bus.wire.go_templates.evaluate import TemplateRun
from bus.wire.go_templates.functions import functions_on
from bus.wire.go_templates.tree import (
    ActionNode,
    Body,
    BranchNode,
    ChainNode,
    CommandNode,
    FieldNode,
    GoTemplate,
    Node,
    PipeNode,
    VariableNode,
)
from bus.wire.go_templates.values import GoStruct, Ordered, SpokenList, SpokenMap

Told = Mapping[str, Any]
_RESPONSE = "Response"
_RESPONSE_NODE = ActionNode(PipeNode((CommandNode((FieldNode((_RESPONSE,)),)),), 1))


def prompt_of(template: GoTemplate, told: Told, today: datetime.date) -> str:
    """Return the prompt of what is `told`: `messages` and `tools`, as chat templates know them, or
    `prompt` and `suffix`; and of thinking `think`, `think_level` and `is_think_set`. Raises
    GoTemplateError."""
    looks_at = template.names()
    body = template.body
    if not looks_at & {"messages", "response"}:
        body = (*body, _RESPONSE_NODE)
    run = TemplateRun(functions_on(today), template.defined)
    thinking = {
        "Think": bool(told.get("think")),
        "ThinkLevel": str(told.get("think_level") or ""),
        "IsThinkSet": bool(told.get("is_think_set")),
    }
    if told.get("suffix"):
        filled = {"Prompt": told.get("prompt", ""), "Suffix": told["suffix"], _RESPONSE: ""}
        run.run(body, {**filled, **thinking})
        return run.text
    turns = _collated(told.get("messages", ()))
    if "messages" in looks_at:
        system = [turn.content for turn in turns if turn.role == "system"]
        all_of_it = {
            "System": "\n\n".join(system),
            "Messages": [turn.struct() for turn in turns],
            "Tools": SpokenList(_tool(one) for one in told.get("tools", ())),
            _RESPONSE: "",
        }
        run.run(body, {**all_of_it, **thinking})
    else:
        _run_by_turns(run, body, turns, thinking)
    return run.text


@dataclass(slots=True)
class _Turn:
    """Messages of one role in a row. A tool's stay apart: each answers a call of its own."""

    role: str
    content: str
    thinking: str = ""
    calls: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    tool_name: str = ""
    tool_call_id: str = ""

    def add(self, other: _Turn) -> None:
        """Take in the next message of the same role."""
        self.content += "\n\n" + other.content
        self.thinking += other.thinking
        self.calls += other.calls

    def struct(self) -> GoStruct:
        """Return it as a template sees it."""
        calls = [_call(one, place) for place, one in enumerate(self.calls)]
        form = {
            "role": self.role, "content": self.content, "thinking": self.thinking,
            "tool_calls": calls, "tool_name": self.tool_name, "tool_call_id": self.tool_call_id,
        }  # fmt: skip
        fields = {
            "Role": self.role, "Content": self.content, "Thinking": self.thinking,
            "Images": [], "ToolCalls": calls, "ToolName": self.tool_name,
            "ToolCallID": self.tool_call_id,
        }  # fmt: skip
        said = {name: one for name, one in form.items() if one or name in ("role", "content")}
        return GoStruct(fields, Ordered(said))


def _collated(messages: Sequence[Mapping[str, Any]]) -> list[_Turn]:
    """Return the messages as turns: those of one role in a row are one."""
    turns: list[_Turn] = []
    for message in messages:
        is_tool = message["role"] == "tool"
        turn = _Turn(
            role=message["role"],
            content=message.get("content") or "",
            thinking=message.get("reasoning_content") or "",
            calls=list(message.get("tool_calls") or ()),
            tool_name=(message.get("name") or "") if is_tool else "",
            tool_call_id=message.get("tool_call_id") or "",
        )
        if turns and turns[-1].role == turn.role and not is_tool:
            turns[-1].add(turn)
        else:
            turns.append(turn)
    return turns


def _run_by_turns(
    run: TemplateRun, body: Body, turns: Sequence[_Turn], thinking: Mapping[str, Any]
) -> None:
    """Run an older template once for each exchange, and up to its response for the last."""
    system = prompt = response = ""

    def data() -> dict[str, Any]:
        """Return what the template is told now."""
        return {"System": system, "Prompt": prompt, _RESPONSE: response, **thinking}

    for turn in turns:
        ends = {"system": prompt or response, "user": response}.get(turn.role)
        if ends:
            run.run(body, data())
            system = prompt = response = ""
        match turn.role:
            case "system":
                system = turn.content
            case "user":
                prompt = turn.content
            case "assistant":
                response = turn.content
            case _:
                pass
    run.run(_up_to_response(body)[0], data())


def _up_to_response(body: Body) -> tuple[Body, bool]:
    """Return a template up to where it shows the response, and whether it does."""
    kept: list[Node] = []
    for node in body:
        ends = isinstance(node, ActionNode) and _shows_response(node.pipe)
        if isinstance(node, BranchNode):
            inner, in_body = _up_to_response(node.body)
            otherwise, in_otherwise = _up_to_response(node.otherwise)
            node, ends = replace(node, body=inner, otherwise=otherwise), in_body or in_otherwise
        kept.append(node)
        if ends:
            return tuple(kept), True
    return tuple(kept), False


def _shows_response(pipe: PipeNode) -> bool:
    if pipe.variables:
        return False
    operands = (operand for command in pipe.commands for operand in command.operands)
    return any(
        (isinstance(one, FieldNode | VariableNode) and _RESPONSE in one.names)
        or (isinstance(one, PipeNode) and _shows_response(one))
        or (isinstance(one, ChainNode) and _RESPONSE in one.names)
        for one in operands
    )


def _call(call: Mapping[str, Any], place: int) -> GoStruct:
    said = call["function"]
    given = said["arguments"]
    is_object = isinstance(given, dict)
    arguments = SpokenMap(cast(dict[str, Any], given)) if is_object else given
    function = GoStruct(
        {"Index": place, "Name": said["name"], "Arguments": arguments},
        Ordered(index=place, name=said["name"], arguments=arguments),
    )
    return GoStruct(
        {"ID": call.get("id", ""), "Function": function},
        Ordered(id=call.get("id", ""), function=function),
    )


def _tool(tool: Mapping[str, Any]) -> GoStruct:
    said = tool["function"]
    parameters = _schema(said.get("parameters") or {}, is_whole=True)
    described = {"description": said["description"]} if said.get("description") else {}
    function = GoStruct(
        {
            "Name": said["name"],
            "Description": said.get("description") or "",
            "Parameters": parameters,
        },
        Ordered(name=said["name"], **described, parameters=parameters),
        speaks=True,
    )
    return GoStruct(
        {"Type": "function", "Function": function, "Items": None},
        Ordered(type="function", function=function),
        speaks=True,
    )


_KNOWN = ("anyOf", "type", "$defs", "items", "required", "description", "enum", "properties")


def _schema(schema: Any, *, is_whole: bool = False) -> GoStruct:
    """Return a tool's parameters, or one of them: what Ollama knows of a schema as fields, and as
    JSON all of it, what is known first. `is_whole`: properties are there though there are none."""
    said = cast(dict[str, Any], schema) if isinstance(schema, dict) else {}
    found = said.get("properties")
    properties = _schemas(cast(dict[str, Any], found) if isinstance(found, dict) else {})
    several = said.get("anyOf")
    any_of = [_schema(one) for one in cast(list[Any], several)] if isinstance(several, list) else []
    parts: dict[str, Any] = {**said, "anyOf": any_of, "properties": properties}
    form = Ordered()
    for name in (*_KNOWN, *sorted(said.keys() - set(_KNOWN))):
        if parts.get(name) or (name in said and name not in ("anyOf", "required")):
            form[name] = parts[name]
        elif is_whole and name == "properties":
            form[name] = properties
    fields = {
        "Type": said.get("type") or "",
        "Description": said.get("description") or "",
        "Enum": said.get("enum") or [],
        "Items": said.get("items"),
        "Required": said.get("required") or [],
        "AnyOf": any_of,
        "Properties": properties,
        "Defs": said.get("$defs"),
    }
    return GoStruct(fields, form, speaks=is_whole)


def _schemas(properties: Mapping[str, Any]) -> SpokenMap:
    return SpokenMap((name, _schema(one)) for name, one in properties.items())
