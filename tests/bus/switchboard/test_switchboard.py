"""A real switchboard on real sockets, its loop turned by hand."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bus.client import BusClient, Speaker
from bus.links.reactor import PollReactor
from bus.links.transport import Link
from bus.process.clock import now
from bus.process.endpoints import Endpoints
from bus.process.identity import new_boot
from bus.process.logs import Log
from bus.switchboard.switchboard import Switchboard
from bus.wire.codec import Envelope
from bus.wire.ids import InstanceId, NodeId
from bus.wire.messages.control import TermHeartbeat
from bus.wire.messages.events import Event, NodeJoined
from bus.wire.messages.readings import DemandReading, TokenTap

NODE = NodeId("n1")


def quiet() -> Log:
    return Log(node="n1", process="test", stream=io.StringIO())


class Bench:
    """One reactor that runs the switchboard and all clients of a test."""

    def __init__(self, folder: Path) -> None:
        self.reactor = PollReactor()
        self.endpoints = Endpoints(str(folder))
        self.board = Switchboard(self.endpoints, self.reactor, quiet())
        self.clients: list[BusClient] = []

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.board.close()
        self.reactor.close()

    def client(self, process: str, *, follow: bool = False) -> BusClient:
        speaker = Speaker(NODE, process, new_boot())
        made = BusClient(speaker, self.endpoints, self.reactor, quiet(), follow=follow)
        self.clients.append(made)
        return made

    def until(self, condition: Callable[[], bool], seconds: float = 5.0) -> bool:
        end = now() + seconds
        while not condition() and now() < end:
            self.reactor.turn(0.01)
        return condition()

    def settle(self, turns: int = 20) -> None:
        for _ in range(turns):
            self.reactor.turn(0.01)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="sh") as folder:
        made = Bench(Path(folder))
        yield made
        made.close()


TOPIC = "event.node_joined"


def line(text: str) -> Event:
    return Event(term=1, index=1, at_s=0.0, body=NodeJoined(node=NODE, name=text))


def test_what_one_service_publishes_another_hears(bench: Bench) -> None:
    heard: list[str] = []
    bench.client("b").hear("event", lambda topic, _: heard.append(topic))
    publisher = bench.client("a")

    def arrived() -> bool:
        publisher.publish(TOPIC, line("hello"))
        bench.reactor.turn(0.01)
        return bool(heard)

    assert bench.until(arrived)


def test_a_new_subscriber_alone_gets_every_retained_value(bench: Bench) -> None:
    old: list[str] = []
    bench.client("old").hear("reading.demand", lambda topic, _: old.append(topic))
    publisher = bench.client("a")
    bench.settle()
    for name in ("a", "b", "c"):
        reading = DemandReading(node=NODE, process=name)
        publisher.publish(f"reading.demand.n1.{name}", reading)
    assert bench.until(lambda: len(set(old)) == 3)
    bench.settle()
    before = len(old)
    new: list[str] = []
    bench.client("new").hear("reading.demand", lambda topic, _: new.append(topic))
    assert bench.until(lambda: len(new) == 3)
    bench.settle()
    assert len(old) == before
    assert sorted(new) == [f"reading.demand.n1.{n}" for n in "abc"]


def test_an_ignored_topic_is_not_heard_and_its_siblings_are(bench: Bench) -> None:
    heard: list[str] = []
    client = bench.client("b")
    client.hear("reading.demand", lambda topic, _: heard.append(topic))
    client.ignore("reading.demand.n1.a")
    publisher = bench.client("a")
    bench.settle()
    for name in ("a", "ab", "b"):
        publisher.publish(f"reading.demand.n1.{name}", DemandReading(node=NODE, process=name))
    assert bench.until(lambda: "reading.demand.n1.b" in heard)
    assert heard == ["reading.demand.n1.ab", "reading.demand.n1.b"]


def test_nothing_is_lost_to_others_when_somebody_subscribes_or_leaves(bench: Bench) -> None:
    heard: list[str] = []

    def note(_: str, envelope: Envelope) -> None:
        assert isinstance(envelope.message, Event)
        assert isinstance(envelope.message.body, NodeJoined)
        heard.append(envelope.message.body.name)

    bench.client("steady").hear("event", note)
    publisher = bench.client("a")
    bench.settle()
    for count in range(30):
        passing = Link("sub")
        passing.connect(bench.endpoints.plane_out("control"))
        passing.subscribe("event")
        bench.settle(3)
        publisher.publish(TOPIC, line(str(count)))
        passing.close()
        bench.settle(2)
    assert bench.until(lambda: len(heard) == 30)
    assert heard == [str(count) for count in range(30)]


def test_an_expired_value_is_given_to_nobody(bench: Bench) -> None:
    publisher = bench.client("a")
    bench.settle()
    beat = TermHeartbeat(holder=NODE, counter=1, index=0, digest=0, addresses=())
    publisher.publish("term", beat)
    bench.settle()
    kept = bench.board.planes["control"].retained
    assert kept.matching("term", now())
    assert not kept.matching("term", now() + 3.0)
    assert kept.expire(now() + 3.0) == 1


def test_tokens_flow_only_while_somebody_taps(bench: Bench) -> None:
    runner = bench.client("runner:00")
    bench.settle()

    def token() -> TokenTap:
        return TokenTap(
            instance=InstanceId("i"), request_id="r", choice=0, channel="text", text="x", step=1
        )

    assert "token" not in runner.wanted
    everything = Link("sub")
    everything.connect(bench.endpoints.tap)
    everything.subscribe("")
    bench.settle()
    assert "token" not in runner.wanted
    tap = Link("sub")
    tap.connect(bench.endpoints.tap)
    tap.subscribe("token")
    assert bench.until(lambda: "token" in runner.wanted)
    runner.publish("token.r", token())
    got: list[list[bytes]] = []

    def received() -> bool:
        frames = tap.receive()
        if frames is not None:
            got.append(frames)
        return bool(got)

    assert bench.until(received)
    assert got[0][0] == b"token.r"
    tap.close()
    assert bench.until(lambda: "token" not in runner.wanted)
    everything.close()


def test_retained_values_are_sent_again_to_a_switchboard_that_came_back(bench: Bench) -> None:
    publisher = bench.client("a")
    bench.settle()
    publisher.publish("reading.demand.n1.a", DemandReading(node=NODE, process="a"))
    bench.settle()
    bench.board.close()
    bench.settle()
    bench.board = Switchboard(bench.endpoints, bench.reactor, quiet())
    kept = bench.board.planes["telemetry"].retained
    assert bench.until(lambda: bool(kept.matching("reading.demand", now())))


def test_what_is_not_in_the_table_is_dropped_and_counted(bench: Bench) -> None:
    rogue = Link("pub")
    rogue.connect(bench.endpoints.plane_in("control"))

    def refused() -> bool:
        rogue.send(b"nonsense", b"payload")
        rogue.send(b"term", b"not an envelope")
        rogue.send(b"alone")
        return bench.board.refused.count >= 3

    assert bench.until(refused)
    rogue.close()
