from __future__ import annotations

from typing import Any

import pytest

from bus.wire.messages.requests import TextPrompt, TokensPrompt
from gateway.dialects.body import EXTRAS
from gateway.dialects.dialect import Limits
from gateway.dialects.openai.bodies import HARMLESS, REFUSED_COMPLETIONS, CompletionsBody
from gateway.dialects.openai.completions import OpenAICompletions
from tests.harness.text_forms import FORM_FIELDS

COMPLETIONS = OpenAICompletions()


def _body(**more: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": "Once", **more}


HONOURED: list[tuple[str, dict[str, Any], str, Any]] = [
    ("model", {"model": "m"}, "model", "m"),
    ("n", {"n": 3}, "n", 3),
    ("best_of equal", {"n": 2, "best_of": 2}, "n", 2),
    ("max_tokens", {"max_tokens": 50}, "max_tokens", 50),
    ("max_tokens default", {}, "max_tokens", 16),
    ("stop", {"stop": ["a", "b"]}, "stop", ("a", "b")),
    ("seed", {"seed": -5}, "sampling.seed", -5),
    ("temperature", {"temperature": 0.5}, "sampling.temperature", 0.5),
    ("top_p", {"top_p": 0.5}, "sampling.top_p", 0.5),
    ("top_k", {"top_k": 3}, "sampling.top_k", 3),
    ("min_p", {"min_p": 0.5}, "sampling.min_p", 0.5),
    ("frequency", {"frequency_penalty": 1}, "sampling.frequency_penalty", 1.0),
    ("presence", {"presence_penalty": 1}, "sampling.presence_penalty", 1.0),
    ("repetition", {"repetition_penalty": 1.5}, "sampling.repetition_penalty", 1.5),
    ("logit_bias", {"logit_bias": {"7": 1}}, "sampling.logit_bias", {7: 1.0}),
    ("logprobs", {"logprobs": 5}, "top_logprobs", 5),
    ("logprobs zero", {"logprobs": 0}, "top_logprobs", 0),
    ("no logprobs", {"logprobs": None}, "top_logprobs", None),
    ("echo of text alone", {"echo": True}, "prompt_logprobs", None),
    ("logprobs alone", {"logprobs": 5}, "prompt_logprobs", None),
    ("echo with logprobs", {"echo": True, "logprobs": 5}, "prompt_logprobs", 5),
    ("echo with logprobs 0", {"echo": True, "logprobs": 0}, "prompt_logprobs", 0),
    ("echo of token ids", {"echo": True, "prompt": [1, 2]}, "prompt_logprobs", 0),
    ("as many as fit", {"max_tokens": -1}, "max_tokens", None),
    ("the prompt alone", {"echo": True, "max_tokens": 0}, "max_tokens", 0),
    ("the prompt alone is read", {"echo": True, "max_tokens": 0}, "prompt_logprobs", 0),
    ("ignore_eos", {"ignore_eos": True}, "ignore_eos", True),
    ("min_tokens", {"min_tokens": 7}, "min_tokens", 7),
    ("user", {"user": "u"}, "client_id", "u"),
    ("safety_identifier", {"safety_identifier": "u"}, "client_id", "u"),
    ("suffix", {"suffix": "end"}, "prompt", TextPrompt(text="Once", suffix="end")),
    ("empty suffix", {"suffix": ""}, "prompt", TextPrompt(text="Once")),
    ("tokens", {"prompt": [1, 2, 3]}, "prompt", TokensPrompt(token_ids=(1, 2, 3))),
    ("x_priority", {"x_priority": "batch"}, "priority", 50),
]


@pytest.mark.parametrize(
    ("sent", "path", "wanted"), [row[1:] for row in HONOURED], ids=[row[0] for row in HONOURED]
)
def test_a_field_is_honoured(desk: Any, sent: dict[str, Any], path: str, wanted: Any) -> None:
    [found] = desk.parse(COMPLETIONS, _body(**sent)).requests
    for step in path.split("."):
        found = getattr(found, step)
    assert found == wanted


def test_several_prompts_make_several_requests_with_ids_of_their_own(desk: Any) -> None:
    parsed = desk.parse(COMPLETIONS, _body(prompt=["a", "b"], n=2))
    assert [one.prompt.text for one in parsed.requests] == ["a", "b"]
    assert len({one.request_id for one in parsed.requests}) == 2
    assert parsed.answer_id == f"cmpl-{parsed.requests[0].request_id}"
    assert parsed.choices == 2


def test_lists_of_tokens_make_several_requests(desk: Any) -> None:
    parsed = desk.parse(COMPLETIONS, _body(prompt=[[1, 2], [3]]))
    assert [one.prompt.token_ids for one in parsed.requests] == [(1, 2), (3,)]


def test_echo_keeps_each_prompts_text(desk: Any) -> None:
    assert desk.parse(COMPLETIONS, _body(echo=True)).echoes == ("Once",)
    assert desk.parse(COMPLETIONS, _body(prompt=["a", "b"], echo=True)).echoes == ("a", "b")
    assert desk.parse(COMPLETIONS, _body(echo=False)).echoes == ()
    assert desk.parse(COMPLETIONS, _body(prompt=[[1], [2]], echo=True)).echoes == (None, None)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt[1]"),
    ({"prompt": ["a", 5]}, "prompt[1]"),
    ({"prompt": [1, "a"]}, "prompt[1]"),
    ({"prompt": [1, -2]}, "prompt[1]"),
    ({"prompt": [1, True]}, "prompt[1]"),
    ({"prompt": [1, 2**31]}, "prompt[1]"),
    ({"prompt": [[1], []]}, "prompt[1]"),
    ({"prompt": [[1], [2, 3.5]]}, "prompt[1][1]"),
    ({"prompt": ["a"] * 129}, "prompt"),
    ({"best_of": 2}, "best_of"),
    ({"echo": True, "logprobs": 1, "n": 2}, "n"),
    ({"echo": True, "prompt": [1], "n": 2}, "n"),
    ({"echo": True, "max_tokens": 0, "n": 2}, "n"),
    ({"echo": True, "logprobs": 1, "n": 2, "best_of": 2}, "n"),
    ({"echo": True, "logprobs": 1, "suffix": "x"}, "suffix"),
    ({"max_tokens": 0, "logprobs": 1}, "max_tokens"),
    ({"max_tokens": -2, "echo": True}, "max_tokens"),
    ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ({"echo": "yes"}, "echo"),
    ({"suffix": "x", "prompt": [1]}, "suffix"),
    ({"suffix": 5}, "suffix"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": 21}, "logprobs"),
    ({"n": 0}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"stream_options": {}}, "stream_options"),
    ({"store": True}, "store"),
    ({"service_tier": "fast"}, "service_tier"),
    ({"promt": "x"}, "promt"),
]


