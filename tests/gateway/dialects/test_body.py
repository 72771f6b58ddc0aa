"""Whatever a client sends, a parser understands it or says what is wrong with it."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.wire.errors import BadRequest
from gateway.dialects.body import MAX_PATH, path_of, read_object
from gateway.dialects.dialect import Dialect, Limits, Parsed
from gateway.dialects.ollama.dialect import OllamaChat, OllamaGenerate
from gateway.dialects.openai.chat import OpenAIChat
from gateway.dialects.openai.completions import OpenAICompletions
from gateway.dialects.shared_fields import temperature_of

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TURNS = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": [{"type": "text", "text": "u"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "t", "tool_call_id": "c"},
]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
OLLAMA_TURNS = [
    {"role": "user", "content": "u", "images": ["iVBORw0KGgo="]},
    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
    {"role": "tool", "content": "t", "tool_name": "f"},
]
OPTIONS = {"num_predict": 5, "seed": 1, "stop": ["x"], "temperature": 0.5, "num_gpu": 1}
BODIES: list[tuple[Dialect, dict[str, Any]]] = [
    (
        OpenAIChat(),
        {
            "model": "m", "messages": TURNS, "tools": [TOOL], "tool_choice": "auto",
            "response_format": SCHEMA, "stop": ["a"], "logit_bias": {"5": 1}, "n": 2,
            "logprobs": True, "top_logprobs": 2, "seed": 5, "stream": True,
            "stream_options": {"include_usage": True}, "x_priority": "low", "temperature": 0.5,
            "chat_template_kwargs": {"enable_thinking": True}, "max_tokens": 5,
        },
    ),
    (OpenAICompletions(), {"model": "m", "prompt": ["a", "b"], "logprobs": 2, "echo": False}),
    (OpenAICompletions(), {"model": "m", "prompt": [[1, 2], [3]], "best_of": 1, "n": 1}),
    (
        OllamaChat(),
        {"model": "m", "messages": OLLAMA_TURNS, "tools": [TOOL], "options": OPTIONS,
         "format": "json", "keep_alive": "5m", "think": True},
    ),
    (OllamaGenerate(), {"model": "m", "prompt": "p", "options": OPTIONS, "format": {"a": 1}}),
]  # fmt: skip

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(st.characters(codec="utf-8"), max_size=12),
    st.sampled_from(["", "none", "5m", "m:latest", "9" * 5000, "\u0000", "NaN", "-1", "~text"]),
    st.lists(st.integers(-(2**63), 2**64 - 1) | st.text(max_size=3), max_size=3),
    st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=3), max_size=3),
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a body where something else could stand."""
    found = [path] if path else []
    if isinstance(value, dict):
        found += [place for key, one in value.items() for place in _places(one, (*path, key))]
    elif isinstance(value, list):
        found += [place for key, one in enumerate(value) for place in _places(one, (*path, key))]
    return found


@settings(max_examples=400)
@given(st.data())
def test_any_body_is_understood_or_refused(desk: Any, data: Any) -> None:
    dialect, valid = data.draw(st.sampled_from(BODIES))
    body = copy.deepcopy(valid)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(_places(body)))
        parent = body
        for step in place[:-1]:
            parent = parent[step]
        if data.draw(st.booleans()):
            parent[place[-1]] = data.draw(JUNK)
        elif isinstance(parent, dict):
            parent[data.draw(st.text(max_size=6))] = data.draw(JUNK)
    try:
        parsed = dialect.parse(json.dumps(body).encode(), desk.context())
    except BadRequest as refusal:
        assert refusal.message
        assert len(refusal.message) < 2000
    else:
        assert isinstance(parsed, Parsed)


@pytest.mark.parametrize(("dialect", "body"), BODIES)
def test_the_bodies_above_are_valid(desk: Any, dialect: Dialect, body: dict[str, Any]) -> None:
    assert desk.parse(dialect, body).requests


@given(st.binary(max_size=64))
def test_any_bytes_are_an_object_or_refused(sent: bytes) -> None:
    try:
        assert isinstance(read_object(sent, Limits()), dict)
    except BadRequest as refusal:
        assert refusal.field is None


