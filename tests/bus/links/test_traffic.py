"""Bytes over links to other nodes are counted by peer and plane, as sent and as had, for others to
read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bus.links.reactor import PollReactor
from bus.links.traffic import OTHERS, ROWS, Crossed, Traffic, open_traffic, read_traffic
from bus.links.transport import Link
from bus.wire.ids import NodeId

ME, PEER = NodeId("n-me"), NodeId("n-peer")


@pytest.fixture
def reactor() -> Iterator[PollReactor]:
    made = PollReactor()
    yield made
    made.close()


def until(reactor: PollReactor, condition: object) -> None:
    end = reactor.now() + 10.0
    while not condition():  # type: ignore[operator]
        assert reactor.now() < end, "not in time"
        reactor.turn(0.02)


def test_a_router_and_a_dealer_count_what_they_say_to_each_other(
    tmp_path: Path, reactor: PollReactor
) -> None:
    here, there = open_traffic(str(tmp_path), "runner:00", ME), Traffic(PEER)
    router, dealer = Link("router"), Link("dealer", identity=f"gw:{PEER}:h0:boot")
    stranger, own = Link("dealer"), Link("dealer", identity=f"gw:{ME}:h0:boot")
    router.tally = here.by_identity("data", split=":", part=1)
    dealer.tally = there.way(ME, "data")
    asked: list[list[bytes]] = []
    answers: list[list[bytes]] = []
    try:
        address = router.bind("tcp://127.0.0.1:0")
        reactor.watch(router, asked.append)
        reactor.watch(dealer, answers.append)
        for link in (dealer, stranger, own):
            link.connect(address)
            for size in (10, 300, 0):
                assert link.send(b"q" * size)
        until(reactor, lambda: len(asked) == 9)
        assert router.send(f"gw:{PEER}:h0:boot".encode(), b"a" * 77, b"b" * 5)
        until(reactor, lambda: bool(answers))
        # neither the identity, which does not travel, nor who is not known, nor this node itself
        assert read_traffic(tmp_path) == {"runner:00": (Crossed(PEER, "data", 82, 310),)}
        assert there.crossed() == (Crossed(ME, "data", 310, 82),)
    finally:
        for link in (router, dealer, stranger, own):
            reactor.hang_up(link)
    here.close()
    assert read_traffic(tmp_path) == {}


def test_what_is_not_sent_is_not_counted() -> None:
    traffic, router = Traffic(ME), Link("router")
    router.tally = traffic.by_identity("holder")
    router.bind("tcp://127.0.0.1:0")
    assert not router.send(b"n-peer/worker/boot", b"lost")
    router.close()
    assert traffic.crossed() == ()


def test_pairs_beyond_what_there_is_room_for_are_counted_together() -> None:
    traffic = Traffic(ME)
    for count in range(ROWS + 40):
        way = traffic.way(f"n-{count}", "data")
        assert way is not None
        way.add_sent(1)
    crossed = traffic.crossed()
    assert len(crossed) == ROWS
    assert crossed[-1] == Crossed(OTHERS, "rest", 41, 0)
    assert sum(one.sent_bytes for one in crossed) == ROWS + 40


def test_a_process_that_starts_anew_counts_from_nothing(tmp_path: Path) -> None:
    for expected in (5, 3):
        traffic = open_traffic(str(tmp_path), "bus", ME)
        way = traffic.way(PEER, "control")
        assert way is not None
        way.received([b"x" * expected])
        assert read_traffic(tmp_path)["bus"] == (Crossed(PEER, "control", 0, expected),)


class ClosedMeanwhile(Traffic):
    """Counts that another thread closes right after one who counts has read where."""

    closes = False

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name == "shared" and super().__getattribute__("closes"):
            self.closes = False
            self.close()
        return value


def test_a_thread_that_still_counts_when_the_counts_are_closed_is_no_defect(tmp_path: Path) -> None:
    traffic = ClosedMeanwhile(ME)
    traffic.share(tmp_path, "runner:00")
    way = traffic.way(PEER, "exchange")
    assert way is not None
    traffic.closes = True
    way.add_sent(10)
    assert not list(tmp_path.iterdir())


def test_an_identity_that_zeromq_made_up_names_no_node() -> None:
    traffic = Traffic(ME)
    router = traffic.by_identity("holder")
    for identity in (b"\0a/b/", b"\x80/b", b"n-peer", b"/worker", b""):
        router.received([identity, b"question"])
    router.received([b"n-peer/worker/boot", b"question"])
    assert traffic.crossed() == (Crossed(PEER, "holder", 0, 8),)
