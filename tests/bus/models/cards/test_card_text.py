"""The text of a card reads back as what it was made of."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.models.cards import (
    EXAMPLES,
    KNOWN_KEYS,
    BadCard,
    beginning,
    card_text,
    notes_from,
    read_card,
    with_setting,
)
from bus.wire.ids import ModelId

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "system": WORDS,
            "summary": WORDS,
            "stop": st.lists(WORDS.filter(bool), max_size=4),
            "temperature": st.floats(0, 5) | st.integers(0, 5),
            "top_k": st.integers(0, 1 << 40),
            "seed": st.integers(-(2**63), 2**63 - 1),
            "pin": st.booleans(),
            "keep_alive_s": st.floats(allow_nan=False, allow_infinity=False),
        },
    )
)
def test_a_card_reads_back_as_it_was_written(fields: dict[str, Any]) -> None:
    text = card_text(fields)
    assert tomllib.loads(text) == fields
    assert read_card(text.encode()) == notes_from(fields)


def test_what_no_card_may_say_is_not_written() -> None:
    with pytest.raises(BadCard, match="did you mean temperature"):
        card_text({"temprature": 1})
    with pytest.raises(BadCard, match="temperature"):
        card_text({"temperature": float("nan")})


def test_the_text_of_many_lines_stays_readable() -> None:
    assert card_text({"system": 'Be "kind".\nBe \\short.'}) == (
        'system = """\nBe \\"kind\\".\nBe \\\\short."""\n'
    )


def test_an_editor_shows_every_key_with_an_example_that_may_be_said() -> None:
    text = beginning(ModelId("org/m"))
    assert read_card(text.encode()).said == ()
    said = "\n".join(line[2:] for line in text.splitlines() if " = " in line)
    assert set(read_card(said.encode()).said) == set(KNOWN_KEYS) - {"template"} == set(EXAMPLES)


def test_a_setting_is_added_behind_what_is_there() -> None:
    text = with_setting("# mine\npin = true", "temperature", "0.5")
    assert text == "# mine\npin = true\ntemperature = 0.5\n"
    assert with_setting("", "system", "Be kind.") == 'system = "Be kind."\n'
    assert with_setting("", "aliases", '["a"]') == 'aliases = ["a"]\n'
    assert with_setting("", "kv", "8bit") == 'kv = "8bit"\n'
    with pytest.raises(BadCard, match="pin is already set"):
        with_setting(text, "pin", "false")
    with pytest.raises(BadCard, match="is not valid TOML"):
        with_setting("pin = ", "top_k", "1")