@pytest.mark.parametrize("body", [b"", b" \n"])
def test_a_body_that_is_missing_is_told_in_the_words_that_clients_know(body: bytes) -> None:
    with pytest.raises(BadRequest, match=r"^missing request body"):
        read_object(body, Limits())


def test_a_list_with_many_faults_is_refused_for_its_first(desk: Any) -> None:
    body = {"model": "m", "prompt": ["a", *([5] * 100_000)]}
    refusal = desk.refusal(OpenAICompletions(), body)
    assert refusal.field == "prompt[1]"
    assert "more" not in refusal.message


def test_an_endless_name_is_not_said_back_whole(desk: Any) -> None:
    endless = {"model": "m", "messages": TURNS, "k" * 100_000: 1}
    assert [len(name) for name in desk.parse(OpenAIChat(), endless).extras.ignored] == [MAX_PATH]
    strict = desk.context(limits=Limits(strict_fields=True))
    with pytest.raises(BadRequest) as refused:
        OpenAIChat().parse(json.dumps(endless).encode(), strict)
    assert len(refused.value.message) < 300
    biased = {"model": "m", "messages": TURNS, "logit_bias": {"9" * 5000: 1}}
    assert len(desk.refusal(OpenAIChat(), biased).message) < 300


def test_paths_are_written_as_clients_write_them() -> None:
    assert path_of(("messages", 2, "~user", "content", "~parts", 0, "~text", "text")) == (
        "messages[2].content[0].text"
    )
    assert path_of(("", "model")) == "model"
    assert path_of(("options", "stop", 1)) == "options.stop[1]"
    assert path_of(()) == ""


JSON_VALUES = st.recursive(
    st.none()
    | st.integers(-(2**63), 2**64 - 1)
    | st.booleans()
    | st.text(max_size=8)
    | st.sampled_from(['"', "\\\\", '\\",:[{']),
    lambda inner: (
        st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=6), inner, max_size=6)
    ),
    max_leaves=40,
)


def _counted(value: Any) -> tuple[int, int]:
    """Return the names and the arrays and objects in a value."""
    if isinstance(value, dict):
        inner = [_counted(one) for one in value.values()]
        return len(value) + sum(n for n, _ in inner), 1 + sum(o for _, o in inner)
    if isinstance(value, list):
        inner = [_counted(one) for one in value]
        return sum(n for n, _ in inner), 1 + sum(o for _, o in inner)
    return 0, 0


@given(st.dictionaries(st.text(max_size=6), JSON_VALUES, max_size=6), st.booleans())
def test_a_body_is_refused_by_its_keys_and_objects_and_not_by_what_its_texts_say(
    value: dict[str, Any], escaped: bool
) -> None:
    body = json.dumps(value, ensure_ascii=escaped).encode(errors="surrogatepass")
    keys, objects = _counted(value)
    assert read_object(body, Limits(keys=keys, objects=objects)) == json.loads(body)
    if keys:
        with pytest.raises(BadRequest, match=f"has {keys} keys"):
            read_object(body, Limits(keys=keys - 1, objects=objects))
    with pytest.raises(BadRequest, match=f"has {objects} arrays and objects"):
        read_object(body, Limits(keys=keys, objects=objects - 1))


def test_a_body_of_too_many_values_or_texts_is_refused() -> None:
    limits = Limits(values=10, keys=10)
    assert len(read_object(b'{"a":[1,2,3,4,5,6,7,8,9]}', limits)["a"]) == 9
    for one in (b"1", b'"x"', b"[]"):
        with pytest.raises(BadRequest, match="values"):
            read_object(b'{"a":[' + b",".join([one] * 30) + b"]}", limits)


@pytest.mark.parametrize(
    ("asked", "given_"), [(1e-320, 0.0), (9e-4, 0.0), (1e-3, 1e-3), (2.0, 2.0)]
)
def test_a_temperature_that_leaves_float32_draws_the_likeliest(asked: float, given_: float) -> None:
    assert temperature_of(asked) == given_


def test_a_byte_order_mark_before_the_body_is_nothing() -> None:
    assert read_object(b"\xef\xbb\xbf" + b'{"a":1}', Limits()) == {"a": 1}
