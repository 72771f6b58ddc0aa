"""Find the message shape that a chat template needs, by rendering marked messages.

Pure, given a renderer. Each question is one conversation with a mark in every text. The first shape
that shows all marks is used; plain shapes are tried first. If no shape works, the result lists the
missing parts, so that a request which needs them can be refused. Most templates take 8 renders.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from bus.wire.messages.requests import ChatMessage, ChatPrompt, TextPart, ToolCall, ToolSpec
from runner.text.shapes.shape import PLAIN, TemplateShape

RenderAs = Callable[[ChatPrompt, TemplateShape, Sequence[ToolSpec]], str | None]
"""Returns the text of a prompt whose messages are written in a shape; None if the template refuses
the prompt. May raise TemplateStopped."""


def probe_template(render: RenderAs, *, makes_calls: bool) -> TemplateShape:
    """Return the shape that the template needs. `makes_calls`: the model has a tool call format;
    otherwise tools are not probed. Raises `render`'s errors."""
    shape = _first(render, _variants(PLAIN, content=("text", "parts")), _TALK) or PLAIN
    turns = _variants(shape, turns=("free", "alternating"))
    shape = _first(render, turns, _IN_A_ROW) or shape
    shape = (
        _first(render, _variants(shape, system=("anywhere", "first", "none")), _SYSTEM_LATE)
        or _first(render, _variants(shape, system=("first", "none")), _SYSTEM)
        or shape
    )
    return _find_tools(render, _find_calls(render, shape)) if makes_calls else shape


def _find_calls(render: RenderAs, shape: TemplateShape) -> TemplateShape:
    best = _cleanest(render, shape, _CALLED)
    if best is None:
        best = _cleanest(render, shape, _CALL_ALONE)
        if best is None:
            is_seen = _shows(render, shape, _RESULT_ALONE)
            results = "seen" if is_seen else "unseen"
            return replace(shape, calls="unseen", beside="unseen", results=results)
        best = replace(best, results="unseen")
    twice = _CALLED_TWICE if best.results == "seen" else _CALLS_ALONE
    several = _variants(best, calls=("several", "single"))
    best = _first(render, several, twice) or replace(best, calls="single")
    if _shows(render, best, _BESIDE_TEXT):
        return best
    apart = replace(best, beside="apart")
    is_shown = _shows(render, apart, _BESIDE_TEXT_EARLIER)
    return apart if is_shown else replace(best, beside="unseen")


def _find_tools(render: RenderAs, shape: TemplateShape) -> TemplateShape:
    for candidate in _variants(shape, tools=("variable", "system")):
        for prompt in (_TALK, _SYSTEM):
            if _TOOL.name in (render(prompt, candidate, (_TOOL,)) or ""):
                return candidate
    return replace(shape, tools="unseen")


def _cleanest(render: RenderAs, shape: TemplateShape, prompt: ChatPrompt) -> TemplateShape | None:
    """Return the shape in which the template shows a tool call with the fewest flaws; None if none
    shows the call."""
    for ids in ("any", "nine"):
        rated: list[tuple[int, TemplateShape]] = []
        options = {"arguments": ("object", "text"), "empty": ("text", "null", "absent")}
        for variant in _variants(replace(shape, ids=ids), **options):
            text = render(prompt, variant, (_TOOL,))
            if text is not None and _is_whole(text, prompt):
                rated.append((_flaws(text), variant))
                if not rated[-1][0]:
                    return variant
        if rated:
            return min(rated, key=lambda entry: entry[0])[1]
    return None


def _first(
    render: RenderAs, shapes: Iterator[TemplateShape], prompt: ChatPrompt
) -> TemplateShape | None:
    """Return the first of `shapes` in which the template shows the whole prompt; None if there is
    none."""
    return next((shape for shape in shapes if _shows(render, shape, prompt)), None)


