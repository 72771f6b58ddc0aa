from __future__ import annotations

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.encode import (
    arguments_object,
    finite_logprob,
    json_bytes,
    text_bytes,
    token_bytes,
)


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_stays_on_one_line_and_comes_back(text: str) -> None:
    made = text_bytes(text)
    assert len(made.decode().splitlines()) == 1
    assert json.loads(made) == text
    assert json.loads(json_bytes({"a": [text]})) == {"a": [text]}


def test_separators_that_python_clients_split_at_are_escaped() -> None:
    assert text_bytes("a\u2028b\u2029c\u0085d") == rb'"a\u2028b\u2029c\u0085d"'
    assert text_bytes("é\u00a0") == '"é\u00a0"'.encode()


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=4),
        st.recursive(
            st.integers(-(10**40), 10**40) | st.floats(allow_nan=False, allow_infinity=False),
            lambda inner: st.lists(inner, max_size=3),
            max_leaves=5,
        ),
        max_size=4,
    ),
    st.sampled_from([None, 2]),
)
def test_arguments_of_a_call_keep_every_number(arguments: dict[str, object], indent: int) -> None:
    made = json_bytes({"input": arguments_object(json.dumps(arguments, indent=indent))})
    assert json.loads(made) == {"input": arguments}
    assert len(made.decode().splitlines()) == 1


def test_what_is_no_object_is_no_arguments() -> None:
    for text in ("[1]", "{", '{"a": NaN}', "5", '"x"', '{"a": ' + "9" * 5000 + "}", "[" * 9000):
        assert arguments_object(text) is None
    assert arguments_object("") == {}


def test_impossible_tokens_have_a_finite_logprob() -> None:
    assert finite_logprob(-math.inf) == -9999.0
    assert finite_logprob(math.nan) == -9999.0
    assert finite_logprob(-0.5) == -0.5


def test_part_of_a_character_has_no_bytes_to_show() -> None:
    assert token_bytes("é") == [0xC3, 0xA9]
    assert token_bytes("\ufffd") is None
