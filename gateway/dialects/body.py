"""Parses the JSON of a body into a typed object: limits, `x_*` fields, errors that name the field.

Pure. Every dialect parses its bodies with this module, so that all dialects refuse alike. An error
reports the first fault with its path in the client's terms (`messages[2].content[0].text`). Each
dialect has a table of the fields that are accepted without effect, with the reasons. Unknown fields
that look like misspellings are refused. Other unknown fields are accepted, and the response reports
them as ignored (`unknown_fields`).

Functions choose a union's member. Its members' tags begin with `~`, so that paths never show them.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, ClassVar, NoReturn, TypeVar, cast

import orjson
from pydantic import BaseModel, ConfigDict, Discriminator, Field, ValidationError

from bus.wire.errors import BadRequest, problem_text
from bus.wire.messages.requests import SPECULATE, Speculate
from bus.wire.shares import MAX_PRIORITY, PRIORITIES
from gateway.dialects.dialect import Extras, Limits
from gateway.dialects.encode import is_deeper
from gateway.dialects.unknown_fields import (
    MAX_NAMED,
    Location,
    known_names,
    may_be_slip,
    slip_of,
    unknown_within,
)

_BY_FIELD = "union_by_"
"""The prefix of the type of pydantic errors about a field, such as `type`, whose value decides
which member of a union an object is."""
MAX_PATH = 200
"""Maximum characters of a path in a refusal, because clients can choose names of any length."""
EXTRAS: Mapping[str, str] = {
    "x_client_id": "names a client (1 to 200 characters); a key's clients share its rows fairly",
    "x_cooldown": "refuse the client's requests for this many seconds after this one; at most "
    "7 days",
    "x_priority": "a word or a number from 0 to 1000; lower goes first",
    "x_reattach_s": "seconds for which a disconnected client may resume its stream; at most 300",
    "x_resume": "false: if its runner dies, the answer ends with an error and does not resume",
    "x_speculate": f"how to draft tokens: {', '.join(SPECULATE)}",
    "x_stay_warm": "seconds to keep the model in memory after the answer; at most 7 days",
    "x_timeout_s": "seconds until the whole answer must be complete, above 0; at most 7 days",
    "x_trace": "true: record a trace of the request",
}
"""Descriptions of shoal's own fields, which every body may have."""
MAX_SECONDS, MOST_REATTACH_S = 7 * 24 * 3600.0, 300.0
_BETWEEN = bytes(set(range(256)) - set(b'",:[{'))
"""All byte values except the separators of JSON values and the bytes that open a text, an array or
an object."""


@dataclass(frozen=True, slots=True)
class FieldTable:
    """How a dialect treats fields that clients send and the type of the body does not declare.

    - `harmless`: accepted without effect; each with the reason.
    - `neutral`: accepted only with these values, which request nothing. The dialect's parser
      refuses other values.
    - `refused`: unsupported; each with advice. A null requests nothing and passes.
    - `empty_asks_nothing`: an empty text, list or object, 0 and false pass, too. Clients written in
      Go send unset fields that way.
    """

    harmless: Mapping[str, str] = field(default_factory=dict[str, str])
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict[str, tuple[Any, ...]])
    empty_asks_nothing: bool = False

    def asks(self, value: Any) -> bool:
        """Return whether this value of a refused field requests anything. If it requests nothing,
        the field passes."""
        return bool(value) if self.empty_asks_nothing else value is not None


class Closed(BaseModel):
    """The base of all types of JSON objects that clients send. Types are not converted, and numbers
    must be finite. Unknown keys are stored apart, so that `validate` can refuse or report them.

    - `table`: how to treat fields that the type does not declare.
    - `apart`: the types of fields that the dialect validates separately.
    - `others`: the reason if every unknown key is accepted, for the documentation; else empty.
    - `reads_others`: the dialect's parser uses the unknown keys, so they are not reported.
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
"""Keys in a field's schema. ACCEPTED lists the only values that the field accepts; EFFECT says that
the field has no effect."""


def honoured(words: str) -> Any:
    """Make the field definition of an optional field that has an effect, described by `words`."""
    return Field(default=None, description=words)


def no_effect(why: str) -> Any:
    """Make the field definition of an optional field without effect; `why` is the reason."""
    return Field(default=None, description=why, json_schema_extra={EFFECT: "none"})


def refused(why: str) -> Any:
    """Return the definition of a field whose value identifies a kind of object that is refused.
    `why` is the reason."""
    return Field(description=why, json_schema_extra={ACCEPTED: []})


def only(*accepted: Any, why: str, alias: str | None = None) -> Any:
    """Return the definition of a field without effect that accepts null and these values. The
    dialect's parser or the type of the field refuses all other values."""
    schema: dict[str, Any] = {ACCEPTED: list(accepted)}
    return Field(default=None, description=why, alias=alias, json_schema_extra=schema)


