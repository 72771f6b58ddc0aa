"""A file of settings as text, with some of them set or unset: comments, order and blank lines stay.

Pure. A setting that stands commented out in its table is set there; one that is unset is commented
out with its default. What cannot be done so is done by tomlkit alone, and the outcome is read again
in any case: it says what it said before, and the changes.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, cast

import tomlkit
from tomlkit.exceptions import TOMLKitError

from bus.wire.errors import ConfigError
from conf.sections import TABLES, flat, line_of, meant, not_a_setting, words


def check_known(key: str, defaults: Mapping[str, Any]) -> None:
    """Raise ConfigError for a key that is no setting, with the one that may be meant."""
    if key in defaults:
        return
    if key in TABLES:
        raise ConfigError(f"{key} is a table; name one of its settings, as in {key}.NAME")
    raise ConfigError(not_a_setting(key, key, meant(key, set(defaults))))


def typed(key: str, value: Any, default: Any) -> Any:
    """Return a setting's value as TOML has it, from what a person wrote or JSON holds. Raises
    ConfigError for another kind of value; whether it is in its limits is not asked here."""
    if isinstance(default, str):
        return value  # some take a number or a truth as well, which the settings judge
    if isinstance(default, list):
        try:
            found = words(value)
        except ValueError as error:
            raise ConfigError(f"{key} = {value!r}: {error}") from None
        return _list(key, found)
    found = _of_text(value)
    if isinstance(default, bool):
        is_right, kind = isinstance(found, bool), "true or false"
    elif isinstance(default, int):
        is_right, kind = isinstance(found, int) and not isinstance(found, bool), "a whole number"
    else:
        is_right = isinstance(found, int | float) and not isinstance(found, bool)
        found, kind = float(found) if is_right else found, "a number"
    if not is_right:
        raise ConfigError(f"{key} = {value!r}: this must be {kind}")
    return found


def _of_text(value: Any) -> Any:
    """Return a number or a truth from its text; other text as it is."""
    if not isinstance(value, str):
        return value
    try:
        found = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return value
    return found if isinstance(found, bool | int | float) else value


def _list(key: str, value: Any) -> list[str]:
    items = list(cast(Sequence[Any], value)) if isinstance(value, list | tuple) else [None]
    if not all(isinstance(item, str) for item in items):
        raise ConfigError(f"{key} = {value!r}: this must be a list of words")
    return cast(list[str], items)


def changed(
    text: str, put: Mapping[str, Any], drop: Sequence[str], defaults: Mapping[str, Any]
) -> str:
    """Return `text` with the settings of `put` set and those of `drop` unset, by dotted key; values
    as TOML has them. `defaults` has every setting. Raises ConfigError where the text is no TOML."""
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
    """Return the first text that says what is expected. Raises ConfigError."""
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
    """Return the text with the line of a setting that is commented out in its table made one that
    sets it; as it is where there is none, or the setting is set."""
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
