"""RDMA devices from what the tools print, in the formats that they were seen to print.

The formats are those of two MacBook Pros (macOS 27) joined by one cable, of a Mac mini (Apple's
TN3205) and of a Linux machine with ConnectX; identifiers are made up. Nothing here was run on a
machine with RDMA.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.wire.ids import NodeId
from bus.wire.messages.control import GroupSpec, RankSeat
from bus.wire.topology import RdmaPort, rdma_mesh
from runner.group.group_config import jaccl_devices
from worker.machine.rdma import (
    device_row,
    devices_in,
    devices_to,
    domains_in,
    find_ports,
    may_be_enabled,
    states_in,
)
from worker.machine.rdma_watch import ask

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
DEVICES = """
    device          \t   node GUID
    ------          \t----------------
    rdma_en1        \t0000000000000001
    rdma_en6        \t0000000000000002
    rdma_en2        \te2c5797d9c8fac05
"""
NO_DEVICES = """
    device          \t   node GUID
    ------          \t----------------
"""
PORT = """hca_id:\t{device}
\ttransport:\t\t\tThunderbolt (100)
\tnode_guid:\t\t\t0000:0000:0000:0002
\tsys_image_guid:\t\t\t0000:0000:0000:0001
\tvendor_id:\t\t\t0x0000
\tvendor_part_id:\t\t\t0
\thw_ver:\t\t\t\t0x0
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\t{state}
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t4096 (5)
\t\t\tsm_lid:\t\t\t1
\t\t\tport_lid:\t\t1
\t\t\tport_lmc:\t\t0x00
\t\t\tlink_layer:\t\tThunderbolt
"""
LINUX = """hca_id: mlx5_0
        transport:                      InfiniBand (0)
        fw_ver:                         28.39.2048
        phys_port_cnt:                  2
                port:   1
                        state:                  PORT_DOWN (1)
                        max_mtu:                4096 (5)
                        link_layer:             InfiniBand
                port:   2
                        state:                  PORT_ACTIVE (4)
                        link_layer:             InfiniBand

hca_id: mlx5_1
        phys_port_cnt:                  1
                port:   1
                        state:                  PORT_DOWN (1)
"""
HARDWARE = """
Hardware Port: Ethernet Adapter (en3)
Device: en3
Ethernet Address: 02:00:00:00:00:04

Hardware Port: Thunderbolt Bridge
Device: bridge0
Ethernet Address: 02:00:00:00:00:01

Hardware Port: Thunderbolt 1
Device: en1
Ethernet Address: 02:00:00:00:00:01

Hardware Port: Thunderbolt 2
Device: en6
Ethernet Address: 02:00:00:00:00:02

Hardware Port: Thunderbolt 3
Device: en2
Ethernet Address: 02:00:00:00:00:03

