"""Sets and unsets settings in the text of a TOML file; comments, order and blank lines stay.

Pure. To set a commented-out setting, its line is uncommented. To unset a setting, its line is
commented out and shows the default. If such an edit fails, tomlkit inserts or removes the line. The
result is always parsed again, to check that only the wanted settings have changed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, cast

import tomlkit
from tomlkit.exceptions import TOMLKitError

from bus.wire.errors import ConfigError
from conf.keys import flat, line_of, nearest_name, not_a_setting
from conf.sections import TABLES, words


def check_known(key: str, defaults: Mapping[str, Any]) -> None:
    """Raise ConfigError for an unknown dotted key; the error suggests a similar one."""
    if key in defaults:
        return
    if key in TABLES:
        raise ConfigError(f"{key} is a table; name one of its settings, as in {key}.NAME")
    raise ConfigError(not_a_setting(key, key, nearest_name(key, set(defaults))))


def typed(key: str, value: Any, default: Any) -> Any:
    """Return a setting's value in TOML's type, from a user's text or a JSON value. Raises
    ConfigError for a value of another type. Limits are not checked here."""
    if isinstance(default, str):
        return value  # some also accept a number or a boolean; Settings checks them
    if isinstance(default, list):
        try:
            entries = words(value)
        except ValueError as error:
            raise ConfigError(f"{key} = {value!r}: {error}") from None
        return _list(key, entries)
    parsed = _of_text(value)
    if isinstance(default, bool):
        is_right, kind = isinstance(parsed, bool), "true or false"
    elif isinstance(default, int):
        is_right, kind = isinstance(parsed, int) and not isinstance(parsed, bool), "a whole number"
    else:
        is_right = isinstance(parsed, int | float) and not isinstance(parsed, bool)
        parsed, kind = float(parsed) if is_right else parsed, "a number"
    if not is_right:
        raise ConfigError(f"{key} = {value!r}: this must be {kind}")
    return parsed


def _of_text(value: Any) -> Any:
    """Return the number or boolean that a string contains; return any other value unchanged."""
    if not isinstance(value, str):
        return value
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return value
    return parsed if isinstance(parsed, bool | int | float) else value


def _list(key: str, value: Any) -> list[str]:
    items = list(cast(Sequence[Any], value)) if isinstance(value, list | tuple) else [None]
    if not all(isinstance(item, str) for item in items):
        raise ConfigError(f"{key} = {value!r}: this must be a list of words")
    return cast(list[str], items)


def changed(
    text: str, put: Mapping[str, Any], drop: Sequence[str], defaults: Mapping[str, Any]
) -> str:
    """Return `text` with the settings of `put` set and the settings of `drop` unset.

    Both use dotted keys; values have TOML's types. `defaults` has every setting. Raises ConfigError
    if the text is not TOML, or cannot be edited.
    """
    try:
        expected = flat(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(error)) from error
    for key, value in put.items():
        expected[key] = value
        text = _checked(
            (_set(_uncommented(text, key), key, value), _set(text, key, value)), expected
        )
    for key in drop:
        if expected.pop(key, None) is not None:
            text = _checked(
                (_commented_out(text, key, defaults[key]), _removed(text, key)), expected
            )
    return text


def _checked(texts: Sequence[str], expected: Mapping[str, Any]) -> str:
    """Return the first of `texts` that, parsed as TOML, has the `expected` values. Raises
    ConfigError if none has."""
    for text in texts:
        try:
            if flat(tomllib.loads(text)) == expected:
                return text
        except tomllib.TOMLDecodeError:
            continue
    raise ConfigError("shoal cannot edit this file without changing its layout; edit it by hand")


def _set(text: str, key: str, value: Any) -> str:
    try:
        document = tomlkit.parse(text)
        *tables, name = key.split(".")
        table: Any = document
        for word in tables:
            if word not in table:
                table[word] = tomlkit.table()
            table = table[word]
        table[name] = value
        return tomlkit.dumps(document)
    except (TOMLKitError, TypeError):
        return ""


def _removed(text: str, key: str) -> str:
    try:
        document = tomlkit.parse(text)
        *tables, name = key.split(".")
        table: Any = document
        for word in tables:
            table = table[word]
        del table[name]
        return tomlkit.dumps(document)
    except (TOMLKitError, TypeError, KeyError):
        return ""


def _uncommented(text: str, key: str) -> str:
    """Return the text with the commented-out line of a setting replaced by `NAME = 0`; the caller
    then sets the value. The text is unchanged if the setting's table has no such line, or if the
    setting is already set."""
    if key in flat(tomllib.loads(text)):
        return text
    table, _, name = key.rpartition(".")
    lines, inside = text.split("\n"), ""
    for at, line in enumerate(lines):
        if line.startswith("["):
            inside = line.partition("#")[0].strip("[] ")
        elif inside == table and line.startswith((f"#{name} =", f"#{name}=")):
            lines[at] = f"{name} = 0"
            return "\n".join(lines)
    return text


def _commented_out(text: str, key: str, default: Any) -> str:
    fresh = _set(text, key, default)
    number = line_of(fresh, key)
    if number is None:
        return ""
    lines = fresh.split("\n")
    lines[number - 1] = "#" + lines[number - 1]
    return "\n".join(lines)
