"""Every way in which a row can go and end is the same on a group as on one rank.

Penalties, grammars, stop strings, choices, log-probabilities, a cancel and a deadline, all in one
batch on the bundled model. What is cut short is compared as far as it came.
"""

from __future__ import annotations

from typing import Any

import pytest

from bus.wire.messages.requests import ChatMessage, ChatPrompt, GenerationRequest, TextPart
from bus.wire.messages.tokens import Cancel, Failed, Finished
from tests.harness.group_requests import STORY, Outcome, assert_same, endless, said, text_hand
from tests.harness.ranks import Layers, one_gateway, ready_group, stages
from tests.harness.slot import ROOT, FakeGateway, request

pytestmark = [pytest.mark.slow, pytest.mark.proof]

TINY = ROOT / "conf" / "tiny"
LAYERS = 8
LATE_MS = 4000
LISTS = {
    "type": "object",
    "properties": {
        "names": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        "kind": {"enum": ["fish", "boat"]},
    },
    "required": ["names", "kind"],
    "additionalProperties": False,
}


def asked(text: str) -> ChatPrompt:
    return ChatPrompt(messages=(ChatMessage(role="user", parts=(TextPart(text=text),)),))


def hand() -> list[GenerationRequest]:
    """What `text_hand` has, and stop strings, drawn penalties, grammars that are drawn."""
    count = asked("List the integers from 1 to 30.")
    drawn = {"temperature": 0.8, "top_p": 0.9}
    penalties = {"frequency_penalty": 0.4, "presence_penalty": 0.2, "repetition_penalty": 1.1}
    schema = {"kind": "json_schema", "json_schema": LISTS}
    more: list[tuple[str, dict[str, Any]]] = [
        ("stopped", {"prompt": count, "stop": ("17",), "max_tokens": 90}),
        ("stopped never", {"prompt": count, "stop": ("no such text",), "max_tokens": 60}),
        ("penalised and drawn", {"sampling": drawn | penalties | {"seed": 11}}),
        ("grammar and drawn", {"output": schema, "sampling": drawn | {"seed": 12}}),
        ("any object", {"output": {"kind": "json_object"}, "sampling": drawn | {"seed": 13}}),
    ]
    usual = {"max_tokens": 32, "top_logprobs": 2, "ignore_eos": False}
    return text_hand() + [
        request(name, STORY + "It ends so: ", **(usual | fields)) for name, fields in more
    ]


def play_ends(gateway: FakeGateway) -> tuple[dict[str, Outcome], dict[str, str]]:
    """Outcomes of the hand, played while one request is cancelled and one comes to its deadline;
    and what those two had said."""
    cancelled = gateway.submit(endless("cancelled"))
    late = gateway.submit(endless("late"), remaining_ms=LATE_MS)
    gateway.until(lambda: cancelled.tokens > 5, "some tokens")
    asked_for = hand()
    half = len(asked_for) // 2
    streams = [gateway.submit(one) for one in asked_for[:half]]
    gateway.until(lambda: streams[0].tokens > 2, "the first row's tokens")
    gateway.send(Cancel(endless("cancelled").request_id, "client"))
    streams += [gateway.submit(one) for one in asked_for[half:]]
    gateway.ended(*streams, late, cancelled, seconds=55)
    assert isinstance(cancelled.end, Finished)
    assert cancelled.finishes == ["cancelled"]
    assert isinstance(late.end, Failed)
    assert late.end.reason == "deadline"
    outcomes = {one.request_id: said(end) for one, end in zip(asked_for, streams, strict=True)}
    return outcomes, {"cancelled": cancelled.text(), "late": late.text()}


@pytest.fixture(scope="module")
def one_rank() -> tuple[dict[str, Outcome], str]:
    """What one rank says to the hand, and the text that the two others are cut from."""
    with one_gateway(TINY) as gateway:
        outcomes, _ = play_ends(gateway)
        whole = gateway.submit(endless("whole"))
        gateway.ended(whole, seconds=50)
        return outcomes, whole.text()


@pytest.mark.parametrize(
    ("sharding", "layers"),
    [
        pytest.param("tensor", [(0, LAYERS)] * 2, id="tensor over 2"),
        pytest.param("pipeline", stages(LAYERS, 2), id="pipeline of 2"),
        pytest.param("pipeline", stages(LAYERS, 3), id="pipeline of 3"),
    ],
)
def test_rows_end_on_a_group_as_they_do_on_one_rank(
    one_rank: tuple[dict[str, Outcome], str], sharding: str, layers: Layers
) -> None:
    wanted, whole = one_rank
    assert wanted["stopped"]["finishes"] == ["stop"]
    assert wanted["stopped"]["text"][0].endswith("16, ")
    with ready_group(TINY, sharding, layers) as (slots, gateway):
        found, cut_short = play_ends(gateway)
        assert_same(found, wanted)
        assert cut_short["cancelled"]
        for name, text in cut_short.items():
            assert whole.startswith(text), name
        assert slots[0].process.poll() is None
