"""Parses fields that mean the same in every dialect, by the same rules.

Pure. Each function returns a field's value or raises `BadRequest` naming the field.
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
"""A value of `top_p` so small that only the likeliest token can be drawn. That is what `top_p: 0`
means."""
LEAST_TEMPERATURE = 1e-3
"""The least temperature for sampling. Below this value every draw is the likeliest token, and the
inverse of a still smaller value leaves float32's range."""
LEAST_REPETITION = 0.01
TEXT_ONLY = "the models read only text"
NO_SUCH_TOOL = "only function tools are supported"
NO_THINKING = "this field has no effect if thinking is off"
MODEL_S_LENGTH = -1
"""The value of vLLM's `truncate_prompt_tokens` for the model's own limit."""

Value = TypeVar("Value")


def named_model(name: str, field: str = "model") -> ModelId:
    """Return a name as a model id. Raises BadRequest for an invalid name, such as a folder's name
    with a space."""
    if not is_model_id(name):
        text = (
            f"'{name[:80]}' is not a valid model name: use letters a to z, digits, '.', '_' "
            f"and '-'; a folder of that name has the name '{sayable(name[:200])}' (`shoal ls`)"
        )
        raise BadRequest(text, field=field)
    return ModelId(name)


def cuts_long(truncate_prompt_tokens: int | None, effect: str) -> bool:
    """Return whether vLLM's `truncate_prompt_tokens` allows to cut what is too long. Raises
    BadRequest for another limit than the model's own; `effect` says what that limit does."""
    if truncate_prompt_tokens not in (None, MODEL_S_LENGTH):
        text = f"must be -1, which {effect} that are too long for the model"
        raise bad_field("truncate_prompt_tokens", text)
    return truncate_prompt_tokens is not None


