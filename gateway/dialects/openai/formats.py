"""The required form of an answer's text, under any of the field names that clients use.

Pure. OpenAI has `response_format`; vLLM has `structured_outputs` and, before it, `guided_json` and
others; llama.cpp's server has `json_schema`, `grammar` and a schema in `response_format`; SGLang
has `regex` and `ebnf`. Each field becomes an `OutputFormat`, which contains the field's name. A
body with two such fields is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bus.wire.errors import BadRequest
from bus.wire.messages.requests import OutputFormat
from gateway.dialects.body import bad_field, read_object
from gateway.dialects.dialect import Limits
from gateway.dialects.openai import bodies

LONGEST_SCHEMA_TEXT = 64 << 10
SETS_FORMAT = frozenset(
    ("response_format", "guided_json", "json_schema", "guided_regex", "regex", "guided_choice",
     "guided_grammar", "grammar", "ebnf", "structured_outputs")
)  # fmt: skip
"""Fields that set the form of the text."""
TEXT = OutputFormat()


def output_of(body: bodies.SharedBody, limits: Limits) -> OutputFormat:
    """Return the form of the text. Raises BadRequest if two fields set the form, and for an invalid
    schema."""
    formats = list(_formats_of(body, limits))
    if len(formats) > 1:
        first, second = formats[0].field, formats[1].field
        text = f"{first} and {second} both set the format of the answer; send one"
        raise BadRequest(text, field=second)
    return formats[0] if formats else TEXT


def _formats_of(body: bodies.SharedBody, limits: Limits) -> Iterator[OutputFormat]:
    """Yield the format that each field of the body requires; nothing for a field that requires
    none."""
    match body.response_format:
        case bodies.JsonObjectFormatBody(schema_=None):
            yield OutputFormat(kind="json_object")
        case bodies.JsonObjectFormatBody(schema_=dict(schema)):
            yield OutputFormat(kind="json_schema", json_schema=schema)
        case bodies.JsonSchemaFormatBody() as wanted:
            yield OutputFormat(kind="json_schema", json_schema=wanted.json_schema.schema_)
        case _:
            pass
    for field in ("guided_json", "json_schema"):
        yield from _schema(field, getattr(body, field), limits)
    for field in ("guided_regex", "regex"):
        yield from _rule("regex", field, getattr(body, field))
    yield from _choice("guided_choice", body.guided_choice)
    # llama.cpp's clients send an empty grammar for none
    for field, text in (
        ("guided_grammar", body.guided_grammar),
        ("grammar", body.grammar or None),
        ("ebnf", body.ebnf),
    ):
        yield from _rule("grammar", field, text)
    if body.structured_outputs is not None:
        yield from _structured(body.structured_outputs, limits)


def _structured(body: bodies.StructuredOutputsBody, limits: Limits) -> Iterator[OutputFormat]:
    within = "structured_outputs"
    if body.structural_tag is not None:
        raise bad_field(f"{within}.structural_tag", "is not supported; send a grammar instead")
    if body.whitespace_pattern is not None:
        raise bad_field(f"{within}.whitespace_pattern", "is not supported; omit it")
    for field in ("disable_any_whitespace", "disable_additional_properties"):
        if getattr(body, field):
            raise bad_field(f"{within}.{field}", "is not supported; omit it")
    yield from _schema(f"{within}.json", body.json_, limits)
    yield from _rule("regex", f"{within}.regex", body.regex)
    yield from _choice(f"{within}.choice", body.choice)
    yield from _rule("grammar", f"{within}.grammar", body.grammar)
    if body.json_object:
        yield OutputFormat(kind="json_object", field=f"{within}.json_object")


def _schema(
    field: str, schema: dict[str, Any] | str | None, limits: Limits
) -> Iterator[OutputFormat]:
    if schema is None:
        return
    if isinstance(schema, str):
        schema = _schema_text(field, schema, limits)
    yield OutputFormat(kind="json_schema", json_schema=schema, field=field)


def _schema_text(field: str, text: str, limits: Limits) -> dict[str, Any]:
    raw = text.encode("utf-8", "replace")
    if len(raw) > LONGEST_SCHEMA_TEXT:
        raise bad_field(field, f"a schema's text has at most {LONGEST_SCHEMA_TEXT:,} bytes")
    try:
        return read_object(raw, limits)
    except BadRequest as problem:
        reason = problem.message.replace("the request body", "the text")
        raise bad_field(field, f"must be a JSON schema: {reason}") from problem


def _rule(kind: Any, field: str, text: str | None) -> Iterator[OutputFormat]:
    if text is None:
        return
    if not text:
        raise bad_field(field, "must not be empty")
    yield OutputFormat(kind=kind, rule=text, field=field)


def _choice(field: str, choices: list[str] | None) -> Iterator[OutputFormat]:
    if choices is None:
        return
    if not any(choices):
        raise bad_field(field, "must have at least one text that is not empty")
    yield OutputFormat(kind="choice", choices=tuple(choices), field=field)
