from __future__ import annotations

from bus.ids import NodeId
from worker.machine import addresses, chip_in, machine, node_card
from worker.rdma import ports_in

PORTS = """
Hardware Port: Ethernet Adapter (en4)
Device: en4
Ethernet Address: 1a:2b:3c:4d:5e:6f

Hardware Port: Thunderbolt Bridge
Device: bridge0
Ethernet Address: 1a:2b:3c:4d:5e:70

Hardware Port: Wi-Fi
Device: en0
Ethernet Address: 1a:2b:3c:4d:5e:71

VLAN Configurations
===================
"""


def test_macos_names_of_ports_are_read() -> None:
    assert ports_in(PORTS) == {
        "en4": "Ethernet Adapter (en4)",
        "bridge0": "Thunderbolt Bridge",
        "en0": "Wi-Fi",
    }
    assert ports_in("") == {}


def test_a_processor_says_its_name() -> None:
    assert chip_in("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n") == "Some CPU @ 2 GHz"
    assert chip_in("Model\t\t: Raspberry Pi 5\n") == "Raspberry Pi 5"
    assert chip_in("") == ""


def test_this_machine_announces_what_it_is_and_where() -> None:
    card = node_card(NodeId("n"), "n", slots=2, memory_bytes=0, models=(), announced_at_s=1.0)
    assert card.ips == addresses() and card.machine == machine()
    assert any(one.medium == "loopback" for one in card.ips)
    assert card.vram_bytes == 0
    assert not any(one.ip.startswith("fe80") for one in card.ips)