VLAN Configurations
===================
"""


def devinfo(**states: str) -> str:
    return "\n".join(PORT.format(device=device, state=state) for device, state in states.items())


def bus(receptacle: int, domain: str, peer: str = "", dock: str = "") -> dict[str, object]:
    """One bus as `system_profiler` tells of it: a Mac, or a Mac behind a dock, or nothing."""
    mac = {"_name": "MacBook Pro", "device_name_key": "Mac17,6", "domain_uuid_key": peer}
    found: dict[str, object] = {
        "_name": f"thunderboltusb4_bus_{receptacle - 1}",
        "device_name_key": "MacBook Pro",
        "domain_uuid_key": domain,
        "receptacle_1_tag": {
            "current_speed_key": "80 Gb/s" if peer else "Up to 120 Gb/s",
            "receptacle_id_key": str(receptacle),
            "receptacle_status_key": "receptacle_connected"
            if peer
            else "receptacle_no_devices_connected",
        },
    }
    if dock:
        found["_items"] = [{"_name": dock, "device_name_key": dock, "_items": [mac]}]
    elif peer:
        found["_items"] = [mac]
    return found


def profiler(*buses: dict[str, object]) -> str:
    return json.dumps({"SPThunderboltDataType": buses})


def mac(*buses: dict[str, object], status: str = "enabled\n", **states: str) -> dict[str, str]:
    return {
        "ibv_devices": DEVICES,
        "ibv_devinfo": devinfo(**states),
        "rdma_ctl": status,
        "networksetup": HARDWARE,
        "system_profiler": profiler(*buses),
    }


def ports_of(said: dict[str, str]) -> tuple[RdmaPort, ...]:
    return find_ports(lambda name, *_: said.get(name, ""))


ONE_CABLE = [
    mac(bus(2, "aaaa", peer="bbbb"), bus(1, "a1"), rdma_en6="PORT_ACTIVE (4)"),
    mac(bus(3, "BBBB", peer="aaaa"), rdma_en2="PORT_ACTIVE (4)", rdma_en6="PORT_DOWN (1)"),
]


def test_devices_are_the_lines_with_a_guid() -> None:
    assert devices_in(DEVICES) == ("rdma_en1", "rdma_en6", "rdma_en2")
    assert devices_in(NO_DEVICES) == devices_in("") == ()


def test_each_device_has_the_state_of_its_port_and_an_active_one_counts() -> None:
    found = states_in(devinfo(rdma_en1="PORT_DOWN (1)", rdma_en6="PORT_ACTIVE (4)"))
    assert found == {"rdma_en1": "PORT_DOWN", "rdma_en6": "PORT_ACTIVE"}
    assert states_in(LINUX) == {"mlx5_0": "PORT_ACTIVE", "mlx5_1": "PORT_DOWN"}
    assert states_in("No IB devices found\n") == states_in("") == {}


@pytest.mark.parametrize(
    ("said", "may"),
    [("enabled\n", True), ("  Disabled ", False), ("partially enabled", False), ("", True)],
)
def test_the_switch_of_macos_has_to_say_enabled_where_it_says_anything(
    said: str, may: bool
) -> None:
    assert may_be_enabled(said) is may


def test_a_receptacle_has_the_domains_of_both_ends_and_a_dock_none() -> None:
    text = profiler(bus(1, "a1"), bus(2, "a2", peer="b2"), bus(3, "a3", peer="b3", dock="Dock"))
    assert domains_in(text) == {
        "Thunderbolt 1": ("A1", ""),
        "Thunderbolt 2": ("A2", "B2"),
        "Thunderbolt 3": ("A3", ""),
    }


@given(
    st.text()
    | st.recursive(
        st.none() | st.booleans() | st.text() | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(
            st.sampled_from(["SPThunderboltDataType", "_items", "domain_uuid_key", "x",
                             "receptacle_1_tag", "receptacle_id_key"]), inner),
    ).map(json.dumps)
)  # fmt: skip
def test_whatever_a_tool_says_no_parser_raises(text: str) -> None:
    found = find_ports(lambda *_: text)
    assert all(port.device for port in found)
    domains_in(text)


def test_two_macs_find_each_other_at_the_ends_of_their_cable() -> None:
    mine, theirs = ports_of(ONE_CABLE[0]), ports_of(ONE_CABLE[1])
    assert devices_to(mine, {B: theirs, C: ()}) == {B: "rdma_en6"}
    assert devices_to(theirs, {A: mine}) == {A: "rdma_en2"}
    assert rdma_mesh([A, B], {A: {B: "rdma_en6"}, B: {A: "rdma_en2"}})


def test_a_port_that_is_down_leads_nowhere_and_is_still_announced() -> None:
    down = ports_of(mac(bus(2, "aaaa", peer="bbbb"), rdma_en6="PORT_DOWN (1)"))
    assert RdmaPort(device="rdma_en6", active=False, domain="AAAA", peer_domain="BBBB") in down
    assert devices_to(down, {B: ports_of(ONE_CABLE[1])}) == {}


def test_disabled_rdma_and_missing_tools_are_no_rdma() -> None:
    assert ports_of({**ONE_CABLE[0], "rdma_ctl": "disabled\n"}) == ()
    assert ports_of({}) == ()
    silent = ports_of({**ONE_CABLE[0], "system_profiler": "", "networksetup": ""})
    assert silent and devices_to(silent, {B: ports_of(ONE_CABLE[1])}) == {}


@given(st.integers(2, 5))
def test_a_full_mesh_of_cables_becomes_the_matrix_that_jaccl_reads(size: int) -> None:
    order = [NodeId(f"n{one}") for one in range(size)]
    ports: dict[NodeId, Sequence[RdmaPort]] = {
        node: [
            RdmaPort(
                device=f"rdma_en{2 + to}",
                active=True,
                domain=f"{node}-{other}",
                peer_domain=f"{other}-{node}",
            )
            for to, other in enumerate(order)
            if other != node
        ]
        for node in order
    }
    rows: list[tuple[str, ...]] = []
    for node in order:
        others = {other: found for other, found in ports.items() if other != node}
        row = device_row(order, node, devices_to(ports[node], others))
        assert isinstance(row, tuple)
        rows.append(row)
    seats = tuple(
        RankSeat(rank=rank, node=node, first_layer=0, last_layer=1, rdma=rows[rank])
        for rank, node in enumerate(order)
    )
    group = GroupSpec(sharding="tensor", backend="jaccl", ranks=seats, secret="ab" * 32)
    matrix = json.loads(jaccl_devices(group))
    for one in range(size):
        for other in range(size):
            assert matrix[one][other] == (None if one == other else f"rdma_en{2 + other}")


def test_a_row_that_lacks_a_device_names_the_node() -> None:
    assert device_row([A, B, C], A, {B: "rdma_en2"}) == C


def test_tools_on_the_path_are_asked_and_missing_ones_say_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in ONE_CABLE[0].items():
        (tmp_path / f"{name}.txt").write_text(text)
        tool = tmp_path / name
        tool.write_text(f'#!/bin/sh\nexec cat "{tmp_path}/{name}.txt"\n')
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert find_ports(ask) == ports_of(ONE_CABLE[0])
    assert ask("no-such-tool") == ""
