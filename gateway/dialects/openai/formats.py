"""What the text of an answer must be, by whichever of its names a client asks for that.

Pure. OpenAI has `response_format`; vLLM `structured_outputs` and, before it, `guided_json` and its
kin; llama.cpp's server `json_schema`, `grammar` and a schema in `response_format`; SGLang `regex`
and `ebnf`. They are one `OutputFormat`, which remembers the name, and two at a time are refused.
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


def output_of(asked: bodies.SharedBody, limits: Limits) -> OutputFormat:
    """Return what the text must be. BadRequest for two ways of saying so, and for a schema's text
    that is none."""
    found = list(_asked(asked, limits))
    if len(found) > 1:
        first, second = found[0].field, found[1].field
        raise BadRequest(
            f"{first} and {second} both say what the text must be; send one", field=second
        )
    return found[0] if found else OutputFormat()


def _asked(asked: bodies.SharedBody, limits: Limits) -> Iterator[OutputFormat]:
    """Yield each thing that the text must be."""
    match asked.response_format:
        case bodies.JsonObjectFormatBody(schema_=None):
            yield OutputFormat(kind="json_object")
        case bodies.JsonObjectFormatBody(schema_=dict(schema)):
            yield OutputFormat(kind="json_schema", json_schema=schema)
        case bodies.JsonSchemaFormatBody() as wanted:
            yield OutputFormat(kind="json_schema", json_schema=wanted.json_schema.schema_)
        case _:
            pass
    for field in ("guided_json", "json_schema"):
        yield from _schema(field, getattr(asked, field), limits)
    for field in ("guided_regex", "regex"):
        yield from _rule("regex", field, getattr(asked, field))
    yield from _choice("guided_choice", asked.guided_choice)
    # llama.cpp's clients send an empty grammar for none
    for field, text in (
        ("guided_grammar", asked.guided_grammar),
        ("grammar", asked.grammar or None),
        ("ebnf", asked.ebnf),
    ):
        yield from _rule("grammar", field, text)
    if asked.structured_outputs is not None:
        yield from _structured(asked.structured_outputs, limits)


def _structured(wanted: bodies.StructuredOutputsBody, limits: Limits) -> Iterator[OutputFormat]:
    within = "structured_outputs"
    if wanted.structural_tag is not None:
        raise bad_field(f"{within}.structural_tag", "is not offered here; send a grammar instead")
    if wanted.whitespace_pattern is not None:
        raise bad_field(f"{within}.whitespace_pattern", "is not offered here; leave it out")
    for field in ("disable_any_whitespace", "disable_additional_properties"):
        if getattr(wanted, field):
            raise bad_field(f"{within}.{field}", "is not offered here; leave it out")
    yield from _schema(f"{within}.json", wanted.json_, limits)
    yield from _rule("regex", f"{within}.regex", wanted.regex)
    yield from _choice(f"{within}.choice", wanted.choice)
    yield from _rule("grammar", f"{within}.grammar", wanted.grammar)
    if wanted.json_object:
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
        raise bad_field(field, f"at most {LONGEST_SCHEMA_TEXT:,} bytes of a schema's text")
    try:
        return read_object(raw, limits)
    except BadRequest as problem:
        said = problem.message.replace("the request body", "the text")
        raise bad_field(field, f"must be a JSON schema: {said}") from problem


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
        raise bad_field(field, "must have a text that is not empty")
    yield OutputFormat(kind="choice", choices=tuple(choices), field=field)
