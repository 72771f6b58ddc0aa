"""Every name by which clients of OpenAI's dialect, and of servers that speak it, ask for a form.

For each: what is sent, what it is read as, and a check, by Python's own means, that a text keeps
to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bus.wire.messages.requests import OutputFormat

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "mood": {"enum": ["calm", "storm"]},
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["mood", "n"],
    "additionalProperties": False,
}
PATTERN = r"[A-Z][a-z]{2,8} has [1-9][0-9]{0,2} (red|blue) fish\."
CHOICES = ["red fish", "blue fish", "blue", 'the "old" boat / ü']
GRAMMAR = r"""# two or three lines, one of them with a number
root ::= line{1,2} last | "none"
line ::= word (" " word)? "\n"   # a word or two
word ::= [a-z]{1,6}
last ::= [\x30-\u0039]{1,4} "é"
  | "\"" [^"\\\n] "\""
"""
SAME_GRAMMAR = re.compile(r'(?:[a-z]{1,6}(?: [a-z]{1,6})?\n){1,2}(?:[0-9]{1,4}é|"[^"\\\n]")|none')
"""What `GRAMMAR` allows, as a regular expression."""


@dataclass(frozen=True)
class TextForm:
    """One way to ask for a form, and whether a text keeps to it."""

    sent: dict[str, Any]
    output: OutputFormat
    fits: Callable[[str], bool]

    @property
    def name(self) -> str:
        """The field, or the field and the one in it."""
        return self.output.field


def fits_schema(text: str) -> bool:
    """Whether a text is JSON that obeys `SCHEMA`."""
    value = json.loads(text)
    return (
        set(value) == {"mood", "n"}
        and value["mood"] in ("calm", "storm")
        and type(value["n"]) is int
        and 0 <= value["n"] <= 99
    )


def is_object(text: str) -> bool:
    """Whether a text is an object in JSON."""
    return isinstance(json.loads(text), dict)


def _schema(sent: dict[str, Any], field: str) -> TextForm:
    output = OutputFormat(kind="json_schema", json_schema=SCHEMA, field=field)
    return TextForm(sent, output, fits_schema)


def _pattern(sent: dict[str, Any], field: str) -> TextForm:
    output = OutputFormat(kind="regex", rule=PATTERN, field=field)
    return TextForm(sent, output, lambda text: re.fullmatch(PATTERN, text) is not None)


def _choice(sent: dict[str, Any], field: str) -> TextForm:
    output = OutputFormat(kind="choice", choices=tuple(CHOICES), field=field)
    return TextForm(sent, output, CHOICES.__contains__)


def _grammar(sent: dict[str, Any], field: str) -> TextForm:
    output = OutputFormat(kind="grammar", rule=GRAMMAR, field=field)
    return TextForm(sent, output, lambda text: SAME_GRAMMAR.fullmatch(text) is not None)


def _within(**wanted: Any) -> dict[str, Any]:
    return {"structured_outputs": wanted}


FORMS: tuple[TextForm, ...] = (
    _schema({"response_format": {"type": "json_object", "schema": SCHEMA}}, "response_format"),
    _schema({"guided_json": SCHEMA}, "guided_json"),
    _schema({"json_schema": json.dumps(SCHEMA)}, "json_schema"),
    _schema(_within(json=SCHEMA), "structured_outputs.json"),
    _pattern({"guided_regex": PATTERN}, "guided_regex"),
    _pattern({"regex": PATTERN}, "regex"),
    _pattern(_within(regex=PATTERN), "structured_outputs.regex"),
    _choice({"guided_choice": CHOICES}, "guided_choice"),
    _choice(_within(choice=CHOICES), "structured_outputs.choice"),
    _grammar({"guided_grammar": GRAMMAR}, "guided_grammar"),
    _grammar({"grammar": GRAMMAR}, "grammar"),
    _grammar({"ebnf": GRAMMAR}, "ebnf"),
    _grammar(_within(grammar=GRAMMAR), "structured_outputs.grammar"),
    TextForm(
        _within(json_object=True),
        OutputFormat(kind="json_object", field="structured_outputs.json_object"),
        is_object,
    ),
)
FORM_FIELDS = frozenset(name for form in FORMS for name in form.sent)