Model = TypeVar("Model", bound=Closed)


def by_field(name: str, *values: str, also: Mapping[str, str] | None = None) -> Discriminator:
    """Choose a union's member by the value of the field `name`, which all members have. `also` maps
    further values, which error messages do not mention, to the tags of their members."""
    tags = {**{choice: f"~{choice}" for choice in values}, **(also or {})}

    def tag(value: Any) -> str | None:
        """Return the tag of the member that `value` belongs to; None if there is none."""
        if isinstance(value, Mapping):
            choice = cast(Mapping[str, Any], value).get(name)
        else:
            choice = getattr(value, name, None)
        return tags.get(choice) if isinstance(choice, str) else None

    choices = ", ".join(f"'{choice}'" for choice in values)
    return Discriminator(
        tag,
        custom_error_type=f"{_BY_FIELD}{name}",
        custom_error_message=f"must be one of {choices}",
    )


def by_shape(expected: str, tag: Callable[[object], str | None]) -> Discriminator:
    """Choose a union's member by the tag that the function `tag` returns for the JSON value. Tags
    begin with `~`."""
    return Discriminator(
        tag, custom_error_type="union_shape", custom_error_message=f"must be {expected}"
    )


def by_type(expected: str, tags: Mapping[type, str]) -> Discriminator:
    """Choose a union's member by the type of the JSON value."""
    return by_shape(expected, lambda value: tags.get(type(value)))


def bad_field(path: str, text: str) -> BadRequest:
    """Return the refusal of a field's value. `text` says what is wrong with the value."""
    return BadRequest(f"{path}: {text}", field=path)


def read_object(body: bytes, limits: Limits) -> dict[str, Any]:
    """Return the body's top-level object. Raises BadRequest for anything else, and for a body that
    is nested too deep or has too many values."""
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
    fields = cast(dict[str, Any], value)
    if is_deeper(fields, limits.depth):
        raise BadRequest(f"the request body is nested deeper than {limits.depth} levels")
    return fields


def read_body(model: type[Model], body: bytes, limits: Limits) -> tuple[Model, Extras]:
    """Parse a body as `model`. Return the object, and the values of its `x_*` fields with the paths
    of ignored fields. Raises BadRequest for the first fault."""
    fields = read_object(body, limits)
    extras = take_extras(fields)
    strict = limits.strict_fields
    parsed, ignored = validate(model, fields, known_fields=EXTRAS, strict=strict)
    return parsed, replace(extras, ignored=ignored) if ignored else extras


def take_extras(fields: dict[str, Any]) -> Extras:
    """Remove the known `x_*` fields from `fields` and return their values."""
    if not any(name.startswith("x_") for name in fields):
        return Extras()
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
        trace=_truth("x_trace", fields, default=False),
        resume=_truth("x_resume", fields, default=True),
        reattach_s=_seconds("x_reattach_s", fields, above=0.0, most=MOST_REATTACH_S),
        speculate=_speculate(fields.pop("x_speculate", None)),
    )


def _speculate(value: Any) -> Speculate | None:
    if value is None or value in SPECULATE:
        return value
    names = ", ".join(SPECULATE)
    raise BadRequest(f"x_speculate must be one of {names}", field="x_speculate")


def _truth(name: str, fields: dict[str, Any], *, default: bool) -> bool:
    value = default if (field := fields.pop(name, None)) is None else field
    if isinstance(value, bool):
        return value
    raise BadRequest(f"{name} must be true or false", field=name)


def validate(
    model: type[Model],
    fields: dict[str, Any],
    *,
    within: str = "",
    known_fields: Iterable[str] = (),
    strict: bool = False,
) -> tuple[Model, tuple[str, ...]]:
    """Validate `fields` as `model`. Return the model and the paths of ignored unknown fields, at
    most `MAX_NAMED`. Only the first ones are compared with known names, since a body may have
    thousands. Harmless fields are removed first. Raises BadRequest for the first fault, and for any
    unknown field if `strict`. `within` is the path of the object if the object is not the body
    itself. `known_fields` are further valid names."""
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
        if fields.pop(name) is not None and len(ignored) < MAX_NAMED:
            nearest = slip_of(name[:MAX_PATH], (*names, *model.table.harmless, *known_fields))
            ignored.append(_ignored((within, name), nearest, strict=strict))
    try:
        parsed = model.model_validate(fields)
    except ValidationError as error:
        _translate(error, within)
    for location, kind in islice(unknown_within(parsed), MAX_NAMED):
        slips = may_be_slip(location)
        nearest = slip_of(str(location[-1])[:MAX_PATH], known_names(kind)) if slips else None
        if nearest is not None or not (issubclass(kind, Closed) and kind.reads_others):
            ignored.append(_ignored((within, *location), nearest, strict=strict))
    return parsed, tuple(ignored[:MAX_NAMED])


