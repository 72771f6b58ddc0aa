"""A file of settings as text: what is changed says so and nothing else, and comments stay."""

from __future__ import annotations

import os
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.wire.errors import ConfigError
from conf.changing.described import commented, descriptions
from conf.changing.file import defaults
from conf.changing.text import changed, check_known, typed
from conf.keys import flat
from conf.settings import DEFAULTS_FILE

PROVING = bool(os.environ.get("SHOAL_PROVE"))

DEFAULTS = defaults()
FIRST = commented(DEFAULTS_FILE.read_text())

OWN = """\
# my node
slots = 3   # few

keep_alive_s = 10
voters = [
  "a",  # the first
  "b", "c",
]

[runner]
# wide
max_rows = 7

[cluster]
namespace = "reef"
"""


def lines(text: str) -> list[str]:
    return text.split("\n")


def test_the_first_file_sets_nothing_and_says_all_defaults() -> None:
    assert flat(tomllib.loads(FIRST)) == {}
    shown = "\n".join(
        line.removeprefix("#") if line.startswith("#") and not line.startswith("# ") else line
        for line in lines(FIRST)
    )
    assert flat(tomllib.loads(shown)) == DEFAULTS


def test_every_setting_has_a_meaning() -> None:
    found = descriptions(DEFAULTS_FILE.read_text())
    assert set(found) == set(DEFAULTS) and all(found.values())


def test_a_setting_that_is_commented_out_is_set_where_it_stands_and_back() -> None:
    once = changed(FIRST, {"runner.max_waiting": 2, "slots": 3}, (), DEFAULTS)
    before, after = lines(FIRST), lines(once)
    assert len(before) == len(after)
    differing = [two for one, two in zip(before, after, strict=True) if one != two]
    assert differing == ["slots = 3", "max_waiting = 2"]
    assert changed(once, {}, ("slots", "runner.max_waiting"), DEFAULTS) == FIRST


def test_comments_and_order_of_a_persons_file_stay() -> None:
    after = changed(
        OWN, {"slots": 5, "runner.max_rows": 9, "voters": ["x", "y", "z"]}, (), DEFAULTS
    )
    assert "# my node\nslots = 5   # few\n" in after and "# wide\nmax_rows = 9\n" in after
    assert tomllib.loads(after)["voters"] == ["x", "y", "z"]
    assert after.index("keep_alive_s") < after.index("voters") < after.index("[runner]")


def test_a_setting_goes_into_its_table_or_before_all_tables() -> None:
    after = changed(OWN, {"offline": True, "pool.turn_s": 1.0, "runner.spare": False}, (), DEFAULTS)
    assert tomllib.loads(after) == {
        **tomllib.loads(OWN),
        "offline": True,
        "pool": {"turn_s": 1.0},
        "runner": {"max_rows": 7, "spare": False},
    }


@pytest.mark.parametrize(
    "text",
    [
        "runner.max_rows = 3\n",
        "runner = { max_rows = 3, spare = false }\n",
        'slots = 2\n[runner]\nblas = """\n#max_rows = 1\n"""\nmax_rows = 3\n',
        "[runner]\nmax_rows = 3",
        "",
    ],
)
def test_every_way_to_write_a_table_is_changed_and_changed_back(text: str) -> None:
    after = changed(text, {"runner.max_rows": 5}, (), DEFAULTS)
    assert flat(tomllib.loads(after)) == {**flat(tomllib.loads(text)), "runner.max_rows": 5}
    gone = flat(tomllib.loads(changed(after, {}, ("runner.max_rows",), DEFAULTS)))
    assert gone == {k: v for k, v in flat(tomllib.loads(text)).items() if k != "runner.max_rows"}


@settings(max_examples=25 if PROVING else 8, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(DEFAULTS)), st.integers(0, 3), max_size=12))
def test_any_changes_say_themselves_and_leave_no_trace_when_they_are_taken_back(
    picked: dict[str, int],
) -> None:
    put: dict[str, Any] = {
        key: (DEFAULTS[key] if turn == 0 else f'"{turn}"\n# [x]' if turn == 1 else [str(turn)])
        for key, turn in picked.items()
    }
    after = changed(FIRST, put, (), DEFAULTS)
    assert flat(tomllib.loads(after)) == put
    assert flat(tomllib.loads(changed(after, {}, sorted(put), DEFAULTS))) == {}


def test_what_is_no_toml_is_refused() -> None:
    with pytest.raises(ConfigError):
        changed("slots = \n", {"slots": 3}, (), DEFAULTS)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("slots", "3", 3),
        ("keep_alive_s", "60", 60.0),
        ("keep_alive_s", -1, -1.0),
        ("offline", "true", True),
        ("node_name", "7", "7"),
        ("voters", "a, b", ["a", "b"]),
        ("voters", '["a"]', ["a"]),
        ("voters", [], []),
        ("cluster.discovery", True, True),
    ],
)
def test_a_value_gets_the_kind_of_its_setting(key: str, value: Any, expected: Any) -> None:
    found = typed(key, value, DEFAULTS[key])
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("slots", "many", "must be a whole number"),
        ("slots", 2.5, "must be a whole number"),
        ("slots", True, "must be a whole number"),
        ("offline", "yes", "must be true or false"),
        ("keep_alive_s", "soon", "must be a number"),
        ("voters", [1], "must be a list of words"),
        ("voters", "[a", "words separated"),
        ("voters", 3, "must be a list of words"),
    ],
)
def test_another_kind_is_refused_by_name(key: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        typed(key, value, DEFAULTS[key])
    assert key in str(refused.value) and said in str(refused.value)


def test_an_unknown_key_names_the_one_that_is_meant() -> None:
    for key, said in (("slot", "did you mean slots?"), ("runner", "name one of its settings")):
        with pytest.raises(ConfigError) as refused:
            check_known(key, DEFAULTS)
        assert said in str(refused.value)
