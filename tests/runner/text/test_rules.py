"""Texts held to regular expressions, lists of texts and grammars in GBNF, and what is refused."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bus.wire.errors import BadRequest
from bus.wire.messages.requests import OutputFormat, ToolSpec
from runner.engine import GrammarSpec
from runner.text.families import Marks
from runner.text.families.call_forms import call_form
from runner.text.grammar import Calls, Grammars, ThinkFirst, open_matcher
from runner.text.grammar.gbnf import PARTS_AT_MOST, GbnfError, is_gbnf, lark_of
from tests.harness.text_forms import FORMS, TextForm
from tests.harness.toy_tokenizer import random_output, toy_tokenizer

TOKENIZER = toy_tokenizer()
GRAMMARS = Grammars(TOKENIZER.guide, TOKENIZER.added_ids)
THINK = Marks("<think>", "</think>")
CALLS = Marks("<tool_call>", "</tool_call>")
FORM = call_form("json_tools", CALLS, "")
assert FORM is not None


def spec_of(form: OutputFormat, **more: Any) -> GrammarSpec:
    spec = GRAMMARS.output(form, **{"think": None, "calls": None, **more})
    assert spec is not None
    return spec


def grammar(text: str) -> OutputFormat:
    return OutputFormat(kind="grammar", rule=text, field="guided_grammar")


def allows(spec: GrammarSpec, text: str) -> bool:
    """Whether the text is a whole one under the grammar."""
    matcher = open_matcher(TOKENIZER.guide, spec)
    tokens = TOKENIZER.encode(text)
    return matcher.validate_tokens(tokens) == len(tokens) and (
        matcher.consume_tokens(tokens) and matcher.is_accepting()
    )


def walk(spec: GrammarSpec, seed: int) -> str | None:
    """A random output under the grammar."""
    return random_output(TOKENIZER, spec, seed, limit=300)


@pytest.mark.parametrize("form", FORMS, ids=[form.name for form in FORMS])
def test_what_random_tokens_say_under_a_form_keeps_to_it(form: TextForm) -> None:
    spec = spec_of(form.output)
    said = [text for seed in range(12) if (text := walk(spec, seed)) is not None]
    assert len(said) >= 3
    assert all(form.fits(text) for text in said), said
    if form.output.kind != "json_object":
        assert len(set(said)) > 1


# --- GBNF -----------------------------------------------------------------------------------------

SAME: list[tuple[str, str, tuple[str, ...]]] = [
    ('root ::= [a-c]+ "abc"', "[a-c]+abc", ("abc", "cabc", "abcabc", "ab", "abcab")),
    ('root ::= ("a" | "ab") ("c" | "bcd")', "(a|ab)(c|bcd)", ("ac", "abc", "abcd", "abbcd", "a")),
    ('root ::= "a"? "b"* "c"+ "d"{2} "e"{1,} "f"{0,2}', "a?b*c+d{2}e{1,}f{0,2}",
     ("cdde", "abbccddeeff", "cddefff", "cde")),
    ("root ::= .\n", "(?s:.)", ("\n", "é", "ab", "")),
    ("root ::= [^]", "(?s:.)", ("\n", "🐟")),
    (r'root ::= [^a\]\n-] "\x41\u00e9\U0001F41F"', "[^a\\]\n-]Aé🐟", ("bAé🐟", "]Aé🐟", "-Aé🐟")),
    (r'root ::= [a-] [\-x] "\\\"\t"', '[a-][-x]\\\\"\t', ('--\\"\t', 'ax\\"\t', 'b-\\"\t')),
    ('root ::=\n  ( # one\n "a"\n | b )\nb ::= | "b"', "a?|b", ("", "a", "b", "ab")),
    ('x-1 ::= "x"\nroot ::= x-1 start\nstart ::= "s"', "xs", ("xs", "x")),
    ('root ::= "yes"{3}', "(yes){3}", ("yesyesyes", "yesss", "yesyes")),
    ('root ::= "a"\r\n  | "b"\r\n\r\n# end', "a|b", ("a", "b", "ab")),
    ('root ::= ""', "", ("", "a")),
]  # fmt: skip


@pytest.mark.parametrize(("text", "pattern", "samples"), SAME, ids=[row[0][:30] for row in SAME])
def test_gbnf_allows_exactly_what_it_says(
    text: str, pattern: str, samples: tuple[str, ...]
) -> None:
    assert is_gbnf(text)
    spec = spec_of(grammar(text))
    for sample in samples:
        assert allows(spec, sample) is (re.fullmatch(pattern, sample) is not None), sample


def test_gbnf_knows_what_no_regular_expression_does() -> None:
    spec = spec_of(grammar('root ::= "(" root ")" | root root | "x"'))
    for text, right in (("x", True), ("((x)x)", True), ("(x", False), ("x)", False)):
        assert allows(spec, text) is right


PARTS = st.recursive(
    st.sampled_from(["a", "b", "ab", "[ab]", "[^a]", "c"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda two: ("seq", *two)),
        st.tuples(inner, inner).map(lambda two: ("or", *two)),
        st.tuples(inner, st.sampled_from(["?", "*", "+", "{2}", "{1,2}"])).map(
            lambda two: ("times", *two)
        ),
    ),
    max_leaves=6,
)


def as_gbnf(part: Any) -> str:
    match part:
        case ("seq", left, right):
            return f"{as_gbnf(left)} {as_gbnf(right)}"
        case ("or", left, right):
            return f"({as_gbnf(left)} | {as_gbnf(right)})"
        case ("times", inner, times):
            return f"({as_gbnf(inner)}){times}"
        case _:
            return part if part[0] == "[" else f'"{part}"'


def as_pattern(part: Any) -> str:
    match part:
        case ("seq", left, right):
            return f"{as_pattern(left)}{as_pattern(right)}"
        case ("or", left, right):
            return f"(?:{as_pattern(left)}|{as_pattern(right)})"
        case ("times", inner, times):
            return f"(?:{as_pattern(inner)}){times}"
        case _:
            return part


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(PARTS, st.lists(st.text("abc", max_size=6), min_size=1, max_size=8))
def test_gbnf_and_a_regular_expression_of_the_same_parts_allow_the_same(
    parts: Any, samples: list[str]
) -> None:
    spec = spec_of(grammar(f"root ::= {as_gbnf(parts)}"))
    pattern = as_pattern(parts)
    for sample in ("", *samples):
        assert allows(spec, sample) is (re.fullmatch(pattern, sample) is not None), sample


WRONG = [
    ('root ::= "a', "line 1"),
    ('root ::= "a"\nx ::= [a', "line 2"),
    ('root ::= ("a"', "')'"),
    ('root ::= "a")', "the end of the line"),
    ("root ::= x", "rule 'x' is not defined"),
    ('x ::= "a"', "rule 'root' is not defined"),
    ('root ::= "a"\nroot ::= "b"', "twice"),
    ('root ::= "a"{2', "{m,n}"),
    ('root ::= "a"{3,2}', "{m,n}"),
    ('root ::= "a"{999999}', "at most"),
    ("root ::= [z-a]", "ends before it begins"),
    ("root ::= []", "matches nothing"),
    (r'root ::= "\d"', "unknown escape"),
    (r'root ::= "\x4"', "unknown escape"),
    (r'root ::= "\ud800"', "is not a Unicode character"),
    (r'root ::= "\UFFFFFFFF"', "is not a Unicode character"),
    ("root ::= <think>", "expected "),
    ('root ::= !"a"', "expected "),
    ('root ::= "' + "a" * 10_001 + '"', "too many"),
    ("root ::= " + "(" * 60 + '"a"' + ")" * 60, "nested too deep"),
    ("\n".join(f'r{i} ::= "a"' for i in range(PARTS_AT_MOST)) + "\nroot ::= r0", "too many"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), WRONG, ids=[row[0][:24] for row in WRONG])
def test_what_is_no_gbnf_is_refused_with_the_place(text: str, words: str) -> None:
    with pytest.raises(GbnfError, match=re.escape(words)):
        lark_of(text)
    with pytest.raises(BadRequest, match=re.escape(words)) as refused:
        GRAMMARS.output(grammar(text), think=None, calls=None)
    assert refused.value.field == "guided_grammar"


# --- what cannot be held --------------------------------------------------------------------------

NEVER = [
    (grammar("root ::= root"), "no text"),
    (grammar('root ::= "a" root'), "cannot be enforced"),
    (grammar("start: /a/"), "GBNF"),
    (OutputFormat(kind="grammar", rule="x" * 70_000, field="ebnf"), "too large"),
    (OutputFormat(kind="regex", rule="(", field="regex"), "cannot be enforced"),
    (OutputFormat(kind="regex", rule=r"\bword\b", field="regex"), "cannot be enforced"),
    (OutputFormat(kind="regex", rule="(?=a)b", field="regex"), "cannot be enforced"),
    (OutputFormat(kind="regex", rule="(" * 30_000 + ")" * 30_000, field="regex"), "enforced"),
    (OutputFormat(kind="regex", rule="\ud800", field="regex"), "half of a surrogate"),
    (OutputFormat(kind="regex", field="regex"), "empty"),
    (OutputFormat(kind="choice", choices=(), field="guided_choice"), "1 to"),
    (OutputFormat(kind="choice", choices=("",), field="guided_choice"), "empty"),
    (OutputFormat(kind="choice", choices=("a",) * 1001, field="guided_choice"), "1 to"),
    (OutputFormat(kind="choice", choices=("a" * 70_000,), field="guided_choice"), "too large"),
]


@pytest.mark.parametrize(("form", "words"), NEVER, ids=[str(i) for i in range(len(NEVER))])
def test_a_rule_that_cannot_be_enforced_is_refused_by_its_field(
    form: OutputFormat, words: str
) -> None:
    for _ in range(2):  # the second time from what is kept
        with pytest.raises(BadRequest, match=words) as refused:
            GRAMMARS.output(form, think=None, calls=None)
        assert refused.value.field == form.field


def chain(rule: str, count: int) -> str:
    rules = [rule.replace("%", f"r{i}").replace("@", f"r{i + 1}") for i in range(count)]
    return "\n".join([*rules, f'r{count} ::= "a"', "root ::= r0"])


def hostile() -> dict[str, OutputFormat]:
    """Rules within every limit that a naive compiler would take long over, or die of."""
    regexes = ["(a|b|ab)*" * 200, "(.*a){200}", ".*a.{900}", "(a{1000}){1000}", "(.*x.*|y)*" * 90]
    return {
        **{f"regex{i}": OutputFormat(kind="regex", rule=rule) for i, rule in enumerate(regexes)},
        "chain": grammar(chain("% ::= @?", PARTS_AT_MOST - 2)),
        "brackets": grammar(chain("% ::= (((((@)?)?)?)?)?", (PARTS_AT_MOST - 2) // 6)),
        "doubling": grammar(chain("% ::= @* @*", 500)),
        "repeats": grammar(chain("% ::= @{2,3}", 500)),
        "deep repeats": grammar('root ::= (("a"?){0,99999}){0,99999}'),
        "ambiguous": grammar("root ::= x* x* x* x*\nx ::= [a-z]* | root"),
        "long": grammar('root ::= "' + "ab" * 4_900 + '"'),
        "classes": grammar("root ::= " + "[a-b]" * 9_900),
        "choices": OutputFormat(
            kind="choice", choices=tuple(f"{'ab' * 25}{i}" for i in range(1000))
        ),
    }


@pytest.mark.parametrize("name", sorted(hostile()))
def test_a_hostile_rule_is_kept_to_or_refused_and_ends_either_way(name: str) -> None:
    """Compiled where a runner does it, in a thread with an ordinary stack; the time is printed."""
    form, said = hostile()[name], list[str]()

    def compile_it() -> None:
        try:
            spec_of(form)
            said.append("held")
        except BadRequest as problem:
            said.append(problem.message)

    began = time.perf_counter()
    thread = threading.Thread(target=compile_it)
    thread.start()
    thread.join()
    print(f"{name}: {time.perf_counter() - began:.3f} s, {said[0][:80]}")
    assert len(said) == 1


# --- beside thinking and calls --------------------------------------------------------------------

COLOUR = OutputFormat(kind="choice", choices=("red", "blue"), field="guided_choice")
TOOL = ToolSpec(name="f")


def test_a_rule_may_follow_a_thinking_block_and_holds_only_after_it() -> None:
    spec = spec_of(COLOUR, think=ThinkFirst(THINK, "reasoning"))
    for text, right in (
        ("any {thing}</think>\n\nred", True),
        ("any</think>blue", True),
        ("red", False),
        ("any</think>green", False),
        ("any</think> red", False),
    ):
        assert allows(spec, text) is right


def test_with_a_rule_and_tools_the_output_is_either() -> None:
    spec = spec_of(COLOUR, calls=Calls(FORM, (TOOL,), parallel=False, need="may"))
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    for text, right in (("red", True), (call, True), (f"red{call}", False), ("green", False)):
        assert allows(spec, text) is right


def test_a_required_call_leaves_no_room_for_the_rule() -> None:
    spec = spec_of(COLOUR, calls=Calls(FORM, (TOOL,), parallel=False))
    assert not allows(spec, "red")


def test_rules_of_the_same_name_as_ours_stay_apart() -> None:
    text = 'root ::= calls\ncalls ::= answer\nanswer ::= "form" | form\nform ::= "x"'
    spec = spec_of(grammar(text), calls=Calls(FORM, (TOOL,), parallel=False, need="may"))
    assert allows(spec, "form")
    assert allows(spec, "x")
