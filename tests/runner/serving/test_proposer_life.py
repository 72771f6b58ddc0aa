"""When a proposer can be used: measured first, silent, lost, refused, and tried again."""

from __future__ import annotations

import pytest

from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.messages.control import ProposerPlace
from bus.wire.messages.requests import ProposerUse
from runner.serving.proposer_life import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    SILENT_S,
    ProposerLife,
    ProposerTrouble,
)

PLACE = ProposerPlace(
    instance=InstanceId("i1"),
    generation=1,
    model=ModelId("small"),
    node=NodeId("n2"),
    address="tcp://h:1",
)
LOST = ProposerTrouble("runner_lost", "the process of small is gone")


def life_at(now: float) -> ProposerLife:
    life = ProposerLife(ProposerUse(model=ModelId("small"), state="none"))
    life.begin(PLACE, now)
    return life


def measured(life: ProposerLife, now: float, trip_s: float) -> ProposerTrouble | None:
    assert life.pings(now)
    life.note_alive(now + trip_s)
    return life.ponged(now + trip_s)


def ready(now: float) -> ProposerLife:
    life = life_at(now)
    assert life.may_connect(now) and life.why_not
    life.connecting(now)
    assert measured(life, now, 0.01) is None and life.is_near
    life.attached()
    return life


def test_a_proposer_is_measured_before_it_is_used_and_every_second_from_then_on() -> None:
    life = ready(10.0)
    assert life.why_not == "" and life.use.round_trip_ms == pytest.approx(10.0)
    assert not life.pings(10.5) and life.pings(11.0)
    assert not life.pings(12.5), "one ping is open at a time"


def test_a_proposer_that_is_far_away_three_times_is_refused() -> None:
    life = life_at(0.0)
    life.connecting(0.0)
    assert measured(life, 0.0, 0.15) is None and not life.is_near
    assert measured(life, 0.2, 0.15) is None
    trouble = measured(life, 0.4, 0.15)
    assert trouble is not None and trouble.reason == "unsupported"
    assert "150 ms; the limit is 100 ms" in trouble.why
    life = ready(0.0)
    assert measured(life, 1.0, 0.3) is None and measured(life, 2.0, 0.3) is None, "a short stall"
    assert measured(life, 3.0, 0.3) is not None


def test_silence_is_a_loss_and_the_time_of_an_own_standstill_does_not_count() -> None:
    life, now = ready(0.0), 0.0
    while (trouble := life.look(now)) is None:
        now += 0.25
    assert trouble.reason == "runner_lost" and SILENT_S < now < SILENT_S + 0.5
    halted = ready(0.0)
    assert halted.look(0.25) is None
    assert halted.look(60.0) is None, "this process stood still"
    assert halted.look(60.25) is None


def test_a_draft_that_never_comes_is_a_loss_after_a_minute() -> None:
    life, now = ready(0.0), 0.0
    life.note_question(1, 0.0)
    life.note_question(2, 0.0)
    life.note_answer(1, is_draft=True)
    trouble = None
    while trouble is None and now < 90.0:
        now += 0.25
        life.note_alive(now)
        trouble = life.look(now)
    assert trouble is not None and trouble.reason == "deadline" and 60.0 < now < 60.5


def test_pauses_grow_until_a_draft_arrives() -> None:
    life, now, pauses = ready(0.0), 0.0, list[float]()
    for _ in range(8):
        life.troubled(LOST, now)
        assert life.why_not == LOST.why and life.use.reason == "runner_lost"
        began = now
        while not life.may_connect(now):
            now += 0.5
        pauses.append(now - began)
        life.connecting(now)
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == LONGEST_PAUSE_S and life.use.lost == 8
    life.attached()
    assert life.use.reason is None and life.why_not == ""
    life.note_answer(1, is_draft=True)
    life.troubled(LOST, now)
    assert not life.may_connect(now) and life.may_connect(now + FIRST_PAUSE_S)


def test_a_refusal_is_no_loss_and_another_place_begins_anew() -> None:
    life = ready(0.0)
    life.troubled(ProposerTrouble("unknown_model", "not here"), 0.0)
    assert life.use.lost == 0 and life.use.reason == "unknown_model"
    life.begin(PLACE.model_copy(update={"node": NodeId("n3")}), 0.0)
    assert life.may_connect(0.0) and life.use.node == "n3" and life.use.reason is None
    life.begin(PLACE.model_copy(update={"address": "", "why": "none is ready"}), 1.0)
    assert not life.may_connect(100.0) and life.why_not == "none is ready"
