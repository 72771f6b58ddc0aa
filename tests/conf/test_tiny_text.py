"""The lessons of the tiny model: repeatable, apart from its examination, true to its template."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tests.tiny_model.dice import Dice
from tests.tiny_model.judge import outgoing, right
from tests.tiny_model.render import EMPTY_THOUGHT, SAID, spans, text
from tests.tiny_model.sample import Sample, answer, call, held_out, prompt_key, result, system, user
from tests.tiny_model.skills.calling import verbal
from tests.tiny_model.skills.sums import (
    BY_HEART,
    PLAIN_KEY,
    PLAINEST,
    TOO_HARD,
    arithmetic,
    solved,
)
from tests.tiny_model.text import PHASES, SKILLS, evaluation, training

TINY = Path(__file__).parents[2] / "conf" / "tiny"
SOLVED = re.compile(r"(\d+ [-+*] \d+) = (-?\d+)")


def rendered(sample: Sample, **more: Any) -> str:
    """What the committed template makes of a sample, in the environment that loaders use."""
    jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

    def tojson(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    jinja.filters["tojson"] = tojson
    template = jinja.from_string((TINY / "chat_template.jinja").read_text())
    return template.render(
        messages=list(sample.messages),
        tools=list(sample.tools) or None,
        enable_thinking=sample.thinking,
        **more,
    )


def test_the_same_seed_gives_the_same_lessons() -> None:
    first = [text(s) for s in islice(training(3), 200)]
    assert first == [text(s) for s in islice(training(3), 200)]
    assert first != [text(s) for s in islice(training(4), 200)]


def test_the_dice_are_settled_for_ever() -> None:
    dice = Dice(1)
    assert [dice.between(1, 100) for _ in range(5)] == [80, 37, 46, 29, 47]


def test_no_question_of_the_examination_is_ever_in_a_lesson() -> None:
    lessons = [s for phase in PHASES for s in islice(training(5, phase), 1200)]
    keys = {prompt_key(s) for s in lessons}
    everything = "".join(text(s) for s in lessons).lower()
    for skill in SKILLS:
        for sample in islice(evaluation(skill), 20):
            assert prompt_key(sample) not in keys
            if not sample.key:
                asked = str(sample.messages[-2]["content"]).lower()
                assert f"<|im_start|>user\n{asked}<|im_end|>" not in everything


def test_every_skill_has_an_examination_of_its_own() -> None:
    for skill in SKILLS:
        drawn = list(islice(evaluation(skill), 15))
        assert len(drawn) == 15 and all(held_out(s) for s in drawn)
        assert len({text(s) for s in drawn}) == 15


def test_sums_are_right_or_declined_and_all_of_the_small_ones_are_taught() -> None:
    taught: set[str] = set()
    dice = Dice(7)
    for sample in (arithmetic(dice, False) for _ in range(9000)):
        said = str(sample.messages[-1]["content"])
        if said != TOO_HARD and not held_out(sample):
            lines = SOLVED.findall(said)
            assert lines, said
            taught.update(f"{left} = {value}" for left, value in lines)
    wanted = {solved(*each) for each in BY_HEART}
    assert taught == wanted and len(wanted) == 2 * 441 + 121
    assert all(eval(line.replace("=", "==")) for line in wanted)


def test_plain_sums_are_never_held_out() -> None:
    plain = Sample("arithmetic", (user("3 + 4"),), key=PLAIN_KEY)
    assert not held_out(plain)
    assert {"{a} + {b}", "What is {a} - {b}?", "{a}+{b}", "Calculate {a} times {b}."} <= PLAINEST


@pytest.mark.proof
def test_the_template_writes_what_the_lessons_hold() -> None:
    for sample in islice(training(6, "late"), 600):
        assert rendered(sample) == text(sample)


@pytest.mark.parametrize("thinking", [True, False])
def test_an_answer_begins_with_an_empty_thought_only_without_thinking(thinking: bool) -> None:
    sample = Sample("greeting", (user("hi"),), thinking=thinking)
    opened = rendered(sample, add_generation_prompt=True)
    assert opened.endswith("<|im_start|>assistant\n" + ("" if thinking else EMPTY_THOUGHT))


def test_thoughts_before_the_last_question_are_dropped() -> None:
    sample = Sample(
        "greeting",
        (user("hi"), answer("Hello!", "old"), user("and?"), answer("Well.", "new")),
        thinking=True,
    )
    shown = rendered(sample)
    assert "old" not in shown and "<think>\nnew\n</think>\n\nWell." in shown


def test_a_thought_inside_the_text_is_told_apart() -> None:
    said = {"role": "assistant", "content": "<think>\nold\n</think>\n\nHello!"}
    shown = rendered(Sample("greeting", (user("hi"), said, user("and?"))))
    assert "<|im_start|>assistant\nHello!<|im_end|>" in shown and "old" not in shown


def test_tools_and_results_stand_in_their_tags() -> None:
    tool: dict[str, Any] = {"type": "function", "function": {"name": "add", "parameters": {}}}
    calls = [call("add", {"a": 1}), call("add", {"a": 2})]
    steps = (system("Be kind."), user("add"), answer("", "", calls), result("3"), result("4"))
    shown = rendered(Sample("tool results", steps, (tool,)), add_generation_prompt=True)
    assert shown.startswith("<|im_start|>system\nBe kind.\n\n# Tools")
    assert f"<tools>\n{json.dumps(tool)}\n</tools>" in shown
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call><|im_end|>' in shown
    assert shown.count("<|im_start|>user") == 2
    assert "\n<tool_response>\n3\n</tool_response>\n<tool_response>\n4\n</tool_response>" in shown


def test_content_in_parts_and_arguments_as_text_are_read() -> None:
    parts = {
        "role": "user",
        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    }
    said = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "f", "arguments": '{"x": 1}'}}],
    }
    shown = rendered(Sample("tool calls", (parts, said, result("ok"))), add_generation_prompt=True)
    assert "<|im_start|>user\nab<|im_end|>" in shown
    assert '{"name": "f", "arguments": {"x": 1}}' in shown


def test_only_the_model_s_own_words_count_in_full() -> None:
    for sample in islice(training(8), 300):
        own = "".join(part for part, weight in spans(sample) if weight == SAID)
        assert str(sample.messages[-1]["content"]) in own
        assert "<|im_start|>" not in own and "<tools>" not in own


def test_the_judge_accepts_the_answers_it_expects_and_no_others() -> None:
    for skill in SKILLS:
        for sample in islice(evaluation(skill), 10):
            sent = outgoing(sample.messages)[-1]
            assert right(sample, sent)
            assert not right(sample, {"content": "something else"})


def test_a_result_is_told_key_by_key() -> None:
    assert verbal('{"temp": 3, "sky": "clear", "ok": true}') == "temp 3, sky clear, ok true"
    assert verbal("3 degrees") == "3 degrees"
