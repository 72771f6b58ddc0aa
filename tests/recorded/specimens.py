"""Makes one value of any message type out of its fields, always the same, so that no type can be
forgotten.

A *full* specimen has no field at its default; `turn` picks which member of each union and which
word of each `Literal`, so that `turns` of them show every choice. The *least* specimen has only
the fields that have to be there. Values follow from the names of fields, never from those of
classes: a class may be renamed, a field may not.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin
from zlib import crc32

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from bus.wire.api_keys import HASH_PATTERN
from bus.wire.kv import WINDOW_PATTERN
from bus.wire.pool import LEASE_PATTERN

PATTERNS: Mapping[str, str] = {
    r"^[0-9a-f]{64}$": "0123456789abcdef" * 4,
    HASH_PATTERN: "sha256:" + "0123456789abcdef" * 4,
    LEASE_PATTERN: "lease-01234567",
    WINDOW_PATTERN: "window:4096",
}
"""A text that fits, for each pattern that a field may have."""
SPAN = 60_000
_Model = TypeVar("_Model", bound=BaseModel)


def full(cls: type[_Model], turn: int = 0) -> _Model:
    """Make one with every field filled, none with its default."""
    fields = {
        name: _field(name, field, turn, whole=True)
        for name, field in cls.model_fields.items()
        if not _is_tag(name, field)
    }
    return cls.model_validate(fields)


def least(cls: type[_Model]) -> _Model:
    """Make one with the required fields alone."""
    fields = {
        name: _field(name, field, 0, whole=False)
        for name, field in cls.model_fields.items()
        if field.is_required() and not _is_tag(name, field)
    }
    return cls.model_validate(fields)


def turns(cls: type[BaseModel], apart: Collection[type[BaseModel]] = ()) -> int:
    """Count the full specimens that show every choice. Choices within the types that stand
    `apart` are not counted: they have specimens of their own."""
    counts = [
        _choices(field.annotation, apart)
        for name, field in cls.model_fields.items()
        if not _is_tag(name, field)
    ]
    return max(counts, default=1)


def specimens(cls: type[_Model], apart: Collection[type[BaseModel]] = ()) -> list[_Model]:
    """Make the least one, then every full one."""
    return [least(cls), *(full(cls, turn) for turn in range(turns(cls, apart)))]


def _is_tag(name: str, field: FieldInfo) -> bool:
    words = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    return name == "kind" and len(words) == 1


def _choices(annotation: Any, apart: Collection[type[BaseModel]]) -> int:
    annotation = _bare(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return 1 if annotation in apart else turns(annotation, apart)
    origin, inner = get_origin(annotation), _members(annotation)
    if origin is Literal:
        return len(inner)
    own = len(inner) if origin in (Union, types.UnionType) else 1
    return max([own, *(_choices(one, apart) for one in inner)])


def _bare(annotation: Any) -> Any:
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        else:
            return annotation


def _members(annotation: Any) -> list[Any]:
    members = [one for one in get_args(annotation) if one not in (type(None), Ellipsis)]
    choice = get_origin(annotation) in (Union, types.UnionType, Literal)
    return sorted(members, key=_tag) if choice else members


def _tag(member: Any) -> str:
    """What a member of a union or a `Literal` is sorted by: the order in which it is written
    does not matter to anybody."""
    bare = _bare(member)
    if isinstance(bare, type) and issubclass(bare, BaseModel):
        return str(bare.model_fields["kind"].default) if "kind" in bare.model_fields else ""
    return str(bare)


def _field(name: str, field: FieldInfo, turn: int, *, whole: bool) -> Any:
    if not whole and type(None) in get_args(field.annotation):
        return None
    limits = {key: value for one in field.metadata for key, value in _limits(one).items()}
    made = _value(field.annotation, name, turn, limits, whole=whole)
    if whole and made == field.default:
        counts = type(made) is int and get_origin(_bare(field.annotation)) is not Literal
        return made + 1 if counts else _value(field.annotation, name, turn + 1, limits)
    return made


def _limits(metadata: object) -> dict[str, Any]:
    names = ("ge", "gt", "le", "lt", "max_length", "pattern")
    found = {name: getattr(metadata, name, None) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _value(
    annotation: Any, name: str, turn: int, limits: Mapping[str, Any], *, whole: bool = True
) -> Any:
    annotation = _bare(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return full(annotation, turn) if whole else least(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        inner = _members(annotation)
        chosen = inner[turn % len(inner)]
        for one in getattr(chosen, "__metadata__", ()):
            limits = {**limits, **_limits(one)}
        return _value(chosen, name, turn, limits, whole=whole)
    if get_origin(annotation) is not None:
        return _made_of(annotation, name, turn, whole=whole)
    if annotation is bool:
        return turn % 2 == 0
    if annotation is int:
        return _whole_number(name, turn, limits)
    if annotation is float:
        return _number(name, turn, limits)
    if annotation is str:
        text = PATTERNS[limits["pattern"]] if "pattern" in limits else f"{name}-{turn}"
        return text[: limits.get("max_length", 200)]
    if annotation is bytes:
        return b"\x00\xff" + name.encode() + bytes([turn])
    if annotation is Any:
        return {"text": name, "number": turn, "list": [1, 2.5, None, True]}
    raise TypeError(f"{name}: say here how a {annotation!r} is made")


def _made_of(annotation: Any, name: str, turn: int, *, whole: bool) -> Any:
    origin, inner = get_origin(annotation), _members(annotation)
    if origin is Literal:
        return inner[turn % len(inner)]
    if origin is tuple and Ellipsis in get_args(annotation):
        return tuple(_value(inner[0], name, turn + n, {}, whole=whole) for n in range(2))
    if origin is tuple:
        return tuple(_value(one, name, turn + n, {}, whole=whole) for n, one in enumerate(inner))
    if origin is list:
        return [_value(inner[0], name, turn + n, {}, whole=whole) for n in range(2)]
    if origin is dict:
        key, value = inner
        return {
            _value(key, f"{name}_key", turn + n, {}): _value(value, name, turn + n, {}, whole=whole)
            for n in range(2)
        }
    raise TypeError(f"{name}: say here how a {annotation!r} is made")


def _whole_number(name: str, turn: int, limits: Mapping[str, Any]) -> int:
    low = limits["ge"] if "ge" in limits else limits.get("gt", 0) + 1
    high = limits["le"] if "le" in limits else limits.get("lt", 1 << 62) - 1
    large = (1 << 33) if name.endswith("bytes") and high == (1 << 62) - 1 else 0
    return low + large + (crc32(name.encode()) + turn) % min(SPAN, high - low + 1)


def _number(name: str, turn: int, limits: Mapping[str, Any]) -> float:
    low = float(limits.get("ge", limits.get("gt", 0.0)))
    high = float(limits.get("le", limits.get("lt", low + 1024.0)))
    return low + (high - low) * ((crc32(name.encode()) + turn) % 15 + 1) / 16
