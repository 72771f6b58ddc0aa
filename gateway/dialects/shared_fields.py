"""Fields that mean the same in every dialect, checked alike.

Pure. Each function returns what a body says, or raises `BadRequest` naming the field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, cast

from bus.wire.errors import BadRequest
from bus.wire.ids import ModelId, is_model_id, sayable
from bus.wire.messages.requests import (
    Effort,
    GenerationRequest,
    Sampling,
    TextPart,
    ToolSpec,
)
from gateway.dialects.body import bad_field, ignoring
from gateway.dialects.dialect import Extras, Limits

MAX_STOP_CHARACTERS = 1000
LEAST_TOP_P = 1e-9
"""A nucleus this small holds the likeliest token alone, which is what `top_p: 0` asks for."""
LEAST_TEMPERATURE = 1e-3
"""Below it every draw is the likeliest token, and its inverse would soon leave float32."""
LEAST_REPETITION = 0.01
TEXT_ONLY = "the models read only text"
NO_SUCH_TOOL = "only function tools are supported"
NO_THINKING = "it has no effect if thinking is off"

Said = TypeVar("Said")


def named_model(name: str, field: str = "model") -> ModelId:
    """Return a name as a model's. BadRequest for what cannot be one, like a folder's with a blank
    in it."""
    if not is_model_id(name):
        text = (
            f"'{name[:80]}' is not a valid model name: use letters a to z, digits, '.', '_' "
            f"and '-'; a folder of that name has the name '{sayable(name[:200])}' (`shoal ls`)"
        )
        raise BadRequest(text, field=field)
    return ModelId(name)


def sampling_of(said: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Sampling:
    """Return how tokens are chosen: as the client said, where that is not None, else by the
    dialect's `defaults`, else by Sampling's own. Its `model_fields_set` are those that were said.
    """
    given = {name: value for name, value in said.items() if value is not None}
    if not defaults:
        return Sampling(**given)
    made = Sampling(**{**defaults, **given})
    return Sampling.model_construct(_fields_set=set(given), **dict(made))


def temperature_of(asked: float) -> float:
    """Return the temperature to draw with: 0, the likeliest token, for all that amount to it."""
    return asked if asked >= LEAST_TEMPERATURE else 0.0


def stops_of(field: str, stops: str | Sequence[str] | None, limits: Limits) -> tuple[str, ...]:
    """Return the stop strings, in order, without repeats. BadRequest for too many, or a bad one."""
    if isinstance(stops, str):
        named = {field: stops}
    else:
        named = {f"{field}[{index}]": stop for index, stop in enumerate(stops or ())}
    if len(named) > limits.stops:
        raise bad_field(field, f"at most {limits.stops} strings")
    for where, stop in named.items():
        if not 0 < len(stop) <= MAX_STOP_CHARACTERS:
            raise bad_field(where, f"must have 1 to {MAX_STOP_CHARACTERS} characters")
    return tuple(dict.fromkeys(named.values()))


def top_logprobs_of(wanted: bool | None, count: int | None) -> int | None:
    """Return how many alternatives to show; None for no log-probabilities."""
    if wanted:
        return count or 0
    if count:
        raise BadRequest("top_logprobs needs logprobs to be true", field="top_logprobs")
    return None


def tools_of(
    tools: Sequence[ToolSpec | None],
    limits: Limits,
    name: str = "function.name",
    field: str = "tools",
) -> dict[str, ToolSpec]:
    """Return the tools by name, in order, without those that are None. BadRequest for too many, or
    two of one name; `name` is where a tool's body has it, `field` where the body has them."""
    if len(tools) > limits.tools:
        raise bad_field(field, f"at most {limits.tools}")
    named: dict[str, ToolSpec] = {}
    for index, tool in enumerate(tools):
        if tool is None:
            continue
        if tool.name in named:
            raise bad_field(f"{field}[{index}].{name}", f"'{tool.name}' is defined twice")
        named[tool.name] = tool
    return named


def foreign_in(
    tools: Sequence[object] | None, foreign: type, field: str = "tools"
) -> tuple[str, ...]:
    """Return the paths of the tools that are of another kind, which the model is not offered."""
    return tuple(f"{field}[{n}]" for n, tool in enumerate(tools or ()) if isinstance(tool, foreign))


def unseen(kind: str) -> TextPart:
    """Return what the model reads in the place of something in a tool's answer that is no text."""
    return TextPart(text=f"[{kind} left out: only text can be read here]")


@dataclass(frozen=True, slots=True)
class ThinkingAsked:
    """How much to think, as a body says it, by one name or by several that agree.

    `effort` is None where thinking is switched on or off without one. `unheeded` are the paths of
    what has no effect as thinking is off, `for_thinking` of what has one in models that think.
    """

    thinking: bool | None
    effort: Effort | None
    budget: int | None
    unheeded: tuple[str, ...] = ()
    for_thinking: tuple[str, ...] = ()

    def asked_of(self, request: GenerationRequest) -> GenerationRequest:
        """Return the request with how much to think."""
        told = {
            "thinking": self.thinking,
            "effort": self.effort,
            "thinking_budget": self.budget,
        }
        return request.model_copy(update=told)

    def told_in(self, extras: Extras, limits: Limits) -> Extras:
        """Return the extras with what has no effect, or may have none. BadRequest where fields
        without effect are refused."""
        extras = ignoring(extras, self.unheeded, NO_THINKING, limits)
        return replace(extras, for_thinking=self.for_thinking) if self.for_thinking else extras


def thinking_asked(
    *,
    switches: Mapping[str, bool | None],
    efforts: Mapping[str, Effort | Literal["none"] | None],
    budgets: Mapping[str, int | None] | None = None,
) -> ThinkingAsked:
    """Return how much to think; each mapping has what the paths of a body say of one thing. A
    budget below 0 is none. BadRequest, naming the second, for two that differ."""
    switch_path, switch = _agreed(switches)
    effort_path, effort = _agreed(efforts)
    budget_path, budget = _agreed(budgets or {})
    if switch is not None and effort not in (None, "minimal") and switch is (effort == "none"):
        text = f"{switch_path} contradicts {effort_path} '{effort}'"
        raise BadRequest(text, field=switch_path)
    thinking = False if effort == "none" else switch
    found = (effort_path, "" if effort in (None, "none") else effort), (budget_path, budget)
    paths = tuple(path for path, said in found if said not in (None, ""))
    if thinking is False:
        return ThinkingAsked(False, None, None, unheeded=paths)
    return ThinkingAsked(
        thinking,
        None if effort == "none" else effort,
        None if budget is None or budget < 0 else budget,
        for_thinking=() if thinking else paths,
    )


def _agreed(said: Mapping[str, Said | None]) -> tuple[str, Said | None]:
    """Return the first path that says something, and what all that do say."""
    found = [(path, one) for path, one in said.items() if one is not None]
    for path, one in found[1:]:
        if one != found[0][1]:
            raise BadRequest(f"{path} contradicts {found[0][0]}", field=path)
    return found[0] if found else ("", None)


def tool_tag(own: str, *others: str) -> Callable[[object], str | None]:
    """Return what tells a tool that the client runs, whose `type` is `own` or left out (`~own`) or
    one of `others` (`~` and that), from one of another kind (`~foreign`)."""

    def tag(value: object) -> str | None:
        """Return the tag of a tool; None for what is no object."""
        if not isinstance(value, Mapping):
            return None
        kind = cast(Mapping[str, object], value).get("type")
        if kind in others:
            return f"~{kind}"
        return "~foreign" if isinstance(kind, str) and kind != own else "~own"

    return tag
