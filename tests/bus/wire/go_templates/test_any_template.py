"""Whatever a template is, reading and running it ends: in text, or in words with a line."""

from __future__ import annotations

import datetime
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.wire.go_templates import GoTemplateError, parse_template, prompt_of
from bus.wire.go_templates.evaluate import TemplateRun
from bus.wire.go_templates.functions import ARITIES, functions_on
from bus.wire.go_templates.lexer import BLANKS
from bus.wire.go_templates.values import SHOWN_AT_MOST
from tests.harness.variants import mostly_proof

DAY = datetime.date(2026, 3, 1)
PIECES = st.sampled_from(
    [
        "{{", "}}", "{{- ", " -}}", "{{/*", "*/}}", "(", ")", "|", ",", ":=", "=", ".", "$", "$x",
        ".Messages", ".Content", ".Response", ".System", ".Prompt", ".Tools", ".Function", "$.Role",
        "if ", "else ", "end ", "range ", "with ", "define ", "template ", "block ", "break ",
        "continue ", "nil", "true", '"a"', "`b`", "'c'", "1", "-2", "3.5", "0x", '"%d %s"', '"\\',
        " ", "\n", "é", "\ud800", "\0", *(f"{name} " for name in ARITIES),
    ]
)  # fmt: skip
SOURCES = st.lists(PIECES, max_size=40).map("".join)
OPERANDS = st.sampled_from(
    [
        ".",
        ".Messages",
        ".System",
        ".Missing",
        "$",
        "1",
        "-1",
        "2.5",
        "true",
        '"é%d"',
        "nil",
        ".Tools",
    ]
)
CALLS = st.recursive(
    OPERANDS,
    lambda inner: st.tuples(st.sampled_from(sorted(ARITIES)), st.lists(inner, max_size=4)).map(
        lambda made: f"({' '.join((made[0], *made[1]))})"
    ),
    max_leaves=12,
)
TOLD: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "\ud800é"},
        {"role": "assistant", "content": "a", "reasoning_content": "t"},
    ],
    "tools": [{"function": {"name": "f", "parameters": {"type": "object"}}}],
}
TEXTS = st.text(st.characters(exclude_characters="{", codec="utf-8"), max_size=20)
BLANK = st.text(st.sampled_from(BLANKS), max_size=3)


def ended(source: str) -> str | None:
    """The prompt, None where it is refused; whatever else it may do fails the test."""
    try:
        return prompt_of(parse_template(source), TOLD, DAY)
    except GoTemplateError as refused:
        assert refused.line >= 1 and str(refused).startswith("line ")
        return None


@given(SOURCES)
def test_any_text_is_a_template_or_refused_in_words(source: str) -> None:
    ended(source)


@given(st.text(max_size=200).map(lambda text: "{{" + text))
def test_any_action_is_one_or_refused_in_words(source: str) -> None:
    ended(source)


@given(st.lists(CALLS, min_size=1, max_size=3))
def test_any_call_gives_a_value_or_is_refused_in_words(calls: list[str]) -> None:
    ended("{{ range .Messages }}{{ " + " | print ".join(calls) + " }}{{ end }}")


@given(TEXTS, BLANK, st.booleans(), st.booleans(), BLANK, TEXTS)
def test_an_action_trims_the_blanks_before_and_behind_it_where_it_says_so(
    before: str, first: str, trims_before: bool, trims_behind: bool, second: str, behind: str
) -> None:
    action = f"{{{{{'-' if trims_before else ''} `x` {'-' if trims_behind else ''}}}}}"
    parsed = parse_template(before + first + action + second + behind)
    made = TemplateRun(functions_on(DAY), {})
    made.run(parsed.body, {})
    left, right = before + first, second + behind
    left = left.rstrip(BLANKS) if trims_before else left
    right = right.lstrip(BLANKS) if trims_behind else right
    assert made.text == f"{left}x{right}"


@given(TEXTS)
def test_text_without_actions_stays_as_it_is(text: str) -> None:
    made = TemplateRun(functions_on(DAY), {})
    made.run(parse_template(text).body, {})
    assert made.text == text


HARD = [
    "{{" + " " * 65_000, "{{ " + "." * 65_000, "{{ .a" * 13_000, "{{/*" * 16_000, "{{ $" * 16_000,
    "{{ " + ".a" * 32_000 + " }}", "{{ print" + " 1" * 32_000 + " }}", "{{ `" + "\n" * 65_000,
    "{{ 1" + "e+1" * 20_000, "{{ '" + "\\'" * 32_000, '{{ "' + "\\" * 65_000, "{{ " + "a|" * 32_000,
    "{{- " * 16_000, "-}}" * 21_000, "{{ if 1 }}{{ else if 1 }}" * 2600, "{{ 1 }}" * 9_000,
]  # fmt: skip


def test_no_template_takes_long_to_be_read() -> None:
    for source in HARD:
        began = time.thread_time()
        ended(source)
        assert time.thread_time() - began < 1.0, source[:40]


GREEDY = [
    "{{ range 9999 }}{{ range 9999 }}{{ range 9999 }}{{ end }}{{ end }}{{ end }}",
    "{{ $x := `abcdefgh` }}{{ range 999 }}{{ $x = print $x $x }}{{ end }}",
    "{{ $x := `abcdefgh` }}{{ range 999 }}{{ $x = html $x `<<<<<<<<` $x }}{{ end }}",
    "{{ define `a` }}{{ template `a` . }}{{ template `a` . }}{{ end }}{{ template `a` . }}",
    "{{ define `a` }}{{ range 9 }}{{ template `a` . }}{{ end }}{{ end }}{{ template `a` }}",
    '{{ range 9999999 }}{{ printf "%9999d" 1 }}{{ end }}',
    "{{ range 9999 }}{{ json $.Messages }}{{ print $ }}{{ end }}" * 100,
    "{{ range $i, $e := 99999999 }}{{ end }}",
]


@pytest.mark.parametrize("source", mostly_proof(GREEDY, GREEDY[:4]), ids=lambda text: text[:40])
def test_no_template_runs_on_or_says_more_than_it_may(source: str) -> None:
    began = time.thread_time()
    text = ended(source)
    assert text is None or len(text) <= SHOWN_AT_MOST
    assert time.thread_time() - began < 20.0