def ignoring(extras: Extras, paths: Sequence[str], text: str, limits: Limits) -> Extras:
    """Return the extras with further paths of fields that have no effect. `text` says why. If
    unknown fields are refused, raises BadRequest for the first of these paths."""
    if not paths:
        return extras
    if limits.strict_fields:
        raise bad_field(paths[0], text)
    return replace(extras, ignored=(*extras.ignored, *paths)[:MAX_NAMED])


def path_of(location: tuple[int | str, ...]) -> str:
    """Return a pydantic location as a path: `("messages", 2, "~parts", "text")` ->
    `messages[2].text`."""
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step and not step.startswith("~"):
            path += f".{step}" if path else step
    return path


def _ignored(location: Location, nearest: str | None, *, strict: bool) -> str:
    """Return the path of an unknown field. Raises BadRequest if it looks misspelt, or for any
    unknown field if `strict`."""
    path = path_of(location)[:MAX_PATH]
    if nearest is not None:
        raise BadRequest(f"unknown field '{path}'; did you mean '{nearest}'?", field=path)
    if strict:
        raise BadRequest(f"unknown field '{path}'", field=path)
    return path


def _translate(error: ValidationError, within: str) -> NoReturn:
    errors = error.errors(include_url=False, include_input=False)
    first = errors[0]
    path = path_of((within, *first["loc"]))[:MAX_PATH]
    if first["type"].startswith(_BY_FIELD):
        path = f"{path}.{first['type'].removeprefix(_BY_FIELD)}"
    text = f"{path}{' ' if first['type'] == 'missing' else ': '}{problem_text(first)}"
    if more := len(errors) - 1:
        text += f" (and {more} more)"
    raise BadRequest(text, field=path or None) from error


def _with_odd_numbers(body: bytes, error: orjson.JSONDecodeError) -> Any:
    """Raise BadRequest that names the NaN or infinity in a body that is otherwise valid JSON, or
    has the parser's own message."""
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
    """Return the path of the first NaN or infinity, or None. The search is a loop, not a recursion,
    since bodies may be nested deep."""
    waiting: list[tuple[tuple[int | str, ...], Any]] = [((), value)]
    while waiting:
        location, node = waiting.pop()
        if isinstance(node, float) and (node != node or node in (float("inf"), float("-inf"))):
            return path_of(location) or None
        if isinstance(node, dict):
            inner = cast(dict[str, Any], node)
            waiting.extend(((*location, name), inner[name]) for name in reversed(inner))
        elif isinstance(node, list):
            items = cast(list[Any], node)
            waiting.extend(((*location, index), item) for index, item in enumerate(items))
    return None


def _check_counts(body: bytes, limits: Limits) -> None:
    """Count a body's values outside of its strings. Raises BadRequest if there are too many.

    This check comes before parsing, which takes seconds and gigabytes for millions of values. It
    needs only a few passes over the bytes: once escaped quotes are removed, every second piece
    between quotes is text.
    """
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _BETWEEN)
    texts = plain.count(b'"') // 2
    if texts > limits.values + limits.keys:
        raise BadRequest(f"the request body has too many values; the limit is {limits.values}")
    outside = b"".join(plain.split(b'"')[::2])
    objects = outside.count(b"{") + outside.count(b"[")
    for count, limit, noun in (
        (outside.count(b":"), limits.keys, "keys"),
        (objects, limits.objects, "arrays and objects"),
        (outside.count(b",") + objects, limits.values, "values"),
    ):
        if count > limit:
            raise BadRequest(f"the request body has {count} {noun}; the limit is {limit}")


def _priority(value: Any) -> int:
    if value is None:
        return PRIORITIES["normal"]
    if isinstance(value, str) and value in PRIORITIES:
        return PRIORITIES[value]
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_PRIORITY:
        return value
    names = ", ".join(PRIORITIES)
    text = f"x_priority must be one of {names}, or an integer from 0 to {MAX_PRIORITY}"
    raise BadRequest(text, field="x_priority")


def _seconds(
    name: str, taken: dict[str, Any], *, above: float = -1.0, most: float = MAX_SECONDS
) -> float | None:
    if (value := taken.pop(name, None)) is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and max(0.0, above) <= value <= most and value > above:
        return float(value)
    limit = "7 days" if most == MAX_SECONDS else f"{most:g}"
    raise BadRequest(f"{name} must be a number of seconds, at most {limit}", field=name)
