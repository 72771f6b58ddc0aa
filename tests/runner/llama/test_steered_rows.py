"""Rows that shoal steers, on a real llama-server: formats, tools, scores, penalties, budgets."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from bus.wire.messages.requests import (
    ChatPrompt,
    OutputFormat,
    Sampling,
    TextPrompt,
    ToolChoice,
    ToolSpec,
)
from bus.wire.messages.tokens import Finished, TokenDelta, ToolCallDelta
from tests.harness.llama_site import TINY, LlamaSite, chat, needs_program, tiny_gguf

pytestmark = needs_program
GREEDY = Sampling(temperature=0.0)
HOT = 3.0
"""A temperature at which the model writes nonsense."""
END = 2041
CLOCK = ToolSpec(
    name="clock",
    parameters={
        "type": "object",
        "properties": {"zone": {"enum": ["CET", "UTC"]}, "hour": {"type": "integer"}},
        "required": ["zone", "hour"],
        "additionalProperties": False,
    },
    strict=True,
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaSite]:
    model = tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny")
    made = LlamaSite(tmp_path_factory.mktemp("s"), model)
    try:
        assert made.host.phase == "ready", made.host.left
        yield made
    finally:
        made.close()


def answered(site: LlamaSite, name: str, prompt: Any, **fields: Any) -> Finished:
    site.gateway.submit(name, prompt, credit=1000, **fields)
    end = site.ended(name)
    assert isinstance(end, Finished), end
    return end


def deltas(site: LlamaSite, name: str, channel: str = "text") -> list[TokenDelta]:
    every = (each for each in site.gateway.entries[name] if isinstance(each, TokenDelta))
    return [each for each in every if each.channel == channel]


def drawn_schema(draw: random.Random, depth: int = 0) -> dict[str, Any]:
    """Return a small schema whose values are short, so that a few tokens are enough."""
    kinds = ["boolean", "integer", "string", "enum", *(["object", "array"] if depth < 2 else [])]
    match draw.choice(kinds):
        case "integer":
            low = draw.randint(-50, 50)
            return {"type": "integer", "minimum": low, "maximum": low + 30}
        case "string":
            return {"type": "string", "maxLength": draw.randint(1, 6)}
        case "enum":
            return {"enum": draw.sample(["red", 7, None, True], 2)}
        case "array":
            items = drawn_schema(draw, depth + 1)
            return {"type": "array", "items": items, "minItems": 1, "maxItems": 2}
        case "object":
            names = draw.sample(["a", "b", "ü"], 2)
            properties = {name: drawn_schema(draw, depth + 1) for name in names}
            required = names[: draw.randint(0, 2)]
            return {"type": "object", "properties": properties, "required": required,
                    "additionalProperties": False}  # fmt: skip
        case _:
            return {"type": "boolean"}


@pytest.mark.parametrize("count", [10, pytest.param(150, marks=pytest.mark.proof)])
def test_nonsense_under_a_schema_is_valid(site: LlamaSite, count: int) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    draw = random.Random(count)
    whole = 0
    for number in range(count):
        schema, name = drawn_schema(draw), f"schema{count}-{number}"
        form = OutputFormat(kind="json_schema", json_schema=schema)
        sampling = Sampling(temperature=HOT, seed=number)
        answered(site, name, chat("Hi"), output=form, sampling=sampling, max_tokens=300)
        if site.reason(name) == "stop":
            jsonschema.validate(json.loads(site.text(name)), schema)
            whole += 1
    assert whole > 0.8 * count


@pytest.mark.parametrize(
    ("form", "right"),
    [
        (OutputFormat(kind="choice", choices=("calm", "storm")), ("calm", "storm")),
        (OutputFormat(kind="regex", rule="[0-9]{3}"), [f"{n:03}" for n in range(1000)]),
        (OutputFormat(kind="grammar", rule='root ::= "x" | "yz"'), ("x", "yz")),
    ],
)
def test_other_formats_hold(site: LlamaSite, form: OutputFormat, right: Any) -> None:
    name = f"form {form.kind}"
    answered(site, name, chat("Hi"), output=form, max_tokens=20, sampling=Sampling(temperature=HOT))
    assert site.text(name) in right and site.reason(name) == "stop"


def test_required_and_strict_tools_are_called_as_their_schema_says(site: LlamaSite) -> None:
    prompt = ChatPrompt(messages=chat("Hi").messages, tools=(CLOCK,))
    answered(
        site, "call", prompt, max_tokens=120, sampling=Sampling(temperature=HOT, seed=1),
        tool_choice=ToolChoice(mode="required"), parallel_tool_calls=False, thinking=False,
    )  # fmt: skip
    calls = [e for e in site.gateway.entries["call"] if isinstance(e, ToolCallDelta)]
    assert calls[0].name == "clock" and site.reason("call") == "tool_calls"
    arguments = json.loads("".join(call.arguments for call in calls))
    assert arguments["zone"] in ("CET", "UTC") and isinstance(arguments["hour"], int)


def test_a_format_is_kept_behind_thoughts_that_are_free(site: LlamaSite) -> None:
    form = OutputFormat(kind="json_object")
    answered(
        site, "thinks", chat("What is shoal?"), output=form, max_tokens=200, thinking=True,
        thinking_budget=9, sampling=Sampling(temperature=1.0, seed=3),
    )  # fmt: skip
    thoughts = "".join(delta.text for delta in deltas(site, "thinks", "reasoning"))
    said = "".join(delta.text for delta in deltas(site, "thinks"))
    assert thoughts.strip() and said.lstrip().startswith("{"), (thoughts, said)


def test_thinking_is_ended_by_its_budget(site: LlamaSite) -> None:
    fields = {"max_tokens": 60, "sampling": GREEDY, "thinking": True}
    free = answered(site, "unlimited", chat("What is shoal?"), **fields)
    cut = answered(site, "limited", chat("What is shoal?"), **fields, thinking_budget=4)
    assert cut.usage.reasoning_tokens < free.usage.reasoning_tokens
    assert deltas(site, "limited")


def test_tokens_have_scores(site: LlamaSite) -> None:
    end = answered(site, "scored", TextPrompt(text="Once"), max_tokens=9, sampling=GREEDY,
                   top_logprobs=2)  # fmt: skip
    scores = [score for delta in deltas(site, "scored") for score in delta.logprobs]
    assert len(scores) == end.usage.completion_tokens == 9
    for score in scores:
        assert len(score.top) == 2 and score.top[0][0] == score.token_id
        assert score.top[0][2] == score.logprob and -30 < score.top[1][2] <= score.logprob <= 0
    assert "".join(score.text for score in scores) == site.text("scored")


def test_tokens_inside_a_character_have_scores_too(site: LlamaSite) -> None:
    vocabulary = json.loads((TINY / "tokenizer.json").read_text())["model"]["vocab"]
    liked = {vocabulary["Ã"]: 100.0, vocabulary["©"]: 100.0, 64: 100.0}
    sampling = Sampling(temperature=5.0, seed=2, logit_bias=liked)
    end = answered(site, "bytes", TextPrompt(text="a"), max_tokens=24, sampling=sampling,
                   top_logprobs=1)  # fmt: skip
    scores = [score for delta in deltas(site, "bytes") for score in delta.logprobs]
    drawn = {score.token_id for score in scores}
    assert end.usage.completion_tokens == 24 and {64, vocabulary["Ã"]} <= drawn <= set(liked)
    assert len({score.logprob for score in scores}) > 3
    assert all(-60 < score.logprob <= score.top[0][2] for score in scores)


@pytest.mark.parametrize("field", ["frequency_penalty", "presence_penalty"])
def test_penalties_count_the_answer_alone(site: LlamaSite, field: str) -> None:
    """Behind this prompt the logit of `a` is 0.44 above that of `n`; behind one more `a` it is 1.45
    below."""

    def said(behind: float, tokens: int, penalty: float) -> str:
        liked = {64: 100.0, 77: 100.0 - behind}
        sampling = Sampling(temperature=0.0, logit_bias=liked, **{field: penalty})
        name = f"{field} {behind} {tokens} {penalty}"
        answered(site, name, TextPrompt(text="a b c"), max_tokens=tokens, sampling=sampling)
        return site.text(name)

    assert said(2.45, 2, 0.5) == "aa" and said(2.45, 2, 1.5) == "an"
    assert said(0.8, 1, 1.5) == "a", "the prompt's own letter counts"


def test_end_tokens_wait_for_the_minimum_or_are_ignored(site: LlamaSite) -> None:
    eager = Sampling(temperature=0.0, logit_bias={END: 100.0})
    ends = {
        "eager": {},
        "least": {"min_tokens": 7},
        "ignored": {"ignore_eos": True},
    }
    counts = {
        name: answered(
            site, name, TextPrompt(text="Once"), max_tokens=11, sampling=eager, **fields
        ).usage.completion_tokens
        for name, fields in ends.items()
    }
    assert counts == {"eager": 1, "least": 8, "ignored": 11}


def test_an_answer_with_a_history_gives_all_token_ids(site: LlamaSite) -> None:
    first = answered(site, "turn", chat("Hi"), max_tokens=8, sampling=GREEDY, history=())
    assert first.prompt is not None
    count = first.usage.prompt_tokens + first.usage.completion_tokens
    assert len(first.prompt.token_ids) == count
    second = answered(site, "turn2", chat("And?"), max_tokens=4, sampling=GREEDY,
                      history=first.prompt.token_ids)  # fmt: skip
    assert second.prompt is not None
    assert second.prompt.token_ids[:count] == first.prompt.token_ids


def test_a_seed_repeats_a_steered_answer(site: LlamaSite) -> None:
    form = OutputFormat(kind="json_object")
    for name in ("one", "two", "other"):
        sampling = Sampling(temperature=HOT, seed=8 if name == "other" else 7)
        answered(site, name, chat("Hi"), output=form, sampling=sampling, max_tokens=30)
    assert site.text("one") == site.text("two") != site.text("other")


def test_a_prefix_is_shared_within_one_key_only(site: LlamaSite) -> None:
    prompt = TextPrompt(text="The fish swam far away over the sea and came back in the morning. ")
    cached = {}
    for name, key in (("k1", "red"), ("k2", "blue"), ("k3", "red"), ("k4", None)):
        end = answered(site, name, prompt, max_tokens=2, key_id=key, sampling=GREEDY)
        cached[name] = end.usage.cached_tokens
    assert cached["k1"] == cached["k2"] == cached["k4"] == 0 < cached["k3"]


def test_rows_get_room_from_idle_slots(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The KV cache has 512 tokens for four slots; each row leaves some 150 in its own."""
    model = tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny")
    made = LlamaSite(tmp_path_factory.mktemp("s"), model, memory_limit_bytes=1)
    try:
        assert made.role.described["kv_tokens"] == 512
        for number in range(9):
            prompt = TextPrompt(text=f"{number} fish " * 40)
            fields = {"top_logprobs": 0} if number % 2 else {}
            end = answered(made, f"r{number}", prompt, max_tokens=30, sampling=GREEDY, **fields)
            assert end.usage.completion_tokens > 0 and end.usage.prompt_tokens > 100
    finally:
        made.close()
