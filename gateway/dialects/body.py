"""From bytes to a closed model: JSON, limits, `x_*` fields, and errors that name the field.

Pure. Every dialect reads bodies through here, so that all of them refuse alike: the first
fault is said with its path in the client's terms (`messages[2].content[0].text`). A field that is
accepted without effect stands in the dialect's own table with the reason why; of what no type
knows, slips are refused and the rest is named to the client (`unknown_fields`).

Unions are told apart by functions whose tags begin with `~`, so that a path never shows them.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NoReturn, TypeVar, cast

import orjson
from pydantic import BaseModel, ConfigDict, Discriminator, Field, ValidationError

from bus.wire.errors import BadRequest
from bus.wire.shares import MAX_PRIORITY, PRIORITIES
from gateway.dialects.dialect import Extras, Limits
from gateway.dialects.unknown_fields import (
    MAX_NAMED,
    Location,
    known_names,
    may_be_slip,
    slip_of,
    unknown_within,
)

_BY_FIELD = "union_by_"
"""Begins the type of an error that lies in a field which tells a union's members apart."""
MAX_PATH = 200
"""Characters of a path that are said back; field names are the client's, of any length."""
EXTRAS: Mapping[str, str] = {
    "x_client_id": "the client, 1 to 200 characters; rows are shared between keys, then clients",
    "x_cooldown": "seconds for which the client's next request is refused; at most 7 days",
    "x_priority": "a word or a number from 0 to 1000; lower goes first",
    "x_stay_warm": "seconds to keep the model afterwards; at most 7 days",
    "x_timeout_s": "deadline in seconds, above 0; at most 7 days",
    "x_trace": "true: record a trace of the request",
}
"""Fields of ours that every body may have -> what they say."""
MAX_SECONDS = 7 * 24 * 3600.0
_BETWEEN = bytes(set(range(256)) - set(b'",:[{'))
"""The bytes of JSON that neither separate values nor open anything."""


@dataclass(frozen=True, slots=True)
class FieldTable:
    """What a dialect does with fields that its model does not have.

    `harmless`: accepted without effect -> why. `neutral`: known to the dialect's parser, which
    refuses all but these values. `refused`: known and not offered -> advice, but a null asks for
    nothing, nor, where `empty_asks_nothing`, do an empty text, list or object, 0 and
    false: clients written in Go send what they were not given as such.
    """

    harmless: Mapping[str, str] = field(default_factory=dict[str, str])
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict[str, tuple[Any, ...]])
    empty_asks_nothing: bool = False

    def asks(self, value: Any) -> bool:
        """Return whether the value of a refused field asks for something."""
        return bool(value) if self.empty_asks_nothing else value is not None


class Closed(BaseModel):
    """A client's object: types exact, numbers finite; keys that it does not know are kept apart,
    for `validate` to judge.

    `table` is about the fields that the object does not have. `apart` has the types of fields that
    are validated by themselves. `others` says why keys are taken unnamed, where all are;
    `reads_others` that its parser has a use for them.
    """

    model_config = ConfigDict(
        extra="allow", strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=()
    )
    table: ClassVar[FieldTable] = FieldTable()
    apart: ClassVar[Mapping[str, type[BaseModel]]] = {}
    others: ClassVar[str] = ""
    reads_others: ClassVar[bool] = False


Unused = Any
"""The type of a field that is accepted without effect."""
ACCEPTED, EFFECT = "x-accepted", "x-effect"
"""Where the schema of a field says which values alone it takes, and that it has no effect."""


def honoured(words: str) -> Any:
    """Make a field that may be left out and changes what is done; `words` say what it means."""
    return Field(default=None, description=words)


def no_effect(why: str) -> Any:
    """Make a field that is taken in its place and changes nothing, with the reason."""
    return Field(default=None, description=why, json_schema_extra={EFFECT: "none"})


def refused(why: str) -> Any:
    """Make a field of an object that is refused whole, once it is known for what it is."""
    return Field(description=why, json_schema_extra={ACCEPTED: []})


def only(*accepted: Any, why: str, alias: str | None = None) -> Any:
    """Make a field that asks for nothing, in these values and in null, and is refused with others;
    its parser, or its type, refuses them."""
    told: dict[str, Any] = {ACCEPTED: list(accepted)}
    return Field(default=None, description=why, alias=alias, json_schema_extra=told)


Model = TypeVar("Model", bound=Closed)


def by_field(name: str, *known: str, also: Mapping[str, str] | None = None) -> Discriminator:
    """Tell the members of a union apart by the value of one of their fields. `also` are values that
    refusals do not tell of, with the tags of the members that they are."""
    tags = {**{one: f"~{one}" for one in known}, **(also or {})}

    def tag(value: Any) -> str | None:
        """Return the tag of the member that `value` is, None for none."""
        if isinstance(value, Mapping):
            found = cast(Mapping[str, Any], value).get(name)
        else:
            found = getattr(value, name, None)
        return tags.get(found) if isinstance(found, str) else None

    choices = ", ".join(f"'{one}'" for one in known)
    return Discriminator(
        tag,
        custom_error_type=f"{_BY_FIELD}{name}",
        custom_error_message=f"must be one of {choices}",
    )


