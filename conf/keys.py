"""Dotted keys of settings, such as `runner.max_rows`.

Pure. This module converts the keys from and to nested tables and environment variables, and finds
their lines in a settings file. For an unknown key it suggests a similar one.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any, cast

from pydantic import BaseModel

from conf.collectors import OWN_FILES, REMOVED

PREFIX = "SHOAL_"
"""Environment variables with this prefix are settings."""


def similar_key(
    key: str, top_level: Collection[str], tables: Mapping[str, type[BaseModel]]
) -> str | None:
    """Return the setting that is most similar to an unknown dotted key; None if none is similar.
    Settings in the same table are preferred. `top_level` are the keys outside of `tables`."""
    table, _, name = key.rpartition(".")
    near = nearest_name(name, tables[table].model_fields if table in tables else top_level)
    if near is not None:
        return f"{table}.{near}" if table in tables else near
    return nearest_name(key, {f"{t}.{name}" for t in tables for name in tables[t].model_fields})


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one flat mapping from dotted keys to values."""
    by_key: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            by_key.update(flat(cast(dict[str, Any], value), f"{prefix}{key}."))
        else:
            by_key[prefix + key] = value
    return by_key


def nested(by_key: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted key as nested tables: the inverse of `flat`."""
    tables: dict[str, Any] = {}
    for key, value in by_key.items():
        put(tables, key, value)
    return tables


def put(table: dict[str, Any], key: str, value: Any) -> None:
    """Set a value by its dotted key; create missing tables."""
    *tables, name = key.split(".")
    for word in tables:
        if not isinstance(table.get(word), dict):
            table[word] = {}
        table = table[word]
    table[name] = value


def not_a_setting(key: str, shown: str, hint: str | None) -> str:
    """Return the message that refuses an unknown dotted key. `shown` is the key in the user's form,
    `hint` a similar key."""
    if removal := REMOVED.get(key.partition(".")[0]):
        return f"{shown} was removed: {removal}"
    if file := OWN_FILES.get(key.partition(".")[0]):
        return f"{shown} is not a setting: it belongs in {file}, next to shoal.toml"
    return f"{shown} is not a setting" + (f"; did you mean {hint}?" if hint else "")


def nearest_name(name: str, names: Collection[str]) -> str | None:
    """Return the name in `names` that is most similar to `name`; None if none is similar."""
    return next(iter(difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.6)), None)


def variable_of(key: str) -> str:
    """Return the name of the environment variable that sets a dotted key."""
    return PREFIX + key.replace(".", "__").upper()


def environment_of(flags: Mapping[str, Any]) -> dict[str, str]:
    """Return flags, by dotted key, as environment variables."""
    lists: dict[str, Any] = {k: v if isinstance(v, list | tuple) else [v] for k, v in flags.items()}
    return {variable_of(key): ",".join(map(str, many)) for key, many in lists.items()}


def line_of(text: str, key: str) -> int | None:
    """Return the number of the line that sets a dotted key, from 1; None if no line does."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        word, is_set, _ = line.partition("=")
        if line.startswith("["):
            word = table = line.partition("#")[0].strip("[] ")
        elif is_set and table:
            word = f"{table}.{word}"
        if word.strip() == key:
            return number
    return None