@pytest.mark.parametrize(
    ("sent", "field"), REFUSED, ids=[f"{index}-{field}" for index, (_, field) in enumerate(REFUSED)]
)
def test_a_field_is_refused_by_name(desk: Any, sent: dict[str, Any], field: str) -> None:
    assert desk.refusal(COMPLETIONS, _body(**sent)).field == field


@pytest.mark.parametrize("field", sorted(REFUSED_COMPLETIONS))
def test_what_is_not_offered_is_refused_with_advice(desk: Any, field: str) -> None:
    refusal = desk.refusal(COMPLETIONS, _body(**{field: 1}))
    assert refusal.field == field
    assert REFUSED_COMPLETIONS[field] in refusal.message


@pytest.mark.parametrize("field", sorted(HARMLESS))
def test_harmless_fields_change_nothing(desk: Any, field: str) -> None:
    assert desk.parse(COMPLETIONS, _body(**{field: {}})) == desk.parse(COMPLETIONS, _body())


def test_a_cache_key_says_which_requests_belong_together(desk: Any) -> None:
    assert desk.parse(COMPLETIONS, _body(prompt_cache_key="k")).affinity == "k"


def test_the_number_of_prompts_is_bounded(desk: Any) -> None:
    refusal = desk.refusal(COMPLETIONS, _body(prompt=[[1], [2]]), limits=Limits(prompts=1))
    assert refusal.field == "prompt"


def test_every_field_of_the_body_is_sent_by_a_test_above() -> None:
    sent = {name for _, body, _, _ in HONOURED for name in body}
    sent |= {name for body, _ in REFUSED for name in body} - {"promt", "prompt_logprobs"}
    sent |= FORM_FIELDS | {"stream", "prompt_cache_key"}
    assert set(CompletionsBody.model_fields) == sent - EXTRAS.keys()
