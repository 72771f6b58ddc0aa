"""Bodies of many prompts, and a runner with fewer places: what waits for whom."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, RequestId
from bus.wire.messages.requests import GenerationRequest, TextPrompt
from gateway.requests.inbox import EntryInbox
from gateway.requests.request import ClientRequest
from gateway.requests.waiting_queue import FULL_S, OwnTurns
from gateway.view.counters import Counters

M = ModelId("m")


def unsent(request: RequestId, choice: int, count: int) -> None:
    """Nothing is sent to anybody."""


class Runner:
    """A runner of so many places, as gateways see it: what they know of it may be untrue."""

    def __init__(self, places: int) -> None:
        self.places, self.others, self.seems_free = places, 0, False
        self.open: dict[RequestId, ClientRequest] = {}
        self.running: list[ClientRequest] = []
        self.done: list[RequestId] = []
        self.refused: list[RequestId] = []
        self.now = 0.0
        self.turns = OwnTurns(self.open, lambda _: self.has_place, self.place)

    def refuses(self, request: ClientRequest, refusal: Refusal) -> None:
        raise AssertionError((request, refusal))

    refused_by = displaced = ended = refuses

    @property
    def has_place(self) -> bool:
        return self.seems_free or len(self.running) + self.others < self.places

    def place(self, request: ClientRequest) -> None:
        """Take it or, where all is full, let it wait for others; else it is refused."""
        if len(self.running) + self.others < self.places:
            self.running.append(request)
            request.inbox.accepted(request.request_id)
        elif not self.turns.hold(request, self.now):
            self.refused.append(request.request_id)

    def end(self, number: int) -> None:
        """One of those that run ends."""
        request = self.running.pop(number % len(self.running))
        self.done.append(request.request_id)
        del self.open[request.request_id]
        self.turns.ended(request, self.now)

    def body(self, count: int, name: str = "r") -> Sequence[ClientRequest]:
        """A body of so many prompts comes."""
        wires = [
            GenerationRequest(
                request_id=RequestId(f"{name}{number}"), model=M, prompt=TextPrompt(text="x")
            )
            for number in range(count)
        ]
        inbox = EntryInbox(wires, on_sent=unsent)
        made = [
            ClientRequest(
                wire=wire,
                inbox=inbox,
                owner=self,  # type: ignore[arg-type]
                counters=Counters(),
                now=self.now,
                timeout_s=None,
                sharer=(),
            )
            for wire in wires
        ]
        self.open.update((one.request_id, one) for one in made)
        self.turns.start(made, self.now)
        return made


@given(
    places=st.integers(1, 50),
    count=st.integers(1, 128),
    others=st.lists(st.integers(0, 60), max_size=8),
    seems_free=st.booleans(),
)
def test_a_body_of_any_length_is_answered_whole_beside_others(
    places: int, count: int, others: list[int], seems_free: bool
) -> None:
    runner = Runner(places)
    runner.seems_free = seems_free
    runner.body(count)
    assert len(runner.running) == min(places, count), "as many as there are places for"
    for number in range(count):
        runner.others = min([*others, 0][number % (len(others) + 1)], places - 1)
        runner.end(number * 7)
        runner.others = 0
        runner.now += FULL_S
        runner.turns.tick(runner.now)
        left = count - number - 1
        assert len(runner.running) == min(places, left), "others' places come back to it"
    assert sorted(runner.done) == sorted(f"r{number}" for number in range(count))
    assert not runner.refused


def test_a_body_of_which_nothing_is_under_way_is_refused() -> None:
    runner = Runner(4)
    runner.others, runner.seems_free = 4, True
    made = runner.body(3)
    assert runner.refused == ["r0"] and not runner.turns.begun(made[0])
    assert [one.request_id for one in runner.turns.take(made[0])] == ["r1", "r2"]


def test_what_waits_is_settled_and_goes_when_its_client_does() -> None:
    runner = Runner(2)
    made = runner.body(5)
    assert made[0].inbox.settled, "the answer begins without the rest"
    assert all(runner.turns.remove(one) for one in made[2:])
    runner.end(0)
    runner.end(0)
    assert runner.done == ["r0", "r1"]


def test_the_last_that_finds_no_place_has_begun_and_may_wait_for_one() -> None:
    runner = Runner(1)
    made = runner.body(2)
    runner.others = 1
    runner.end(0)
    assert runner.refused == ["r1"], "none of its own is left to wait for"
    assert runner.turns.begun(made[1])