def by_shape(expected: str, tag: Callable[[object], str | None]) -> Discriminator:
    """Tell the members of a union apart by what the JSON value is like. Tags begin with `~`."""
    return Discriminator(
        tag, custom_error_type="union_shape", custom_error_message=f"must be {expected}"
    )


def by_type(expected: str, tags: Mapping[type, str]) -> Discriminator:
    """Tell the members of a union apart by the type of the JSON value."""
    return by_shape(expected, lambda value: tags.get(type(value)))


def bad_field(path: str, text: str) -> BadRequest:
    """Return the refusal of what a field holds; `text` says what is wrong with it."""
    return BadRequest(f"{path}: {text}", field=path)


def read_object(body: bytes, limits: Limits) -> dict[str, Any]:
    """Return the body's top-level object. BadRequest for anything else, for too deep a one, or
    for one of too many values."""
    body = body.removeprefix(codecs.BOM_UTF8)
    if not body.strip():
        raise BadRequest("missing request body: send a JSON object")
    _check_counts(body, limits)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        value = _with_odd_numbers(body, error)
    if not isinstance(value, dict):
        raise BadRequest("the request body must be a JSON object")
    found = cast(dict[str, Any], value)
    if _deeper_than(found, limits.depth):
        raise BadRequest(f"the request body is nested deeper than {limits.depth} levels")
    return found


def read_body(model: type[Model], body: bytes, limits: Limits) -> tuple[Model, Extras]:
    """Return a body as `model`, and what its `x_*` fields say, with the names of what is ignored.
    BadRequest for the first fault."""
    fields = read_object(body, limits)
    extras = take_extras(fields)
    strict = limits.strict_fields
    asked, ignored = validate(model, fields, known=EXTRAS, strict=strict)
    return asked, replace(extras, ignored=ignored) if ignored else extras


def take_extras(fields: dict[str, Any]) -> Extras:
    """Take those `x_*` fields out of `fields` that we know, and read them."""
    client_id = fields.pop("x_client_id", None)
    if client_id is not None and not (isinstance(client_id, str) and 0 < len(client_id) <= 200):
        raise BadRequest("x_client_id must be a string of 1 to 200 characters", field="x_client_id")
    priority = fields.pop("x_priority", None)
    return Extras(
        client_id=client_id,
        priority=_priority(priority),
        says_priority=priority is not None,
        cooldown_s=_seconds("x_cooldown", fields) or 0.0,
        stay_warm_s=_seconds("x_stay_warm", fields),
        timeout_s=_seconds("x_timeout_s", fields, above=0.0),
        trace=_trace(fields.pop("x_trace", None)),
    )


def _trace(value: Any) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    raise BadRequest("x_trace must be true or false", field="x_trace")


def validate(
    model: type[Model],
    fields: dict[str, Any],
    *,
    within: str = "",
    known: Iterable[str] = (),
    strict: bool = False,
) -> tuple[Model, tuple[str, ...]]:
    """Return `fields` as `model`, without the harmless ones, and the paths of what is ignored: of
    `MAX_NAMED` fields at most, that no type knows.

    BadRequest for the first fault; with `strict`, for any unknown field. `within` is the path of
    the object that `fields` are, when it is not the body itself; `known` are names that `fields`
    may have had.
    """
    for name in [name for name in fields if name in model.table.harmless]:
        del fields[name]
    for name in [name for name in fields if name in model.table.refused]:
        if model.table.asks(fields[name]):
            path = path_of((within, name))
            raise BadRequest(f"{path} is not supported: {model.table.refused[name]}", field=path)
        del fields[name]
    ignored: list[str] = []
    names = known_names(model)
    for name in [name for name in fields if name not in names]:
        if fields.pop(name) is not None:
            near = slip_of(name[:MAX_PATH], (*names, *model.table.harmless, *known))
            ignored.append(_ignored((within, name), near, strict=strict))
    try:
        made = model.model_validate(fields)
    except ValidationError as error:
        _translate(error, within)
    for location, kind in unknown_within(made):
        if len(ignored) >= MAX_NAMED and not strict:
            break
        slips = may_be_slip(location)
        near = slip_of(str(location[-1])[:MAX_PATH], known_names(kind)) if slips else None
        if near is not None or not (issubclass(kind, Closed) and kind.reads_others):
            ignored.append(_ignored((within, *location), near, strict=strict))
    return made, tuple(ignored[:MAX_NAMED])


