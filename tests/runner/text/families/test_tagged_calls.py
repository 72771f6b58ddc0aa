"""A call between tags is a call, whatever its values are: no markup is told, no argument lost."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runner.text.families import LibraryMarks, Marks, Span, family_of
from runner.text.stops import automaton

FORMS = ("qwen3_coder", "minimax_m2", "glm47", "longcat")
SCHEMAS: dict[str, Any] = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "share": {"type": "number"},
    "is_on": {"type": "boolean"},
    "tags": {"type": "array"},
    "where": {"type": "object"},
    "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    "several": {"type": ["integer", "null"]},
    "one_of": {"enum": ["a", 2]},
    "unsaid": {},
    "true": True,
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "book", "parameters": {"type": "object", "properties": SCHEMAS}},
    }
]


def written(form: str, arguments: dict[str, str], *, ends: bool = True) -> str:
    """A call as models of this form write it; without `ends` the last tags are left out."""
    match form:
        case "qwen3_coder":
            inner = "".join(f"<parameter={n}>\n{v}\n</parameter>\n" for n, v in arguments.items())
            return f"\n<function=book>\n{inner}" + ("</function>\n" if ends else "")
        case "minimax_m2":
            inner = "".join(
                f'<parameter name="{n}">{v}</parameter>\n' for n, v in arguments.items()
            )
            return f'\n<invoke name="book">\n{inner}' + ("</invoke>\n" if ends else "")
        case _:
            tag = "longcat_arg" if form == "longcat" else "arg"
            return "book\n" + "".join(
                f"<{tag}_key>{n}</{tag}_key>\n<{tag}_value>{v}</{tag}_value>\n"
                for n, v in arguments.items()
            )


def read(form: str, inner: str, *, ends: bool = True) -> tuple[str, list[tuple[str, Any]]]:
    library = importlib.import_module(f"mlx_lm.tool_parsers.{form}")
    marks = Marks(library.tool_call_start, library.tool_call_end)
    family = family_of("", (), LibraryMarks(None, marks, form, library.parse_tool_call))
    reader = family.reader(
        TOOLS, reads_thinking=True, reads_tools=True, opening="text", stops=automaton(())
    )
    spans = [*reader.feed(marks.start + inner + (marks.end if ends else "")), *reader.flush()]
    said = "".join(one.text for one in spans if isinstance(one, Span))
    calls = [one for one in spans if not isinstance(one, Span)]
    return said, [(one.name or "", json.loads(one.arguments)) for one in calls]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("count", "2026-01-15", "2026-01-15"),
        ("count", "12345678901234567890", 12345678901234567890),
        ("count", "2.5", "2.5"),
        ("count", "many", "many"),
        ("share", "inf", "inf"),
        ("share", "0.5", 0.5),
        ("is_on", "perhaps", "perhaps"),
        ("is_on", "True", True),
        ("tags", "[1, 2", "[1, 2"),
        ("tags", "['a', 'b']", ["a", "b"]),
        ("where", '{"x": 1}', {"x": 1}),
        ("either", "7", 7),
        ("either", "seven", "seven"),
        ("several", "null", None),
        ("one_of", "2", 2),
        ("one_of", "a", "a"),
        ("true", "x y", "x y"),
        ("not_in_the_schema", "x", "x"),
        ("text", "2026", "2026"),
        ("text", '{"a": 1}', '{"a": 1}'),
    ],
)
def test_a_value_that_is_not_of_its_type_is_told_as_text(
    form: str, name: str, value: str, meant: Any
) -> None:
    found = read(form, written(form, {name: value, "unsaid": "kept"}))
    assert found == ("", [("book", {name: meant, "unsaid": "kept"})])


@pytest.mark.parametrize("form", FORMS)
def test_a_call_whose_last_tags_are_left_out_is_one(form: str) -> None:
    meant = ("", [("book", {"text": "a", "count": 1})])
    inner = written(form, {"text": "a", "count": "1"}, ends=False)
    assert read(form, inner) == meant
    assert read(form, inner, ends=False) == meant


@pytest.mark.parametrize(
    ("form", "inner"),
    [
        ("qwen3_coder", "<function=book><parameter=<parameter=count>1</parameter></function>"),
        (
            "muse_spark",
            '<atem:invoke name="book">">'
            '<atem:parameter name="count">1</atem:parameter></atem:invoke>',
        ),
        ("minicpm5", '"book"><param name="<param name="count">1</param>'),
        ("minicpm5", '"book">"><param name="count">1</param>'),
        ("minicpm5", '"<function name="<function name="book"><param name="count">1</param>'),
    ],
)
def test_half_a_tag_that_stands_twice_is_no_text_nor_is_an_end_behind_it(
    form: str, inner: str
) -> None:
    end = importlib.import_module(f"mlx_lm.tool_parsers.{form}").tool_call_end
    assert read(form, inner) == ("", [("book", {"count": 1})])
    assert read(form, inner + end) == ("", [("book", {"count": 1})])


TEXTS = st.text(alphabet=st.sampled_from("ab1-. {}[]\"'\\é\n\t"), min_size=1)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(FORMS), st.dictionaries(st.sampled_from([*SCHEMAS, "other"]), TEXTS))
@example("glm47", {"unsaid": "..."})
@example("glm47", {"unsaid": "1+2j"})
def test_no_argument_is_lost_and_no_markup_is_told(form: str, arguments: dict[str, str]) -> None:
    if not arguments:
        return
    said, [(name, found)] = read(form, written(form, arguments))
    assert (said, name, found.keys()) == ("", "book", arguments.keys())
    for argument, value in found.items():
        if isinstance(value, str):
            assert (
                value.strip() == arguments[argument].strip()
                or "'" in arguments[argument]
                or ('"' in arguments[argument])
            )
