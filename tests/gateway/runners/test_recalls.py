"""What is asked back from a copy that makes way, and when."""

from __future__ import annotations

import pytest

from bus.wire.errors import Refusal
from bus.wire.ids import InstanceId, ModelId, NodeId, RequestId
from bus.wire.instances import Instance, Shard
from bus.wire.messages.requests import GenerationRequest, TextPrompt, Usage
from bus.wire.messages.tokens import AnswerSoFar, ChoiceSoFar, Recall, Submit
from gateway.runners.recalls import RECALL_S, Recalls
from gateway.runners.versions import submit_for

NAME = InstanceId("i")


def instance(*, to: str = "other", urgently: bool = True) -> Instance:
    return Instance(
        instance=NAME,
        model=ModelId("m"),
        shards=(Shard(rank=0, node=NodeId("n"), first_layer=0, last_layer=2, bytes_reserved=1),),
        context_tokens=100,
        keep_alive_s=1.0,
        status="ready",
        yields_to=to,
        yields_urgently=urgently,
    )


def request(priority: int) -> GenerationRequest:
    prompt = TextPrompt(text="x")
    return GenerationRequest(
        request_id=RequestId("r"), model=ModelId("m"), prompt=prompt, priority=priority
    )


def following(one: Instance) -> Recalls:
    recalls = Recalls()
    recalls.follow({NAME: one}, 10.0)
    return recalls


@pytest.mark.parametrize(("priority", "begun"), [(50, True), (99, True), (49, False), (2, False)])
def test_a_moment_after_it_makes_way_what_is_not_urgent_is_asked_back(
    priority: int, begun: bool
) -> None:
    recalls = following(instance())
    assert recalls.due(NAME, request(priority), 9.99 + RECALL_S) is None
    recalls.follow({NAME: instance()}, 10.5)
    asked = recalls.due(NAME, request(priority), 10.0 + RECALL_S)
    assert asked == Recall(RequestId("r"), begun)


@pytest.mark.parametrize(
    ("one", "priority", "at"),
    [
        (instance(), 1, NAME),
        (instance(urgently=False), 50, NAME),
        (instance(to=""), 50, NAME),
        (instance(), 50, InstanceId("another")),
        (instance(), 50, None),
    ],
)
def test_nothing_else_is_asked_back(one: Instance, priority: int, at: InstanceId | None) -> None:
    assert following(one).due(at, request(priority), 1000.0) is None


def test_one_that_stays_after_all_has_its_moment_again() -> None:
    recalls = following(instance())
    recalls.follow({NAME: instance(to="", urgently=False)}, 11.0)
    recalls.follow({NAME: instance()}, 20.0)
    assert recalls.due(NAME, request(50), 20.0) is None
    assert recalls.due(NAME, request(50), 20.0 + RECALL_S) is not None


def test_an_answer_that_was_begun_goes_on_at_no_runner_of_an_earlier_version() -> None:
    so_far = AnswerSoFar((1,), 9, (ChoiceSoFar(1, (2,), 1),), Usage())
    submit = Submit(request(50), 1, 64, 1000, (), 5, so_far)
    assert submit_for(submit, 10) == submit
    refused = submit_for(submit, 9)
    assert isinstance(refused, Refusal) and refused.reason == "unsupported"


def test_a_runner_of_the_version_before_still_reports_tokens_and_hears_of_deaths() -> None:
    so_far = AnswerSoFar((1,), 9, (ChoiceSoFar(1, (2,), 1),), Usage(drafts=2, drafted_tokens=5))
    submit = Submit(request(50), 1, 64, 1000, (), 5, so_far, True, 1, True)
    assert submit_for(submit, 13) == submit
    fresh = Submit(request(50), 1, 64, 1000, (), 5, None, True)
    assert submit_for(fresh, 12) == Submit(request(50), 1, 64, 1000, (), 5)
