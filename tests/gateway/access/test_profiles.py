"""What profiles change of requests, and until when clients rest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bus.models.tasks import ClientName, ClientProfile
from bus.wire.ids import ModelId, RequestId
from bus.wire.messages.requests import ChatPrompt, GenerationRequest
from gateway.access.cooldowns import FRESH_S, MOST_RESTING, ClientRests
from gateway.access.profiles import (
    asked_too_soon,
    cooldown_of,
    too_many_waiting,
    with_defaults,
)
from gateway.dialects.dialect import Extras, Parsed, headers_of

ANN, BEN = ClientName("key", "ann"), ClientName("client_id", "ben")


def parsed(extras: Extras, *priorities: int) -> Parsed:
    requests = tuple(
        GenerationRequest(
            request_id=RequestId(f"r{number}"),
            model=ModelId("m"),
            prompt=ChatPrompt(messages=()),
            priority=priority,
        )
        for number, priority in enumerate(priorities)
    )
    return Parsed(requests, "m", False, "a", 0.0, "shoal", extras=extras)


@pytest.mark.parametrize(
    ("extras", "said", "then"),
    [
        (Extras(), 10, 20),
        (Extras(says_priority=True), 10, 10),
        (Extras(priority=1, says_priority=True), 1, 1),
        (Extras(), 5, 5),
    ],
)
def test_a_priority_is_the_profiles_where_the_body_says_none(
    extras: Extras, said: int, then: int
) -> None:
    made = with_defaults(parsed(extras, said, said), ClientProfile(priority=20))
    assert [one.priority for one in made.requests] == [then, then]


@pytest.mark.parametrize(
    ("extras", "stays_s"),
    [
        (Extras(), 60.0),
        (Extras(stay_warm_s=5.0), 5.0),
        (Extras(stay_warm_s=0.0), 0.0),
        (Extras(keep_alive_s=7.0), 7.0),
    ],
)
def test_so_is_how_long_a_model_stays(extras: Extras, stays_s: float) -> None:
    made = with_defaults(parsed(extras, 10), ClientProfile(keep_alive_s=60.0))
    assert made.extras.wish_s == stays_s


def test_without_a_profile_nothing_changes() -> None:
    asked = parsed(Extras(priority=3, says_priority=True), 3)
    assert with_defaults(asked, ClientProfile()) == asked


def test_the_longer_rest_counts() -> None:
    extras, profile = Extras(cooldown_s=4.0), ClientProfile(cooldown_s=9.0)
    assert cooldown_of(extras, profile) == 9.0
    assert cooldown_of(replace(extras, cooldown_s=10.0), profile) == 10.0


def test_a_client_rests_here_and_as_others_tell() -> None:
    here, there = ClientRests(), ClientRests()
    here.rest(ANN, 10.0)
    here.rest(ANN, 8.0)
    assert here.left_s(ANN, 4.0) == 6.0 and here.left_s(BEN, 4.0) == 0.0
    there.take_report(0, here.rows({}, 4.0), 4.0)
    assert there.left_s(ANN, 5.0) == 5.0 and there.clients() == {ANN}
    there.rest(ANN, 7.0)
    assert there.left_s(ANN, 5.0) == 5.0, "the longer of both"
    assert there.left_s(ANN, 10.0) == 0.0
    assert here.rows({}, 10.0) == [], "who has rested is forgotten"
    there.take_report(0, [], 10.0)
    assert there.clients() == {ANN}, "it rests here, as far as was looked"
    assert there.rows({}, 10.0) == [] and there.clients() == set()


def test_what_waits_elsewhere_is_believed_while_it_is_told() -> None:
    here, there = ClientRests(), ClientRests()
    told = here.rows({BEN: 3}, 1.0)
    there.take_report(0, told, 1.0)
    there.take_report(2, told, 3.0)
    assert there.waiting_elsewhere(BEN, 3.0) == 6 and there.waiting_elsewhere(ANN, 3.0) == 0
    assert there.waiting_elsewhere(BEN, 1.0 + FRESH_S) == 3, "process 0 says nothing any more"
    there.take_report(2, [], 4.0)
    assert there.waiting_elsewhere(BEN, 4.0) == 3


def test_names_without_end_take_no_memory_without_end() -> None:
    rests = ClientRests()
    for number in range(MOST_RESTING + 5):
        rests.rest(ClientName("client_id", f"c{number}"), 100.0)
    assert len(rests.clients()) == MOST_RESTING
    assert rests.left_s(ClientName("client_id", "c4"), 0.0) == 0.0
    assert rests.left_s(ClientName("client_id", "c5"), 0.0) == 100.0


def test_a_refusal_says_who_and_when_to_come_again() -> None:
    soon = asked_too_soon(ANN, 2.25)
    assert (soon.status, soon.code) == (429, "client_cooldown")
    assert "the API key 'ann' is in cooldown for 2.2 s" in soon.message
    assert ("retry-after", "3") in [(name.casefold(), value) for name, value in headers_of(soon)]
    full = too_many_waiting(BEN, 4, 4)
    assert (full.status, full.code, full.facts) == (429, "client_queue_full", {"limit": 4})
    assert full.message.startswith("the client 'ben' already has 4 waiting requests")
