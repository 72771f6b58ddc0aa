"""A group ends thinking where one rank does: the lead alone knows what it forces."""

from __future__ import annotations

import pytest

from bus.wire.messages.requests import ChatMessage, ChatPrompt, GenerationRequest, TextPart
from tests.harness.group_requests import Outcome, assert_same, play
from tests.harness.ranks import PIPELINE_2, TENSOR_2, TINY, Layers, one_gateway, ready_group
from tests.harness.slot import request

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def hand() -> list[GenerationRequest]:
    """One question with budgets that end its thinking and one that does not, beside another."""
    message = ChatMessage(role="user", parts=(TextPart(text="List the integers from 1 to 30."),))
    asked = ChatPrompt(messages=(message,))
    usual = {"max_tokens": 30, "top_logprobs": 1, "ignore_eos": False, "thinking": True}
    return [
        request("beside", "A shoal moves", max_tokens=30, top_logprobs=1),
        *(
            request(f"budget {budget}", prompt=asked, thinking_budget=budget, **usual)
            for budget in (0, 1, 4, 100)
        ),
    ]


@pytest.fixture(scope="module")
def one_rank() -> dict[str, Outcome]:
    with one_gateway(TINY) as gateway:
        return play(gateway, hand())


@pytest.mark.proof
@pytest.mark.parametrize(
    ("sharding", "layers"),
    [
        pytest.param("pipeline", PIPELINE_2, id="pipeline"),
        pytest.param("tensor", TENSOR_2, id="tensor"),
    ],
)
def test_budgets_end_thinking_alike_on_a_group_and_on_one_rank(
    one_rank: dict[str, Outcome], sharding: str, layers: Layers
) -> None:
    with ready_group(TINY, sharding, layers) as (_, gateway):
        outcomes = play(gateway, hand())
    assert_same(outcomes, one_rank)
    texts = {name: one["text"][0] for name, one in outcomes.items()}
    assert len({texts[f"budget {budget}"] for budget in (0, 4, 100)}) == 3
