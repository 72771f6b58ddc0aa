"""What no type knows is named to the client, and what is a slip is refused; never neither."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterable
from itertools import product
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.wire.errors import BadRequest
from gateway.dialects.anthropic.dialect import AnthropicMessages
from gateway.dialects.dialect import Limits, WholeDialect
from gateway.dialects.ollama.dialect import OllamaChat, OllamaGenerate
from gateway.dialects.openai.chat import OpenAIChat
from gateway.dialects.openai.completions import OpenAICompletions
from gateway.dialects.openai.responses import OpenAIResponses
from gateway.dialects.prompts.dialect import Tokenize
from gateway.dialects.published_fields import PUBLISHED_FIELDS
from gateway.dialects.unknown_fields import (
    HEADER_BYTES,
    MAX_NAMED,
    MORE,
    header_of,
    labels_of,
    slip_of,
)

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USE = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}
BODIES: list[tuple[WholeDialect, dict[str, Any], tuple[str, ...]]] = [
    (
        OpenAIChat(),
        {
            "model": "m",
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "u"}]},
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "content": "t", "tool_call_id": "c"},
            ],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
            "stream": True,
            "stream_options": {"include_usage": True},
        },
        ("parameters", "schema"),
    ),
    (OpenAICompletions(), {"model": "m", "prompt": "p"}, ()),
    (
        OpenAIResponses(),
        {
            "model": "m",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "u"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "o"},
            ],
            "tools": [{"type": "function", "name": "f", "parameters": {}}],
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
            "reasoning": {"effort": "low"},
        },
        ("parameters", "schema"),
    ),
    (
        AnthropicMessages(),
        {
            "model": "m",
            "max_tokens": 5000,
            "system": [{"type": "text", "text": "s"}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "u"}]},
                {"role": "assistant", "content": [USE]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]},
            ],
            "tools": [{"name": "f", "input_schema": {}}],
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        },
        ("input_schema", "input"),
    ),
    (
        OllamaChat(),
        {
            "model": "m",
            "messages": [{"role": "user", "content": "u"}],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
            "options": {"seed": 1},
        },
        ("parameters",),
    ),
    (Tokenize(), {"model": "m", "messages": [{"role": "user", "content": "u"}]}, ()),
    (OllamaGenerate(), {"model": "m", "prompt": "p", "options": {"seed": 1}}, ()),
]
"""Dialects, bodies of theirs, and the fields whose objects hold what their author likes."""


def _objects(value: Any, free: tuple[str, ...], path: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Every object of a body that a type describes, with its path."""
    found: list[tuple[str, dict[str, Any]]] = []
    if isinstance(value, dict):
        found.append((path, value))
        for name, inner in value.items():
            if name not in free:
                found += _objects(inner, free, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found += _objects(inner, free, f"{path}[{index}]")
    return found


@settings(max_examples=300)
@given(st.data())
def test_nothing_is_ignored_unnamed(desk: Any, data: Any) -> None:
    dialect, valid, free = data.draw(st.sampled_from(BODIES))
    body = copy.deepcopy(valid)
    path, place = data.draw(st.sampled_from(_objects(body, free)))
    name = data.draw(st.from_regex(r"[a-z_.\[\]\n é]{1,12}", fullmatch=True))
    if name in place:
        return
    place[name] = data.draw(st.sampled_from([1, "x", True, {}, [1], [{"a": 1}]]))
    full = f"{path}.{name}" if path else name
    kept = desk.parse(dialect, valid)
    try:
        parsed = desk.parse(dialect, body)
    except BadRequest as refusal:
        # a field that the type knows has rules of its own
        assert refusal.field
        assert refusal.field.startswith(full) or name in PUBLISHED_FIELDS
    else:
        if parsed.extras.ignored:
            assert parsed.extras.ignored == (full,)
            assert parsed.requests[0].prompt == kept.requests[0].prompt
        else:
            assert name in PUBLISHED_FIELDS or name.startswith("x_")


@pytest.mark.parametrize(("dialect", "body", "_free"), BODIES)
def test_null_in_an_unknown_field_is_as_if_left_out(
    desk: Any, dialect: WholeDialect, body: dict[str, Any], _free: tuple[str, ...]
) -> None:
    assert desk.parse(dialect, {**body, "colour": None}).extras.ignored == ()
    turned = copy.deepcopy(body)
    for turn in turned.get("messages", turned.get("input", [])):
        turn["colour"] = None
    assert desk.parse(dialect, turned).extras.ignored == ()


@pytest.mark.parametrize(("dialect", "body", "_free"), BODIES)
def test_an_unknown_field_is_refused_where_fields_are_strict(
    desk: Any, dialect: WholeDialect, body: dict[str, Any], _free: tuple[str, ...]
) -> None:
    strict = desk.context(limits=Limits(strict_fields=True))
    for place in [place for _, place in _objects(body, _free)][:3]:
        sent = copy.deepcopy(body)
        for _, inner in _objects(sent, _free):
            if inner == place:
                inner["colour"] = 1
        with pytest.raises(BadRequest, match=r"unknown field '.*colour'"):
            dialect.parse(json.dumps(sent).encode(), strict)
    assert dialect.parse(json.dumps(body).encode(), strict).requests


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("temprature", "temperature"),
        ("temperatur", "temperature"),
        ("tempreature", "temperature"),
        ("mesages", "messages"),
        ("maxTokens", "max_tokens"),
        ("modle", "model"),
        ("respnse_fromat", "response_format"),
        ("stop_sequence", None),  # one from `stop_sequences`, which chat completions lack
        ("seeds", None),  # of four letters
        ("top_a", None),
        ("tool", None),  # a published field
        ("colour", None),
        ("tols", None),
    ],
)
def test_a_slip_is_one_letter_away_or_two_from_long_names(name: str, known: str | None) -> None:
    fields = ("temperature", "messages", "max_tokens", "model", "response_format", "seed", "top_p")
    assert slip_of(name, (*fields, "tool_choice")) == known


