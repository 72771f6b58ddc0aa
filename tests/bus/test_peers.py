"""Several switchboards joined over TCP on loopback, all turned by one loop."""

from __future__ import annotations

import io
import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bus.client import BusClient, Speaker
from bus.clock import now
from bus.endpoints import Endpoints
from bus.identity import new_boot
from bus.ids import InstanceId, NodeId, RequestId
from bus.keyring import KeyFiles, open_keyring, write_keys
from bus.keys import ClusterKey, ClusterKeys
from bus.logs import Log
from bus.loops import PollReactor
from bus.messages.events import (
    Event,
    EventBody,
    NodeForgotten,
    NodeJoined,
    NodeRemembered,
)
from bus.messages.peers import PeerPorts, PeersReading
from bus.messages.readings import DemandReading, TokenTap
from bus.peers import PeerSettings
from bus.switchboard import Switchboard

TOPIC = "event.node_joined"
PATIENCE_S = 20.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Cluster:
    """Boards by name, in temporary folders."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.reactor = PollReactor()
        self.boards: dict[str, Switchboard] = {}
        self.ports: dict[str, int] = {}
        self.logs: dict[str, io.StringIO] = {}
        self.clients: list[BusClient] = []

    def start(
        self, name: str, *seeds: str, namespace: str = "shoal", key: ClusterKey | None = None
    ) -> Switchboard:
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        port = self.ports.setdefault(name, free_port())
        settings = PeerSettings(
            name=name,
            namespace=namespace,
            listen="127.0.0.1",
            addresses=("127.0.0.1",),
            port=port,
            ports=PeerPorts(control=free_port(), telemetry=free_port(), candidate=free_port()),
            seeds=tuple(f"127.0.0.1:{self.ports[seed]}" for seed in seeds),
            file=folder / "peers.json",
        )
        self.logs[name] = io.StringIO()
        log = Log(node=name, process="bus", stream=self.logs[name])
        node, keyring = NodeId(f"n-{name}"), None
        if key is not None:
            files = KeyFiles(folder / "key", folder / "known")
            write_keys(files.key, ClusterKeys(key), replace=True)
            keyring = open_keyring(files, node=node, log=log)
        speaker = Speaker(node, "bus", new_boot())
        self.boards[name] = Switchboard(
            Endpoints(str(folder)), self.reactor, log, speaker, settings, keyring
        )
        return self.boards[name]

    def client(self, name: str, process: str) -> BusClient:
        speaker = Speaker(NodeId(f"n-{name}"), process, new_boot())
        log = Log(node=name, process=process, stream=io.StringIO())
        made = BusClient(speaker, self.boards[name].endpoints, self.reactor, log, follow=False)
        self.clients.append(made)
        return made

    def linked(self, name: str) -> set[str]:
        peers = self.boards[name].peers
        assert peers is not None
        known = peers.membership.peers.values()
        return {peer.name for peer in known if peer.status == "linked"}

    def until(self, condition: Callable[[], object], what: str) -> None:
        end = now() + PATIENCE_S
        while not condition():
            assert now() < end, f"not in time: {what}"
            self.reactor.turn(0.01)

    def settle(self, turns: int = 30) -> None:
        for _ in range(turns):
            self.reactor.turn(0.01)

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for board in self.boards.values():
            board.close()
        self.reactor.close()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="sh") as folder:
        made = Cluster(Path(folder))
        yield made
        made.close()


def three(cluster: Cluster) -> None:
    cluster.start("a")
    cluster.start("b", "a")
    cluster.start("c", "a")
    for name in "abc":
        cluster.until(lambda name=name: len(cluster.linked(name)) == 2, f"{name} knows all")


def said(name: str) -> Event:
    return Event(term=1, index=1, at_s=0.0, body=NodeJoined(node=NodeId("x"), name=name))


def test_what_is_published_on_one_node_is_heard_once_on_every_other(cluster: Cluster) -> None:
    three(cluster)
    heard: dict[str, list[str]] = {name: [] for name in "abc"}
    for name in "abc":
        cluster.client(name, "hearer").hear(
            "event",
            lambda _topic, envelope, name=name: heard[name].append(envelope.message.body.name),
        )
    publisher = cluster.client("b", "speaker")
    cluster.settle()
    for count in range(20):
        publisher.publish(TOPIC, said(f"{count}"))
    cluster.until(lambda: all(len(one) >= 20 for one in heard.values()), "heard everywhere")
    cluster.settle()
    assert all(one == [f"{count}" for count in range(20)] for one in heard.values())


def test_a_node_that_joins_late_is_given_what_others_keep(cluster: Cluster) -> None:
    cluster.start("a")
    publisher = cluster.client("a", "speaker")
    cluster.settle()
    publisher.publish("reading.demand.n-a.x", DemandReading(node=NodeId("n-a"), process="x"))
    cluster.settle()
    cluster.start("b", "a")
    got: list[str] = []
    cluster.client("b", "hearer").hear("reading.demand", lambda topic, _: got.append(topic))
    cluster.until(lambda: got, "the retained value")
    assert got[0] == "reading.demand.n-a.x"


def test_tokens_cross_nodes_only_while_somebody_asks(cluster: Cluster) -> None:
    cluster.start("a")
    cluster.start("b", "a")
    cluster.until(lambda: cluster.linked("a") == {"b"}, "linked")
    runner = cluster.client("a", "runner:00")
    cluster.settle()
    assert runner.wanted == set()
    got: list[str] = []
    watcher = cluster.client("b", "watcher")
    watcher.hear("token", lambda topic, _: got.append(topic))
    cluster.until(lambda: "token" in runner.wanted, "the wish has arrived")
    tapped = TokenTap(
        instance=InstanceId("i"), request_id=RequestId("r"), choice=0, channel="content",
        text="hi", step=1,
    )  # fmt: skip

    def arrives() -> bool:
        runner.publish("token.i", tapped)
        return bool(got)

    cluster.until(arrives, "a token")
    watcher.close()
    cluster.clients.remove(watcher)
    cluster.until(lambda: "token" not in runner.wanted, "nobody wishes any more")


def test_peers_are_told_of_in_a_reading(cluster: Cluster) -> None:
    three(cluster)
    got: dict[str, PeersReading] = {}
    cluster.client("a", "hearer").hear(
        "reading.peers", lambda topic, envelope: got.update({topic: envelope.message})
    )
    cluster.until(
        lambda: len(got) == 3 and all(len(one.peers) == 2 for one in got.values()), "three readings"
    )
    first = got["reading.peers.n-a"].peers[0]
    assert (first.name, first.status, first.host) == ("b", "linked", "127.0.0.1")
    assert first.round_trip_s is not None
    assert first.clock_offset_s is not None


def test_peers_are_found_again_without_seeds(cluster: Cluster) -> None:
    three(cluster)
    kept = json.loads((cluster.root / "b" / "peers.json").read_text())
    assert {row["node"] for row in kept} == {"n-a", "n-c"}
    cluster.boards.pop("b").close()
    cluster.until(lambda: cluster.linked("a") == {"c"}, "b said goodbye")
    cluster.start("b")
    cluster.until(lambda: cluster.linked("b") == {"a", "c"}, "b is back")


def test_a_forgotten_node_is_let_go_everywhere_and_over_restarts(cluster: Cluster) -> None:
    three(cluster)
    holder = cluster.client("a", "master")
    cluster.settle()

    def publish(body: EventBody) -> None:
        event = Event(term=1, index=1, at_s=0.0, body=body)
        holder.publish(f"event.{body.kind}", event)

    publish(NodeForgotten(node=NodeId("n-c")))
    cluster.until(
        lambda: cluster.linked("a") == {"b"} and cluster.linked("b") == {"a"}, "c is let go"
    )
    cluster.boards.pop("b").close()
    cluster.settle()
    cluster.start("b", "a")
    cluster.until(lambda: "forgotten" in cluster.logs["c"].getvalue(), "c is told")
    cluster.settle(100)
    assert cluster.linked("b") == {"a"}
    publish(NodeRemembered(node=NodeId("n-c")))
    cluster.until(lambda: cluster.linked("a") == {"b", "c"}, "c is back")


def test_garbage_at_the_door_disturbs_nobody(cluster: Cluster) -> None:
    cluster.start("a")
    cluster.start("b", "a")
    cluster.until(lambda: cluster.linked("a") == {"b"}, "linked")
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", cluster.ports["a"])) as rude:
            rude.sendall(os.urandom(400))
        cluster.settle(1)
    stranger = cluster.start("z", "a", namespace="lab")
    cluster.until(lambda: "refused this node" in cluster.logs["z"].getvalue(), "refused")
    assert stranger.peers is not None
    assert cluster.linked("z") == set()
    assert cluster.linked("a") == {"b"}
    assert cluster.logs["a"].getvalue().count("refused z") == 1


def test_a_broken_memory_of_peers_is_said_and_replaced(cluster: Cluster) -> None:
    (cluster.root / "a").mkdir()
    (cluster.root / "a" / "peers.json").write_text("{broken")
    cluster.start("a")
    assert "cannot read the remembered peers" in cluster.logs["a"].getvalue()
    cluster.start("b", "a")
    cluster.until(lambda: cluster.linked("a") == {"b"}, "linked")
    cluster.settle()
    assert json.loads((cluster.root / "a" / "peers.json").read_text())[0]["node"] == "n-b"


def test_a_door_that_is_taken_is_tried_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.peers.BIND_RETRY_S", 0.2)
    cluster.ports["a"] = free_port()
    with socket.socket() as owner:
        owner.bind(("127.0.0.1", cluster.ports["a"]))
        owner.listen()
        cluster.start("a")
        assert "cannot listen for other nodes" in cluster.logs["a"].getvalue()
    cluster.start("b", "a")
    cluster.until(lambda: cluster.linked("a") == {"b"}, "the door opens when it can")


KEY, OTHER = ClusterKey(b"k" * 32), ClusterKey(b"o" * 32)


def test_nodes_with_one_key_meet_at_the_door_and_then_hear_each_other(cluster: Cluster) -> None:
    cluster.start("a", key=KEY)
    cluster.start("b", "a", key=KEY)
    cluster.start("c", "a", key=KEY)
    for name in "abc":
        cluster.until(lambda name=name: len(cluster.linked(name)) == 2, f"{name} knows all")
    heard: list[str] = []
    for name in "bc":
        cluster.client(name, "x").hear("event", lambda _t, _e, name=name: heard.append(name))
    speaker = cluster.client("a", "master")

    def arrived() -> bool:
        speaker.publish(TOPIC, said("hello"))
        return set(heard) == {"b", "c"}

    cluster.until(arrived, "an event crosses secure planes")
    known = (cluster.root / "a" / "known").read_text().split()
    assert known == ["n-b", "n-c"]


@pytest.mark.parametrize("key", [OTHER, None], ids=["another key", "no key"])
def test_a_node_without_the_key_joins_nothing_and_disturbs_nobody(
    cluster: Cluster, key: ClusterKey | None
) -> None:
    cluster.start("a", key=KEY)
    cluster.start("b", "a", key=KEY)
    cluster.start("x", "a", "b", key=key)
    cluster.until(lambda: cluster.linked("a") == {"b"} and cluster.linked("b") == {"a"}, "a, b")
    cluster.until(lambda: "refused a connection" in cluster.logs["a"].getvalue(), "it is logged")
    cluster.settle(200)
    assert cluster.linked("x") == set()
    assert cluster.linked("a") == {"b"} and cluster.linked("b") == {"a"}
    assert cluster.logs["a"].getvalue().count("refused a connection") == 1


def test_without_a_key_nobody_is_dialled_beyond_this_machine(cluster: Cluster) -> None:
    cluster.ports["far"] = 9
    board = cluster.start("a")
    peers = board.peers
    assert peers is not None
    peers.membership.seeds = ("192.0.2.1:24154",)
    cluster.until(lambda: "shoal keys init" in cluster.logs["a"].getvalue(), "it is said")
    assert KEY.text not in cluster.logs["a"].getvalue()
