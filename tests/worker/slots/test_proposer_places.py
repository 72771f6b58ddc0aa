"""Lead runners learn where the draft model of their card is ready, when that is news."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from bus.wire.ids import Boot, InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, RankReady, Shard
from bus.wire.messages.peers import PeerReading, PeersReading
from bus.wire.messages.readings import LinkReading, MeasuredLink
from bus.wire.messages.requests import DraftWeights
from worker.machine.rank_addresses import RankAddresses
from worker.slots.actions import Task
from worker.slots.runner_specs import ProposerPlaces
from worker.slots.table import Slot

ME, OTHER, THIRD = NodeId("n1"), NodeId("n2"), NodeId("n3")
SMALL = ModelId("small")


def instance(name: str, node: NodeId, model: str, *addresses: str, **more: Any) -> Instance:
    shard = Shard(rank=0, node=node, first_layer=0, last_layer=4, bytes_reserved=1)
    lead = RankReady(rank=0, node=node, process="runner:00", addresses=addresses, pid=1)
    fields = {"status": "ready", "context_tokens": 9, "keep_alive_s": 1.0, "ready": (lead,)}
    return Instance.model_validate(
        {"instance": name, "model": model, "shards": (shard,), **fields, **more}
    )


class Site:
    """A worker's view: its slots, the cluster's instances, and the readings of links."""

    def __init__(self, **card: Any) -> None:
        self.instances = {"big": instance("big", ME, "big", "ipc:///big")}
        fields = {"draft": DraftWeights(model=SMALL, why_not="not here"), **card}
        models = SimpleNamespace(cards={"big": SimpleNamespace(**fields)})
        self.state = SimpleNamespace(instances=self.instances)
        self.speaker = SimpleNamespace(node=ME)
        self.seen = RankAddresses(ME)
        self.places = ProposerPlaces(cast(Any, self), cast(Any, models), self.seen)
        task = Task(InstanceId("big"), 1, 0)
        self.slots = {"00": Slot("00", "ready", boot=Boot("b"), task=task), "01": Slot("01")}

    def news(self) -> list[tuple[str, str]]:
        return [(place.address, place.why) for _, place in self.places.news(self.slots, 10.0)]


def test_a_place_is_sent_once_and_again_when_it_changes_or_the_runner_is_new() -> None:
    site = Site()
    assert site.news() == [("", "no instance of the draft model small is ready")]
    assert site.news() == []
    site.instances["s"] = instance("s", OTHER, "small", "ipc:///s", "tcp://a:1", "tcp://b:1")
    site.seen.hear(
        PeersReading(node=ME, peers=(PeerReading(node=OTHER, name="", status="linked", host="b"),)),
        9.0,
    )
    assert site.news() == [("tcp://b:1", "")], "at the host where its node was reached"
    site.slots["00"] = Slot("00", "loading", boot=Boot("c"), task=site.slots["00"].task)
    assert site.news() == [("tcp://b:1", "")] and site.news() == []
    site.places.forget("00")
    assert site.news() == [("tcp://b:1", "")]
    del site.instances["s"]
    assert [why for _, why in site.news()] == ["no instance of the draft model small is ready"]


def test_a_runner_on_this_node_is_reached_locally_and_one_that_does_not_listen_not_at_all() -> None:
    site = Site()
    site.instances["s"] = instance("s", ME, "small", "ipc:///s", "tcp://a:1")
    assert site.news() == [("ipc:///s", "")]
    site.instances["s"] = instance("s", OTHER, "small", "ipc:///s")
    assert site.news() == [("", "small runs on a node that does not listen for other nodes")]


def test_measured_links_decide_between_nodes() -> None:
    site = Site()
    site.instances["s"] = instance("s", OTHER, "small", "tcp://a:1")
    site.instances["t"] = instance("t", THIRD, "small", "tcp://c:1")
    links = tuple(
        MeasuredLink(peer=peer, latency_s=1e-4, bytes_per_s=1e9, round_trip_s=trip_s)
        for peer, trip_s in ((OTHER, 0.2), (THIRD, 0.01))
    )
    site.seen.hear(LinkReading(node=ME, links=links, measured_at_s=0.0), 9.0)
    assert site.news() == [("tcp://c:1", "")]
    del site.instances["t"]
    ((address, why),) = site.news()
    assert not address and "200 ms; the limit is 100 ms" in why


def test_a_card_without_a_draft_model_or_another_rank_gets_nothing() -> None:
    assert Site(draft=None).news() == []
    site = Site()
    site.slots["00"] = Slot("00", "ready", boot=Boot("b"), task=Task(InstanceId("big"), 1, 1))
    assert site.news() == []
