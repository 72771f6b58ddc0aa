"""Make docs/settings.schema.json and docs/settings.example.toml from the settings.

Types, ranges and choices come from `conf/settings.py` and `conf/sections.py`; meanings and defaults
from `conf/default.toml`. The schema is draft 7, which taplo (Even Better TOML) reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from conf.changing.described import commented, descriptions
from conf.changing.file import defaults
from conf.settings import DEFAULTS_FILE, Settings

DOCS = Path(__file__).resolve().parents[2] / "docs"
SCHEMA, EXAMPLE = DOCS / "settings.schema.json", DOCS / "settings.example.toml"
ABOUT = (
    "The settings of a shoal node (shoal.toml). Made by `make docs`. The schema checks names, "
    "types, ranges and choices; `shoal up` and `shoal config edit` also check paths, "
    "addresses and host names."
)
FIRST_LINE = f"#:schema ./{SCHEMA.name}\n"
"""Where taplo finds the schema, seen from docs/."""


def schema() -> str:
    """Return the JSON schema of `shoal.toml`; every setting is optional."""
    made = Settings.model_json_schema()
    made = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "shoal.toml",
        "description": ABOUT,
        **_table(made, made["$defs"], ""),
    }
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


def example() -> str:
    """Return the file that `shoal up` writes, with the schema's path on its first line."""
    return FIRST_LINE + commented(DEFAULTS_FILE.read_text())


def _table(made: Mapping[str, Any], tables: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the schema of one table: its settings in order, with meaning and default."""
    meanings, standard = descriptions(DEFAULTS_FILE.read_text()), defaults()
    properties: dict[str, Any] = {}
    for name, field in cast(dict[str, dict[str, Any]], made["properties"]).items():
        key = prefix + name
        if "$ref" in field:
            inner = tables[field["$ref"].rpartition("/")[2]]
            properties[name] = _table(inner, tables, f"{key}.")
            continue
        kind = {word: value for word, value in field.items() if word != "title"}
        properties[name] = {"description": meanings[key], **kind, "default": standard[key]}
    return {"type": "object", "additionalProperties": False, "properties": properties}
