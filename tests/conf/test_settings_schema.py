"""The schema of shoal.toml accepts the defaults and refuses what shoal refuses."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from jsonschema import Draft7Validator

from conf.keys import flat, nested
from conf.settings import DEFAULTS_FILE
from tests.harness.settings_schema import DOCS, EXAMPLE, FIRST_LINE, SCHEMA, schema

VALIDATOR = Draft7Validator(json.loads(schema()))
DEFAULTS = flat(tomllib.loads(DEFAULTS_FILE.read_text()))


def faults(values: dict[str, Any]) -> list[str]:
    """Return what the schema finds wrong with settings by dotted key."""
    return [error.message for error in VALIDATOR.iter_errors(nested(values))]


def test_the_schema_itself_is_sound() -> None:
    Draft7Validator.check_schema(VALIDATOR.schema)


def test_the_defaults_are_valid() -> None:
    assert faults(DEFAULTS) == []


@pytest.mark.parametrize("key", sorted(DEFAULTS))
def test_every_setting_refuses_a_wrong_type(key: str) -> None:
    assert faults({key: {"a": "table"}}), key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("slots", 0),
        ("http_port", 65536),
        ("settle_grace_s", 34.9),
        ("log_level", "loud"),
        ("runner.parity", "exakt"),
        ("runner.kv", "window:15"),
        ("runner.prefill_share", 1.0),
        ("cluster.discovery", "always"),
        ("preload", "default"),
        ("slot", 3),
        ("runner.max_row", 3),
    ],
)
def test_a_wrong_value_or_name_is_refused(key: str, value: Any) -> None:
    assert faults({key: value}), (key, value)


def test_the_example_names_the_schema_where_an_editor_looks_for_it() -> None:
    first, *_ = EXAMPLE.read_text().splitlines()
    assert first == FIRST_LINE.strip()
    assert (DOCS / first.removeprefix("#:schema ")).resolve() == SCHEMA


def test_the_example_explains_every_setting_and_sets_none() -> None:
    text = EXAMPLE.read_text().removeprefix(FIRST_LINE)
    assert tomllib.loads(text).keys() == {key.split(".")[0] for key in DEFAULTS if "." in key}
    assert flat(tomllib.loads(text)) == {}
    shown = "\n".join(
        line.removeprefix("#") if not line.startswith("# ") else line for line in text.splitlines()
    )
    assert flat(tomllib.loads(shown)) == DEFAULTS
