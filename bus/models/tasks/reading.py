"""Reads the files that an operator writes next to `shoal.toml`. An error names the line; for an
unknown key it suggests a similar one.

Pure. A file is accepted or refused as a whole.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bus.wire.errors import ConfigError, problem_text

MOST_BYTES = 256 << 10
MOST_SECONDS = 7 * 24 * 3600.0
Seconds = Annotated[float, Field(strict=True, ge=0.0, le=MOST_SECONDS, allow_inf_nan=False)]
_STEP = re.compile(r"""\"[^\"]*\"|'[^']*'|[^.\s]+""")
Wrong = tuple[list[str], str]
"""The path of a key, and the fault."""


class FileTable(BaseModel):
    """A table of a TOML file that an operator writes, such as `tasks.toml`. A key that is not a
    field of the table is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Read = TypeVar("Read", bound=FileTable)


def read_table(
    file: str, kind: type[Read], unsound: Callable[[Read], Iterator[Wrong]], text: str
) -> Read:
    """Parse the text of a file as `kind`. `unsound` yields faults beyond the types of the values.
    Raises ConfigError with the line."""
    if len(text.encode()) > MOST_BYTES:
        raise ConfigError(f"{file} is too large; the limit is {MOST_BYTES >> 10} KiB")
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None
    try:
        table = kind.model_validate(document)
    except ValidationError as error:
        raise ConfigError(_explained(file, kind, error, text)) from None
    for path, wrong in unsound(table):
        raise ConfigError(f"{_place(file, text, path)}: {'.'.join(path)}: {wrong}")
    return table


def _explained(file: str, kind: type[FileTable], error: ValidationError, text: str) -> str:
    details = error.errors(include_url=False)
    # A misspelt key is also a missing key; the misspelt one says more.
    unknown = (detail for detail in details if detail["type"] == "extra_forbidden")
    detail = next(unknown, details[0])
    path = [str(step) for step in detail["loc"] if isinstance(step, str)]
    where, key = _place(file, text, path), ".".join(path)
    if detail["type"] == "extra_forbidden":
        keys = _keys_at(kind, path)
        near = difflib.get_close_matches(path[-1], keys, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the known keys are {', '.join(keys)}"
        return f"{where}: unknown key {key}; {hint}"
    if detail["type"] == "missing":
        return f"{where}: {key} is missing"
    message = problem_text(detail)
    return f"{where}: {key}: {message}" if key else f"{where}: {message}"


def _place(file: str, text: str, path: list[str]) -> str:
    line = line_of(text, path)
    return f"{file}, line {line}" if line else file


def _keys_at(kind: type[FileTable], path: list[str]) -> list[str]:
    """Return the valid keys of the table in which the last key of `path` stands. That table is the
    file itself, or one of its named tables."""
    field = kind.model_fields.get(path[0]) if len(path) > 2 else None
    return list((kind if field is None else _of_named(field.annotation)).model_fields)


def _of_named(annotation: Any) -> type[FileTable]:
    """Return the value type of a `dict[str, ...]`."""
    assert get_origin(annotation) is dict
    return get_args(annotation)[1]


def line_of(text: str, path: list[str]) -> int | None:
    """Return the number of the line that sets the key at `path`. If no line sets it, return the
    line of the nearest table that contains it; None if there is no such table either."""
    table: list[str] = []
    nearest: tuple[int, int] = (0, 0)
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if bare.startswith("["):
            steps = table = _steps(bare.partition("#")[0].strip("[] "))
        elif "=" in bare and not bare.startswith("#"):
            steps = [*table, *_steps(bare.partition("=")[0])]
        else:
            continue
        alike = min(len(steps), len(path))
        if steps[:alike] == path[:alike] and alike > nearest[0]:
            nearest = (alike, number)
    return nearest[1] or None


def _steps(dotted: str) -> list[str]:
    return [step.strip("\"'") for step in _STEP.findall(dotted)]
