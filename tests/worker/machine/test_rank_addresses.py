"""The ring's addresses: each pair of neighbours by its own best way, out of those seen to work."""

from __future__ import annotations

import io

from bus.process.logs import Log
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, Shard
from bus.wire.messages.events import RankSeated
from bus.wire.messages.peers import PeerReading, PeersReading
from bus.wire.messages.readings import LinkReading, MeasuredLink
from bus.wire.topology import NodeAddress
from worker.machine.ports import PortPool
from worker.machine.rank_addresses import LINK_READING_S, PEERS_READING_S, RankAddresses
from worker.slots.actions import SeatRank, Task
from worker.slots.runner_specs import DataPorts, RankSeats

ME, LEFT, RIGHT = NodeId("n-me"), NodeId("n-left"), NodeId("n-right")
CABLE = NodeAddress(ip="10.0.0.1", medium="thunderbolt")
OTHER_CABLE = NodeAddress(ip="10.0.1.1", medium="thunderbolt")
LAN = NodeAddress(ip="192.168.0.1", medium="ethernet")
VPN = NodeAddress(ip="100.64.0.1", medium="vpn")
IPS = (VPN, LAN, CABLE, OTHER_CABLE)


def linked(by: NodeId, host: str) -> PeersReading:
    return PeersReading(
        node=by, peers=(PeerReading(node=ME, name="me", status="linked", host=host),)
    )


def measured(by: NodeId, *hosts: str) -> LinkReading:
    links = tuple(
        MeasuredLink(peer=ME, host=host, latency_s=1e-4, bytes_per_s=1e8) for host in hosts
    )
    return LinkReading(node=by, links=links, measured_at_s=0.0)


def test_each_neighbour_is_met_where_it_was_seen_on_the_best_it_has() -> None:
    ways = RankAddresses(ME)
    ways.hear(linked(LEFT, LAN.ip), 0.0)
    ways.hear(measured(LEFT, VPN.ip, LAN.ip, CABLE.ip), 0.0)
    ways.hear(linked(RIGHT, VPN.ip), 0.0)
    ways.hear(measured(RIGHT, OTHER_CABLE.ip), 0.0)
    assert ways.host_for(LEFT, IPS, 1.0) == CABLE.ip
    assert ways.host_for(RIGHT, IPS, 1.0) == OTHER_CABLE.ip
    assert ways.hosts_for([LEFT, RIGHT, LEFT], IPS, 1.0) == (CABLE.ip, OTHER_CABLE.ip)
    assert ways.host_for(NodeId("n-new"), IPS, 1.0) is None


def test_jaccls_ranks_meet_the_first_where_all_of_them_reach_it() -> None:
    ways = RankAddresses(ME)
    ways.hear(measured(LEFT, CABLE.ip, LAN.ip, VPN.ip), 0.0)
    ways.hear(measured(RIGHT, OTHER_CABLE.ip, LAN.ip), 0.0)
    assert ways.shared_host([LEFT, RIGHT], IPS, 1.0) == LAN.ip
    assert ways.shared_host([LEFT], IPS, 1.0) == CABLE.ip
    assert ways.shared_host([LEFT, NodeId("n-new")], IPS, 1.0) is None


def test_a_vpn_is_taken_only_where_nothing_local_was_seen() -> None:
    ways = RankAddresses(ME)
    ways.hear(linked(LEFT, VPN.ip), 0.0)
    assert ways.host_for(LEFT, IPS, 0.0) == VPN.ip
    ways.hear(measured(LEFT, LAN.ip), 0.0)
    assert ways.host_for(LEFT, IPS, 0.0) == LAN.ip


def test_a_changed_address_replaces_the_old_one_and_old_readings_count_for_nothing() -> None:
    ways = RankAddresses(ME)
    ways.hear(linked(LEFT, LAN.ip), 0.0)
    ways.hear(measured(LEFT, LAN.ip), 0.0)
    ways.hear(linked(LEFT, "192.168.7.7"), 1.0)
    ways.hear(measured(LEFT), 1.0)
    assert ways.host_for(LEFT, IPS, 2.0) == "192.168.7.7"
    assert ways.host_for(LEFT, IPS, 1.5 + PEERS_READING_S) is None
    ways.hear(measured(LEFT, CABLE.ip), 1.0)
    assert ways.host_for(LEFT, IPS, 1.0 + LINK_READING_S) == CABLE.ip
    assert ways.host_for(LEFT, IPS, 1.5 + LINK_READING_S) is None


def test_the_ring_has_no_ipv6() -> None:
    ways = RankAddresses(ME)
    ways.hear(linked(LEFT, "[fd00::1]"), 0.0)
    assert ways.host_for(LEFT, IPS, 0.0) is None


def seat(ways: RankAddresses, rank: int) -> RankSeated:
    """Where a rank of three (left, me, right in the ring) says that it will be met."""
    seats = RankSeats(
        node=ME,
        data=DataPorts(listen="127.0.0.1", port=0, hosts=("10.9.9.9", "10.8.8.8")),
        ring_ports=PortPool(24_900, 20),
        plan_ports=PortPool(24_930, 20),
        seen=ways,
        devices=dict[str, str],
        log=Log(node=ME, process="worker", stream=io.StringIO()),
    )
    order = [LEFT, ME, RIGHT]
    shards = tuple(
        Shard(
            rank=place,
            node=order[(place - rank + 1) % 3],
            first_layer=0,
            last_layer=1,
            bytes_reserved=1,
        )
        for place in range(3)
    )
    instance = Instance(
        instance=InstanceId("i"), model=ModelId("m"), shards=shards, context_tokens=8,
        keep_alive_s=1.0,
    )  # fmt: skip
    return seats.choose(SeatRank(Task(InstanceId("i"), 1, rank), instance, shards[rank]), 1.0)


def test_a_rank_listens_where_its_left_neighbour_reaches_it() -> None:
    ways = RankAddresses(ME)
    ways.hear(linked(LEFT, "127.0.0.2"), 0.0)
    ways.hear(linked(RIGHT, "127.0.0.3"), 0.0)
    for rank in (1, 2):
        (address,) = seat(ways, rank).seat.ring
        assert address.startswith("127.0.0.2:"), f"as rank {rank}"
        assert seat(ways, rank).seat.plans == ()


def test_the_lead_gives_its_followers_every_address_at_which_one_was_seen() -> None:
    ways = RankAddresses(ME)
    ways.hear(linked(LEFT, "127.0.0.2"), 0.0)
    ways.hear(linked(RIGHT, "127.0.0.3"), 0.0)
    found = seat(ways, 0).seat
    assert found.ring[0].startswith("127.0.0.2:")
    assert [one.rpartition(":")[0] for one in found.plans] == ["tcp://127.0.0.3", "tcp://127.0.0.2"]


def test_a_node_that_nobody_was_seen_to_reach_falls_back_on_what_it_announces() -> None:
    found = seat(RankAddresses(ME), 0).seat
    assert found.ring[0].startswith("10.9.9.9:")
    assert [one.rpartition(":")[0] for one in found.plans] == ["tcp://10.9.9.9"]