def ignoring(extras: Extras, paths: Sequence[str], text: str, limits: Limits) -> Extras:
    """Return the extras with paths of more that has no effect; `text` says why, and is the refusal
    of the first where unknown fields are refused too. BadRequest."""
    if not paths:
        return extras
    if limits.strict_fields:
        raise bad_field(paths[0], text)
    return replace(extras, ignored=(*extras.ignored, *paths)[:MAX_NAMED])


def path_of(location: tuple[int | str, ...]) -> str:
    """Return a path in words: `("messages", 2, "~parts", "text")` -> `messages[2].text`."""
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step and not step.startswith("~"):
            path += f".{step}" if path else step
    return path


def _ignored(location: Location, near: str | None, *, strict: bool) -> str:
    """Return the path of an unknown field. BadRequest for a slip, and for any with `strict`."""
    path = path_of(location)[:MAX_PATH]
    if near is not None:
        raise BadRequest(f"unknown field '{path}'; did you mean '{near}'?", field=path)
    if strict:
        raise BadRequest(f"unknown field '{path}'", field=path)
    return path


def _translate(error: ValidationError, within: str) -> NoReturn:
    errors = error.errors(include_url=False, include_input=False)
    first = errors[0]
    path = path_of((within, *first["loc"]))[:MAX_PATH]
    if first["type"].startswith(_BY_FIELD):
        path = f"{path}.{first['type'].removeprefix(_BY_FIELD)}"
    if first["type"] == "missing":
        said = f"{path} is required"
    else:
        said = f"{path}: {first['msg'][:1].lower()}{first['msg'][1:]}"
    more = len(errors) - 1
    if more:
        said += f" (and {more} more)"
    raise BadRequest(said, field=path or None) from error


def _with_odd_numbers(body: bytes, error: orjson.JSONDecodeError) -> Any:
    """Raise BadRequest naming the field of the NaN or infinity in a body that is JSON but for it.

    Raises BadRequest with the parser's own words for every other fault, and whenever nothing odd is
    found that the model would refuse.
    """
    refusal = BadRequest(f"the request body is not valid JSON: {error}")
    if not any(word in body for word in (b"NaN", b"Infinity")):
        raise refusal from error
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise refusal from error
    path = _odd_number(value)
    raise bad_field(path, "must be a finite number") if path else refusal from error


def _odd_number(value: Any) -> str | None:
    """Return the path of the first NaN or infinity, or None. Iterative: bodies may be deep."""
    waiting: list[tuple[tuple[int | str, ...], Any]] = [((), value)]
    while waiting:
        location, one = waiting.pop()
        if isinstance(one, float) and (one != one or one in (float("inf"), float("-inf"))):
            return path_of(location) or None
        if isinstance(one, dict):
            inner = cast(dict[str, Any], one)
            waiting.extend(((*location, name), inner[name]) for name in reversed(inner))
        elif isinstance(one, list):
            items = cast(list[Any], one)
            waiting.extend(((*location, index), item) for index, item in enumerate(items))
    return None


def _check_counts(body: bytes, limits: Limits) -> None:
    """Count what a body is made of, outside of its texts. BadRequest where it is too much.

    Done before anything is parsed: millions of values take seconds and gigabytes as Python's
    objects, and their parser lets nothing else run meanwhile. A few passes over the bytes suffice:
    without escaped quotes every second piece between quotes is text.
    """
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _BETWEEN)
    texts = plain.count(b'"') // 2
    if texts > limits.values + limits.keys:
        raise BadRequest(f"the request body has too many values; the limit is {limits.values}")
    outside = b"".join(plain.split(b'"')[::2])
    objects = outside.count(b"{") + outside.count(b"[")
    for count, limit, what in (
        (outside.count(b":"), limits.keys, "keys"),
        (objects, limits.objects, "arrays and objects"),
        (outside.count(b",") + objects, limits.values, "values"),
    ):
        if count > limit:
            raise BadRequest(f"the request body has {count} {what}; the limit is {limit}")


def _deeper_than(value: Any, limit: int) -> bool:
    level: list[Any] = [value]
    for _ in range(limit):
        level = [
            child
            for node in level
            for child in (cast(dict[str, Any], node).values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def _priority(value: Any) -> int:
    if value is None:
        return PRIORITIES["normal"]
    if isinstance(value, str) and value in PRIORITIES:
        return PRIORITIES[value]
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_PRIORITY:
        return value
    names = ", ".join(PRIORITIES)
    raise BadRequest(
        f"x_priority must be one of {names}, or an integer from 0 to {MAX_PRIORITY}",
        field="x_priority",
    )


def _seconds(name: str, taken: dict[str, Any], *, above: float = -1.0) -> float | None:
    value = taken.pop(name, None)
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
        if max(0.0, above) <= seconds <= MAX_SECONDS and seconds > above:
            return seconds
    raise BadRequest(f"{name} must be a number of seconds, at most 7 days", field=name)