def sampling_of(values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Sampling:
    """Return the sampling settings: the client's value unless None, else the dialect's default,
    else Sampling's own. `model_fields_set` has only the client's fields."""
    present = {name: value for name, value in values.items() if value is not None}
    if not defaults:
        return Sampling(**present)
    sampling = Sampling(**{**defaults, **present})
    return Sampling.model_construct(_fields_set=set(present), **dict(sampling))


def temperature_of(temperature: float) -> float:
    """Return the temperature to sample with. A value so small that the likeliest token is always
    drawn becomes 0."""
    return temperature if temperature >= LEAST_TEMPERATURE else 0.0


def stops_of(field: str, stops: str | Sequence[str] | None, limits: Limits) -> tuple[str, ...]:
    """Return the stop strings in order, without repeats. Raises BadRequest for too many stop
    strings or an invalid one."""
    if isinstance(stops, str):
        by_path = {field: stops}
    else:
        by_path = {f"{field}[{index}]": stop for index, stop in enumerate(stops or ())}
    if len(by_path) > limits.stops:
        raise bad_field(field, f"too many strings; the limit is {limits.stops}")
    for where, stop in by_path.items():
        if not 0 < len(stop) <= MAX_STOP_CHARACTERS:
            raise bad_field(where, f"must have 1 to {MAX_STOP_CHARACTERS} characters")
    return tuple(dict.fromkeys(by_path.values()))


def top_logprobs_of(wanted: bool | None, count: int | None) -> int | None:
    """Return how many alternatives to show for each token; None without log-probabilities."""
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
    """Return the tools by name, in order, without None. Raises BadRequest for too many tools or for
    two with one name. `name` is the path of the name in a tool, `field` the path of the tools in
    the body."""
    if len(tools) > limits.tools:
        raise bad_field(field, f"too many tools; the limit is {limits.tools}")
    by_name: dict[str, ToolSpec] = {}
    for index, tool in enumerate(tools):
        if tool is None:
            continue
        if tool.name in by_name:
            raise bad_field(f"{field}[{index}].{name}", f"'{tool.name}' is defined twice")
        by_name[tool.name] = tool
    return by_name


def foreign_in(
    tools: Sequence[object] | None, foreign: type, field: str = "tools"
) -> tuple[str, ...]:
    """Return the paths of the tools of the type `foreign`, which are not offered to the model."""
    return tuple(f"{field}[{n}]" for n, tool in enumerate(tools or ()) if isinstance(tool, foreign))


def unseen(kind: str) -> TextPart:
    """Return the text that replaces non-text content in a tool's answer."""
    return TextPart(text=f"[{kind} left out: only text can be read here]")


@dataclass(frozen=True, slots=True)
class ThinkingAsked:
    """How much thinking a body requests, in one field or in several that agree.

    `effort` is None if the body only turns thinking on or off. `unheeded` are the paths of fields
    that have no effect because thinking is off. `for_thinking` are the paths of fields that have an
    effect only in thinking models.
    """

    thinking: bool | None
    effort: Effort | None
    budget: int | None
    unheeded: tuple[str, ...] = ()
    for_thinking: tuple[str, ...] = ()

    def set_in(self, request: GenerationRequest) -> GenerationRequest:
        """Return the request with this amount of thinking."""
        fields = {
            "thinking": self.thinking,
            "effort": self.effort,
            "thinking_budget": self.budget,
        }
        return request.model_copy(update=fields)

    def report_in(self, extras: Extras, limits: Limits) -> Extras:
        """Return `extras` with the fields about thinking that have no effect or might have none.
        Raises BadRequest if fields without effect are refused."""
        extras = ignoring(extras, self.unheeded, NO_THINKING, limits)
        return replace(extras, for_thinking=self.for_thinking) if self.for_thinking else extras


def thinking_asked(
    *,
    switches: Mapping[str, bool | None],
    efforts: Mapping[str, Effort | Literal["none"] | None],
    budgets: Mapping[str, int | None] | None = None,
) -> ThinkingAsked:
    """Return how much thinking a body requests. Each parameter maps paths of the body to values;
    all its values must agree, because they concern the same setting. A budget below 0 means that
    the body sets no budget. If two values differ, raises BadRequest naming the second."""
    switch_path, switch = _agreed(switches)
    effort_path, effort = _agreed(efforts)
    budget_path, budget = _agreed(budgets or {})
    if switch is not None and effort not in (None, "minimal") and switch is (effort == "none"):
        text = f"{switch_path} contradicts {effort_path} '{effort}'"
        raise BadRequest(text, field=switch_path)
    thinking = False if effort == "none" else switch
    amounts = (effort_path, "" if effort in (None, "none") else effort), (budget_path, budget)
    paths = tuple(path for path, amount in amounts if amount not in (None, ""))
    if thinking is False:
        return ThinkingAsked(False, None, None, unheeded=paths)
    return ThinkingAsked(
        thinking,
        None if effort == "none" else effort,
        None if budget is None or budget < 0 else budget,
        for_thinking=() if thinking else paths,
    )


def _agreed(values: Mapping[str, Value | None]) -> tuple[str, Value | None]:
    """Return the first path that has a value, and the value. All values must be equal."""
    present = [(path, value) for path, value in values.items() if value is not None]
    for path, value in present[1:]:
        if value != present[0][1]:
            raise BadRequest(f"{path} contradicts {present[0][0]}", field=path)
    return present[0] if present else ("", None)


def tool_tag(own: str, *others: str) -> Callable[[object], str | None]:
    """Return a function that returns the tag of a tool, by the tool's `type`. The tag is `~own` if
    the type is `own` or missing, `~` and the type if it is one of `others`, and `~foreign`
    otherwise. The client runs all tools except foreign ones."""

    def tag(value: object) -> str | None:
        """Return the tag of a tool; None if the value is not an object."""
        if not isinstance(value, Mapping):
            return None
        kind = cast(Mapping[str, object], value).get("type")
        if kind in others:
            return f"~{kind}"
        return "~foreign" if isinstance(kind, str) and kind != own else "~own"

    return tag