def _shows(render: RenderAs, shape: TemplateShape, prompt: ChatPrompt) -> bool:
    has_calls = any(message.tool_calls for message in prompt.messages)
    text = render(prompt, shape, (_TOOL,) if has_calls else ())
    return text is not None and _is_whole(text, prompt)


def _variants(shape: TemplateShape, **values: Sequence[str]) -> Iterator[TemplateShape]:
    """Yield copies of the shape with each combination of `values` for the named fields, in order of
    preference."""
    for chosen in product(*values.values()):
        fields: dict[str, Any] = dict(zip(values, chosen, strict=True))
        yield replace(shape, **fields)


def _is_whole(text: str, prompt: ChatPrompt) -> bool:
    """Return whether a text shows all marks of a prompt."""
    return all(mark in text for mark in _MARKS.findall(prompt.model_dump_json()))


def _flaws(text: str) -> int:
    """Return the number of flaws in the way a call is shown: in Python's notation, as JSON inside
    JSON, or with the word `None`."""
    is_python, is_twice = f"'{_KEY}': '{_VALUE}'" in text, f'\\"{_KEY}\\"' in text
    return is_python + is_twice + bool(re.search(r"\bNone\b", text))


_MARKS = re.compile(r"qvx[a-z]+x")
_KEY, _VALUE = "qvxkeyx", "qvxvaluex"
_TOOL = ToolSpec(
    name="a_tool_of_qvw",
    description="Does nothing.",
    parameters={"type": "object", "properties": {"where": {"type": "string"}}},
)


def _message(role: str, text: str, **fields: Any) -> ChatMessage:
    parts = (TextPart(text=text),) if text else ()
    return ChatMessage.model_validate({"role": role, "parts": parts, **fields})


def _call(number: int, name: str, arguments: str) -> ToolCall:
    return ToolCall(call_id=f"call_{number:024x}", name=name, arguments=arguments)


def _talk(*messages: ChatMessage) -> ChatPrompt:
    return ChatPrompt(messages=messages)


def _called(*calls: ToolCall, text: str = "", results: Sequence[str]) -> ChatPrompt:
    pairs = zip(calls, results, strict=True)
    return _talk(
        _message("user", "qvxfirstx"),
        _message("assistant", text, tool_calls=calls),
        *(_message("tool", result, tool_call_id=call.call_id) for call, result in pairs),
        _message("assistant", "qvxanswerx"),
        _message("user", "qvxlastx"),
    )


_TALK = _talk(
    _message("user", "qvxonex"), _message("assistant", "qvxtwox"), _message("user", "qvxthreex")
)
_IN_A_ROW = _talk(
    _message("user", "qvxonex"),
    _message("user", "qvxtwox"),
    _message("assistant", "qvxthreex"),
    _message("assistant", "qvxfourx"),
    _message("user", "qvxfivex"),
)
_SYSTEM = _talk(_message("system", "qvxsystemx"), *_TALK.messages)
_SYSTEM_LATE = _talk(
    *_SYSTEM.messages[:-1], _message("system", "qvxlatersystemx"), _TALK.messages[-1]
)
_ONE = _call(1, "qvxfunctionx", f'{{"{_KEY}": "{_VALUE}"}}')
_OTHER = _call(2, "qvxotherx", '{"a": "qvxothervaluex"}')
_UNMARKED = _call(3, "a_function", '{"a": "b"}')
_CALLED = _called(_ONE, results=["qvxresultx"])
_CALL_ALONE = _called(_ONE, results=["done"])
_RESULT_ALONE = _called(_UNMARKED, results=["qvxresultx"])
_CALLED_TWICE = _called(_ONE, _OTHER, results=["qvxresultx", "qvxotherresultx"])
_CALLS_ALONE = _called(_ONE, _OTHER, results=["done", "done"])
_BESIDE_TEXT_EARLIER = _called(_ONE, text="qvxbesidex", results=["done"])
_BESIDE_TEXT = _talk(*_BESIDE_TEXT_EARLIER.messages[:-2])
