"""Levels that templates know, and how thinking of each family is ended."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.wire.ids import TokenId
from runner.engine import RowId, SampledToken
from runner.text.families import (
    Family,
    LibraryMarks,
    Marks,
    ThinkingMeter,
    effort_levels,
    family_of,
)
from runner.text.families.harmony import MARKERS, harmony
from runner.text.families.thinking import EFFORTS, LEVELS, level_for
from runner.text.prepared import PreparedRequest, SpanState
from runner.text.stops import automaton
from runner.text.text import Text
from tests.harness.toy_tokenizer import MARKERS as MARKS_OF_TOY
from tests.harness.toy_tokenizer import TEMPLATE, toy_tokenizer
from tests.runner.text.test_text import TOOL, chat, request

GPT_OSS = (
    '{%- if reasoning_effort is not defined %}{%- set reasoning_effort = "medium" %}{%- endif %}'
    '{{- "Reasoning: " + reasoning_effort + "\\n\\n" }}'
)
NAMED = (
    "{% if reasoning_effort in ['none', 'low'] %}{% elif reasoning_effort == \"max\" %}{% endif %}"
)


def test_a_templates_levels_are_those_that_it_names_or_the_usual_ones() -> None:
    assert effort_levels("{{ enable_thinking }} 'low' 'high'") == ()
    assert effort_levels(GPT_OSS) == LEVELS
    assert effort_levels(NAMED) == ("none", "low", "max")


@pytest.mark.parametrize(
    ("effort", "levels", "told"),
    [
        ("minimal", LEVELS, "low"),
        ("medium", LEVELS, "medium"),
        ("xhigh", LEVELS, "high"),
        ("max", LEVELS, "high"),
        ("medium", ("low", "high"), "low"),
        ("minimal", ("none", "high"), "high"),
        (None, LEVELS, None),
        ("high", (), None),
        ("high", ("none",), None),
    ],
)
def test_the_nearest_level_is_told(effort: Any, levels: tuple[str, ...], told: Any) -> None:
    assert level_for(effort, levels, thinking=True) == told


@given(
    st.none() | st.sampled_from(EFFORTS[1:]),
    st.sets(st.sampled_from(EFFORTS)),
    st.booleans(),
)
def test_no_template_is_told_what_it_does_not_know(
    effort: str | None, known: set[str], thinking: bool
) -> None:
    levels = tuple(one for one in EFFORTS if one in known)
    told = level_for(effort, levels, thinking=thinking)
    assert told is None or told in known
    if not thinking:
        assert told == (levels[0] if levels else None)
    elif effort in known:
        assert told == effort


# --- the end of thinking --------------------------------------------------------------------


def test_a_familys_end_of_thinking_is_its_mark_and_its_templates_layout() -> None:
    marks = ("<think>", "</think>")
    none = LibraryMarks()
    written = family_of("{{ '<think>\\n\\n</think>\\n\\n' }}", marks, none)
    assert written.closing(has_tools=False) == "</think>\n\n"
    assert family_of("<think></think>", marks, none).closing(has_tools=True) == "</think>"
    assert family_of("", (), none).closing(has_tools=False) == ""
    no_end = Family(Marks("<think>", ""), None, None, None)
    assert no_end.closing(has_tools=False) == ""
    assert family_of("", MARKERS, none).closing(has_tools=False).endswith("final<|message|>")
    assert family_of("", MARKERS, none).closing(has_tools=True).endswith("commentary")


@pytest.mark.parametrize("opening", ["reasoning", "header"])
@pytest.mark.parametrize("has_tools", [False, True])
@pytest.mark.parametrize("rest", ["The answer.", ' to=functions.f<|message|>{"a": 1}<|call|>'])
def test_gpt_oss_goes_on_behind_the_end_that_it_is_made_to_say(
    opening: SpanState, has_tools: bool, rest: str
) -> None:
    family = harmony()
    reader = family.reader(
        (), reads_thinking=True, reads_tools=has_tools, opening=opening, stops=automaton(())
    )
    thought = "hm" if opening == "reasoning" else "<|channel|>analysis<|message|>hm"
    is_call = rest.startswith(" to=")
    if is_call and not has_tools:
        return
    body = rest if is_call else f"{'<|message|>' if has_tools else ''}{rest}"
    closing = family.closing(has_tools=has_tools)
    spans: list[Any] = []
    for letter in thought + closing + body:
        spans += reader.feed(letter)
    spans += reader.flush()
    thoughts = "".join(one.text for one in spans if getattr(one, "kind", "") == "reasoning")
    said = "".join(one.text for one in spans if getattr(one, "kind", "") == "text")
    calls = "".join(one.arguments for one in spans if not hasattr(one, "kind"))
    assert thoughts == "hm"
    assert (said, calls) == (("", '{"a": 1}') if is_call else ("The answer.", ""))


# --- a request made ready -------------------------------------------------------------------

OPENS = TEMPLATE.replace("{%- if not enable_thinking %}", "{%- if not thinking %}")
LEVELLED = TEMPLATE + "{% if reasoning_effort %}[{{ reasoning_effort }}]{% endif %}{{ style }}"


def ready(text: Text, **fields: Any) -> PreparedRequest:
    prepared = text.prepare(request(fields.pop("prompt", None), **fields), 4096)
    assert isinstance(prepared, PreparedRequest), prepared
    return prepared


def shown(text: Text, **fields: Any) -> str:
    tokenizer = text._tokenizer
    return tokenizer.decode(list(ready(text, **fields).tokens))


def test_a_template_is_told_whether_to_think_by_either_name() -> None:
    for template in (TEMPLATE, OPENS):
        text = Text(toy_tokenizer(template))
        assert shown(text, thinking=False).endswith("<think>\n\n</think>\n\n")
        assert shown(text, thinking=True).endswith("assistant\n")
        assert shown(text, effort="high").endswith("assistant\n")
        assert shown(text, effort="minimal").endswith("<think>\n\n</think>\n\n")
        assert shown(text, effort="minimal", thinking=True).endswith("assistant\n")


def test_a_template_with_levels_is_told_the_nearest_and_its_own_variables() -> None:
    text = Text(toy_tokenizer(LEVELLED))
    assert shown(text, effort="max").endswith("assistant\n[high]")
    assert shown(text, effort="minimal").endswith("assistant\n[low]")
    assert shown(text, thinking=True).endswith("assistant\n")
    assert shown(text, thinking=False).endswith("</think>\n\n[low]")
    assert shown(text, thinking=True, variables={"style": "terse"}).endswith("assistant\nterse")
    # neither what the request says nor what templates are made with can be told otherwise
    theirs = {"messages": "x", "add_generation_prompt": False, "enable_thinking": False}
    assert shown(text, thinking=True, variables=theirs).endswith("assistant\n")


def test_what_is_not_asked_for_is_told_to_no_template() -> None:
    """Templates that call it `thinking` do not think unless they are told to."""
    opens = "{% if thinking is defined %}[{{ thinking }}]{% endif %}"
    unmarked = "{% for m in messages %}{{ m.content }}{% endfor %}" + opens
    unmarked += "{% if reasoning_effort %}[{{ reasoning_effort }}]{% endif %}"
    for markers in (tuple(MARKS_OF_TOY), ()):
        text = Text(toy_tokenizer(unmarked, markers=markers), thinking_by_default=True)
        assert shown(text) == "hello"
    plain = Text(toy_tokenizer(unmarked, markers=()))
    assert shown(plain, effort="max") == "hello[True][high]"
    assert shown(plain, thinking=False) == "hello[False][low]"


def test_a_level_asks_nothing_of_a_model_that_does_not_think() -> None:
    plain = Text(toy_tokenizer("{% for m in messages %}{{ m.content }}{% endfor %}", markers=()))
    prepared = ready(plain, effort="high", thinking_budget=5)
    assert prepared.limit is None and not prepared.reads_thinking


def test_a_budget_makes_a_limit_where_thinking_is_read() -> None:
    tokenizer = toy_tokenizer()
    text = Text(tokenizer)
    assert ready(text, thinking=True).limit is None
    limit = ready(text, thinking=True, thinking_budget=5).limit
    assert limit is not None
    assert tokenizer.decode(list(limit.ending)) == "</think>\n\n"
    assert ready(text, thinking=True, thinking_budget=5, prompt=chat("hi", tools=(TOOL,))).limit
    count = limit.count()
    for token in tokenizer.encode("<think>one two three four five six"):
        assert not count.is_due
        before = count.may_be_due(1)
        count.take(TokenId(token))
        if count.is_due:
            assert before
            break
    assert count.is_due
    for token in limit.ending:
        count.take(token)
    assert not count.is_due
    other = limit.count()
    assert not other.is_due and not other.may_be_due(4)


def test_a_budget_of_nothing_ends_thinking_as_it_opens() -> None:
    limit = ready(Text(toy_tokenizer()), thinking=True, thinking_budget=0).limit
    assert limit is not None
    count = limit.count()
    assert not count.is_due and count.may_be_due(1)
    count.take(TokenId(toy_tokenizer().encode("<think>")[0]))
    assert count.is_due


# --- the count ------------------------------------------------------------------------------

PIECES = ("<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "f", "arguments": {}}',
          "hello", "\n\n", " ünïcödé 🐟", "</thi")  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.booleans())
def test_what_is_counted_is_what_usage_tells(pieces: list[str], with_tools: bool) -> None:
    text, tokenizer = COUNTING, COUNTING._tokenizer
    prompt = chat("hi", tools=(TOOL,) if with_tools else ())
    prepared = ready(text, prompt=prompt, thinking=True, thinking_budget=3)
    reader, limit = text.choice(prepared, 0), prepared.limit
    assert limit is not None
    count = limit.count()
    assert isinstance(count, ThinkingMeter)
    for token in tokenizer.encode("".join(pieces)):
        reader.push(SampledToken(RowId(1), TokenId(token)))
        count.take(TokenId(token))
    assert count.tokens == reader.finish("length").reasoning_tokens


COUNTING = Text(toy_tokenizer())
SPOKEN = {
    "marked": PIECES,
    "harmony": (*MARKERS, "analysis", "final", "commentary", " to=functions.f", "assistant", "hi"),
}


@given(st.sampled_from(sorted(SPOKEN)), st.data())
def test_thinking_opens_only_where_it_was_said_that_it_may(name: str, data: Any) -> None:
    """The scheduler plans ahead where it may not: each marker is a token, or several."""
    family = harmony() if name == "harmony" else COUNTING._tokenizer.family
    openings = ("text", "header") if name == "harmony" else ("text",)
    reader = family.reader(
        (),
        reads_thinking=True,
        reads_tools=data.draw(st.booleans()),
        opening=data.draw(st.sampled_from(openings)),
        stops=automaton(()),
    )
    for piece in data.draw(st.lists(st.sampled_from(SPOKEN[name]), max_size=20)):
        may = reader.reasoning or reader.may_think
        reader.feed(piece)
        assert may or not reader.reasoning