def _distance(one: str, other: str) -> int:
    """How many letters to leave out, add, change or swap with the next; the textbook's table."""
    table = {(i, -1): i + 1 for i in range(-1, len(one))}
    table |= {(-1, j): j + 1 for j in range(-1, len(other))}
    for i, j in product(range(len(one)), range(len(other))):
        cost = int(one[i] != other[j])
        best = min(table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + cost)
        if i and j and one[i] == other[j - 1] and one[i - 1] == other[j]:
            best = min(best, table[i - 2, j - 2] + 1)
        table[i, j] = best
    return table[len(one) - 1, len(other) - 1]


@given(st.text("abcd_", min_size=1, max_size=12), st.text("abcd_", min_size=1, max_size=12))
def test_slips_are_measured_in_letters(name: str, known: str) -> None:
    letters = len(known.replace("_", ""))
    allowed = 2 if letters >= 9 else 1 if letters >= 5 else -1
    expected = _distance(name, known) <= allowed and name not in PUBLISHED_FIELDS
    assert (slip_of(name, (known,)) == known) is expected


def test_a_conversations_keys_are_never_slips(desk: Any) -> None:
    turn = {"role": "user", "content": "u", "nmae": "x", "tool_call_idd": "y"}
    parsed = desk.parse(OpenAIChat(), {"model": "m", "messages": [turn, turn]})
    assert parsed.extras.ignored == (
        "messages[0].nmae", "messages[0].tool_call_idd",
        "messages[1].nmae", "messages[1].tool_call_idd",
    )  # fmt: skip


def test_so_many_fields_are_named_and_no_more(desk: Any) -> None:
    more = {f"zz{number}zz": number for number in range(5000)}
    turn = {"role": "user", "content": "u", **more}
    parsed = desk.parse(OpenAIChat(), {"model": "m", "messages": [turn], **more})
    assert len(parsed.extras.ignored) == MAX_NAMED


@pytest.mark.parametrize("dialect, body", [(one, body) for one, body, _ in BODIES])
def test_few_unknown_fields_are_compared_with_known_names(
    desk: Any, monkeypatch: pytest.MonkeyPatch, dialect: WholeDialect, body: dict[str, Any]
) -> None:
    compared: list[str] = []

    def slip(name: str, names: Iterable[str]) -> str | None:
        compared.append(name)
        return slip_of(name, names)

    monkeypatch.setattr("gateway.dialects.body.slip_of", slip)
    more = {f"zz{number}zz": number for number in range(1000)}
    extra = {"chat_template_kwargs": {}} if isinstance(dialect, OpenAIChat) else {}
    places = len(list(_objects(body | extra, ())))
    for at in range(places):
        changed = copy.deepcopy(body | extra)
        list(_objects(changed, ()))[at][1].update(more)
        compared.clear()
        with contextlib.suppress(BadRequest):
            desk.parse(dialect, changed)
        assert len(compared) <= MAX_NAMED, (at, len(compared))


@given(st.lists(st.text(min_size=1, max_size=300), max_size=MAX_NAMED))
def test_a_header_holds_names_that_no_client_can_forge(names: list[str]) -> None:
    said = header_of(names)
    assert said.isascii()
    assert said.isprintable()
    assert len(said) <= HEADER_BYTES
    shown = said.split(", ") if said else []
    if MORE in shown:
        assert len(shown) - 1 < len(names)
    else:
        assert [unquote(name) for name in shown] == [
            name.encode(errors="replace").decode() for name in names
        ]


def test_a_counters_labels_are_a_closed_set() -> None:
    names = ("reasoning_format", "messages[3].reasoning_content", "a\nb", "options.zz")
    assert labels_of(names) == {"reasoning_format": 1, "reasoning_content": 1, "other": 2}


def test_the_published_fields_are_those_of_the_installed_clients() -> None:
    from tests.harness.published_fields import published  # imports all clients, for a second

    assert published() - PUBLISHED_FIELDS == set()
