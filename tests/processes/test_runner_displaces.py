"""A real runner that is full gives back what has not begun: once, whatever else comes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bus.wire.ids import RequestId
from bus.wire.messages.tokens import Accepted, Cancel, Finished, Refused
from tests.harness.slot import FakeGateway, Slot, Stream, request, started_slot
from tests.harness.toy_model import save_toy_model

URGENT, BATCH = 1, 50
QUEUE = 2


@pytest.fixture(scope="module")
def slot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slot]:
    model = save_toy_model(tmp_path_factory.mktemp("models") / "toy")
    home = tmp_path_factory.mktemp("home")
    with started_slot(home, model, max_rows=1, max_waiting=QUEUE) as started:
        yield started.ready()


@pytest.fixture
def gateway(slot: Slot, request: pytest.FixtureRequest) -> Iterator[FakeGateway]:
    made = FakeGateway(slot, name=request.node.name[:60])
    yield made
    made.close()


def ask(gateway: FakeGateway, name: str, priority: int = BATCH, tokens: int = 8) -> Stream:
    return gateway.submit(request(name, priority=priority, max_tokens=tokens))


def filled(gateway: FakeGateway, name: str, tokens: int = 1200) -> list[Stream]:
    """A row that goes on for a while, and a full queue."""
    streams = [ask(gateway, f"{name}-0", tokens=tokens)]
    gateway.until(lambda: streams[0].deltas, "the row has begun")
    streams += [ask(gateway, f"{name}-{number}") for number in range(1, QUEUE + 1)]
    gateway.until(lambda: all(one.answer for one in streams), "answers")
    assert all(isinstance(one.answer, Accepted) for one in streams)
    return streams


def test_what_is_given_back_has_no_entry_and_is_taken_again(gateway: FakeGateway) -> None:
    streams = filled(gateway, "plain")
    urgent = ask(gateway, "plain-urgent", URGENT)
    gateway.until(lambda: streams[-1].displaced, "the youngest is given back")
    assert isinstance(urgent.answer, Accepted) or urgent.answer is None
    assert streams[-1].entries == [] and [one.displaced for one in streams] == [0, 0, 1]
    gateway.ended(urgent, *streams[:-1])
    assert streams[-1].entries == [], "nothing is owed to it"
    again = gateway.submit(request("plain-2", priority=BATCH, max_tokens=8), waited_ms=3000)
    gateway.ended(again)
    assert again is streams[-1] and isinstance(again.end, Finished) and again.tokens == 8
    assert again.displaced == 1


def test_a_gateway_of_an_earlier_version_is_given_nothing_back(slot: Slot) -> None:
    older = FakeGateway(slot, name="older", protocol=7)
    streams = filled(older, "older")
    urgent = ask(older, "older-urgent", URGENT)
    older.until(lambda: urgent.answer, "an answer")
    assert isinstance(urgent.answer, Refused) and urgent.answer.refusal.reason == "queue_full"
    older.ended(*streams)
    assert not any(one.displaced for one in streams)
    older.close()


def test_one_that_was_stopped_before_has_its_end_and_another_is_given_back(
    gateway: FakeGateway,
) -> None:
    streams = filled(gateway, "stopped")
    gateway.send(Cancel(RequestId("stopped-2"), "client"))
    first, second = (ask(gateway, f"stopped-u{number}", URGENT) for number in range(2))
    gateway.ended(*streams[::2], first, second)
    assert streams[2].finishes == ["cancelled"] and streams[2].displaced == 0
    assert streams[1].displaced == 1 and streams[1].entries == []


def test_a_cancel_that_comes_too_late_finds_nothing_and_the_request_may_come_again(
    gateway: FakeGateway,
) -> None:
    streams = filled(gateway, "late")
    urgent = ask(gateway, "late-u", URGENT)
    gateway.until(lambda: streams[-1].displaced, "the youngest is given back")
    gateway.send(Cancel(RequestId("late-2"), "client"))
    gateway.ended(urgent, *streams[:-1])
    assert streams[-1].entries == []
    gateway.submit(request("late-2", priority=BATCH, max_tokens=8), waited_ms=2000)
    gateway.ended(streams[-1])
    assert streams[-1].finishes == ["length"]


def test_one_that_is_still_being_read_is_given_back_and_answered_once(
    gateway: FakeGateway,
) -> None:
    """Submits and the urgent one come in one burst: prompts are long, so that none is read yet."""
    row = ask(gateway, "burst-0", tokens=600)
    gateway.until(lambda: row.deltas, "the row has begun")
    text = "hello world " * 60
    waits = [
        gateway.submit(request(f"burst-{number}", text, priority=BATCH, max_tokens=4))
        for number in range(1, QUEUE + 1)
    ]
    urgent = ask(gateway, "burst-u", URGENT)
    gateway.until(lambda: sum(one.displaced for one in waits) == 1, "one is given back")
    (back,) = [one for one in waits if one.displaced]
    name = f"burst-{waits.index(back) + 1}"
    gateway.submit(request(name, text, priority=BATCH, max_tokens=4), waited_ms=20_000)
    gateway.ended(row, urgent, back)
    assert back.finishes == ["length"]
    (other,) = [one for one in waits if one is not back]
    if other.displaced:  # by the other, which had waited longer when it came again
        assert other.entries == []
    else:
        gateway.ended(other)


def test_what_a_lost_gateway_had_waiting_is_given_back_to_none(
    slot: Slot, gateway: FakeGateway
) -> None:
    lost = FakeGateway(slot, name="lost")
    streams = filled(lost, "lost", tokens=2000)
    lost.pings = False
    lost.close()
    urgent = ask(gateway, "lost-u", URGENT)
    gateway.until(lambda: urgent.answer is not None, "an answer")
    assert isinstance(urgent.answer, Accepted)
    gateway.ended(urgent)
    assert not streams[0].end
    after = ask(gateway, "lost-after", tokens=4)
    gateway.ended(after)
