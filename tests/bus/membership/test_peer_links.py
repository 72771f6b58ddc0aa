"""Several switchboards joined over TCP on loopback, all turned by one loop."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator

import pytest

from bus.links.cluster_key import ClusterKey
from bus.membership.peer_links import PeerTiming
from bus.wire.ids import InstanceId, NodeId, RequestId
from bus.wire.messages.events import Event, NodeJoined
from bus.wire.messages.peers import PeersReading
from bus.wire.messages.readings import DemandReading, TokenTap
from tests.harness.joined_switchboards import JoinedSwitchboards, boards
from tests.harness.ports import free_port
from tests.harness.seeds import seed_for

TOPIC = "event.node_joined"


@pytest.fixture
def cluster() -> Iterator[JoinedSwitchboards]:
    with boards() as made:
        yield made


def three(cluster: JoinedSwitchboards) -> None:
    cluster.start("a")
    cluster.start("b", "a")
    cluster.start("c", "a")
    for name in "abc":
        cluster.until(lambda name=name: len(cluster.linked(name)) == 2, f"{name} knows all")


def said(name: str) -> Event:
    return Event(term=1, index=1, at_s=0.0, body=NodeJoined(node=NodeId("x"), name=name))


def test_what_is_published_on_one_node_is_heard_once_on_every_other(
    cluster: JoinedSwitchboards,
) -> None:
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


def crossed(cluster: JoinedSwitchboards, name: str, peer: str) -> tuple[int, int]:
    """What a switchboard has sent to a peer and had from it on the control plane."""
    for one in cluster.boards[name].traffic.crossed():
        if (one.peer, one.plane) == (f"n-{peer}", "control"):
            return one.sent_bytes, one.received_bytes
    return 0, 0


def test_bytes_over_links_are_counted_at_both_ends(cluster: JoinedSwitchboards) -> None:
    three(cluster)
    heard: dict[str, int] = dict.fromkeys("abc", 0)

    def count(name: str) -> None:
        heard[name] += 1

    for name in "abc":
        cluster.client(name, "hearer").hear(
            "event", lambda _topic, _envelope, name=name: count(name)
        )
    speaker = cluster.client("b", "speaker")
    cluster.settle()
    before = {name: crossed(cluster, name, "b") for name in "ac"}
    sent_before = {name: crossed(cluster, "b", name) for name in "ac"}
    bytes_ = 0
    for size in (1, 70, 3000):
        frames = [TOPIC.encode(), speaker.write(said("x" * size))]
        bytes_ += sum(map(len, frames))
        assert speaker._outs["control"].send(*frames)
    cluster.until(lambda: min(heard.values()) == 3, "heard everywhere")
    for name in "ac":
        sent, received = (
            now - then for now, then in zip(crossed(cluster, name, "b"), before[name], strict=True)
        )
        assert (sent, received) == (0, bytes_), "what is heard is not passed on"
        sent, received = (
            now - then
            for now, then in zip(crossed(cluster, "b", name), sent_before[name], strict=True)
        )
        assert (sent, received) == (bytes_, 0)


def test_a_node_that_joins_late_is_given_what_others_keep(cluster: JoinedSwitchboards) -> None:
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


def test_tokens_cross_nodes_only_while_somebody_asks(cluster: JoinedSwitchboards) -> None:
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


def test_peers_are_told_of_in_a_reading(cluster: JoinedSwitchboards) -> None:
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


def test_peers_are_found_again_without_seeds(cluster: JoinedSwitchboards) -> None:
    three(cluster)
    kept = json.loads((cluster.root / "b" / "peers.json").read_text())
    assert {row["node"] for row in kept} == {"n-a", "n-c"}
    cluster.boards.pop("b").close()
    cluster.until(lambda: cluster.linked("a") == {"c"}, "b said goodbye")
    cluster.start("b")
    cluster.until(lambda: cluster.linked("b") == {"a", "c"}, "b is back")


def test_a_forgotten_node_is_let_go_everywhere_and_over_restarts(
    cluster: JoinedSwitchboards,
) -> None:
    three(cluster)
    holder = cluster.teller("a")
    holder.tell(forgotten=(NodeId("n-c"),))
    cluster.until(
        lambda: cluster.linked("a") == {"b"} and cluster.linked("b") == {"a"}, "c is let go"
    )
    cluster.boards.pop("b").close()
    cluster.settle()
    cluster.start("b", "a")
    cluster.until(lambda: "forgotten" in cluster.logs["c"].getvalue(), "c is told")
    cluster.settle(100)
    assert cluster.linked("b") == {"a"}
    holder.tell(forgotten=())
    cluster.until(lambda: cluster.linked("a") == {"b", "c"}, "c is back")


def test_who_was_away_while_a_node_was_forgotten_or_remembered_learns_it_from_the_state(
    cluster: JoinedSwitchboards,
) -> None:
    for name, seed in (("a", ()), ("b", ("a",)), ("c", ("a",))):
        cluster.start(name, *seed, key=KEY)
    for name in "abc":
        cluster.until(lambda name=name: len(cluster.linked(name)) == 2, f"{name} knows all")
    known = cluster.root / "b" / "known"
    holder = cluster.teller("a")
    cluster.boards.pop("b").close()
    holder.tell(forgotten=(NodeId("n-c"),))
    cluster.until(lambda: cluster.linked("a") == set(), "who was there lets it go")
    cluster.start("b", "a", key=KEY)
    cluster.until(lambda: known.read_text().split() == ["n-a"], "who was away admits it no more")
    assert cluster.linked("b") == {"a"}
    cluster.boards.pop("b").close()
    holder.tell(forgotten=())
    cluster.until(lambda: "c" in cluster.linked("a"), "who was there lets it in")
    cluster.start("b", "a", key=KEY)
    cluster.until(lambda: cluster.linked("b") == {"a", "c"}, "so does who was away")
    assert set(known.read_text().split()) == {"n-a", "n-c"}


def test_garbage_at_the_door_disturbs_nobody(cluster: JoinedSwitchboards) -> None:
    cluster.start("a")
    cluster.start("b", "a")
    cluster.until(lambda: cluster.linked("a") == {"b"}, "linked")
    chance = random.Random(seed_for("GARBAGE", 3))
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", cluster.ports["a"])) as rude:
            rude.sendall(chance.randbytes(400))
        cluster.settle(1)
    stranger = cluster.start("z", "a", namespace="lab")
    cluster.until(lambda: "refused this node" in cluster.logs["z"].getvalue(), "refused")
    assert stranger.peers is not None
    assert cluster.linked("z") == set()
    assert cluster.linked("a") == {"b"}
    assert cluster.logs["a"].getvalue().count("refused z") == 1


def test_a_broken_memory_of_peers_is_said_and_replaced(cluster: JoinedSwitchboards) -> None:
    (cluster.root / "a").mkdir()
    (cluster.root / "a" / "peers.json").write_text("{broken")
    cluster.start("a")
    assert "cannot read the saved list of peers" in cluster.logs["a"].getvalue()
    cluster.start("b", "a")
    cluster.until(lambda: cluster.linked("a") == {"b"}, "linked")
    cluster.settle()
    assert json.loads((cluster.root / "a" / "peers.json").read_text())[0]["node"] == "n-b"


def test_a_door_that_is_taken_is_tried_again(cluster: JoinedSwitchboards) -> None:
    cluster.ports["a"] = free_port()
    with socket.socket() as owner:
        owner.bind(("127.0.0.1", cluster.ports["a"]))
        owner.listen()
        cluster.start("a", timing=PeerTiming(bind_retry_s=0.2))
        assert "cannot listen for other nodes" in cluster.logs["a"].getvalue()
    cluster.start("b", "a")
    cluster.until(lambda: cluster.linked("a") == {"b"}, "the door opens when it can")


KEY, OTHER = ClusterKey(b"k" * 32), ClusterKey(b"o" * 32)


def test_nodes_with_one_key_meet_at_the_door_and_then_hear_each_other(
    cluster: JoinedSwitchboards,
) -> None:
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
    cluster: JoinedSwitchboards, key: ClusterKey | None
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


def test_without_a_key_nobody_is_dialled_beyond_this_machine(cluster: JoinedSwitchboards) -> None:
    cluster.ports["far"] = 9
    board = cluster.start("a")
    peers = board.peers
    assert peers is not None
    peers.membership.seeds = ("192.0.2.1:24154",)
    cluster.until(lambda: "shoal keys init" in cluster.logs["a"].getvalue(), "it is said")
    assert KEY.text not in cluster.logs["a"].getvalue()


def test_a_node_that_moves_tells_its_peers(cluster: JoinedSwitchboards) -> None:
    hosts = ["127.0.0.1"]
    cluster.start("a")
    cluster.start("b", "a", look=lambda: tuple(hosts), timing=PeerTiming(look_s=0.1))
    cluster.until(lambda: cluster.linked("a") == {"b"}, "linked")
    peers = cluster.boards["a"].peers
    assert peers is not None
    peer = peers.membership.peers[NodeId("n-b")]
    assert peer.addresses == (f"127.0.0.1:{cluster.ports['b']}",)
    hosts[:] = ["127.0.0.7"]
    cluster.until(lambda: peer.addresses == (f"127.0.0.7:{cluster.ports['b']}",), "told")
    hosts.clear()
    cluster.settle(30)
    assert peer.addresses == (f"127.0.0.7:{cluster.ports['b']}",), "no network is no news"
