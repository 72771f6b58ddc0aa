"""What macOS's tools say of Thunderbolt, in their own shapes.

`system_profiler`, `ibv_devices`, `ibv_devinfo` and `networksetup -listallhardwareports` follow
reports of Macs with Thunderbolt 5 (macOS 26 and 27) that their owners published, identifiers made
up; none was taken from a machine of ours.
"""

from __future__ import annotations

import json
from typing import Any


def bus(
    number: int, domain: str, *peers: str, speed: str = "80 Gb/s", dock: bool = False
) -> dict[str, Any]:
    """One bus of a Mac, with a Mac at the other end for each of `peers`."""
    items: list[dict[str, Any]] = [
        {
            "_name": "MacBook Pro",
            "device_id_key": "0xA",
            "device_name_key": "Mac17,6",
            "domain_uuid_key": peer,
            "services_title": [{"_name": "service_ip", "protocol_id_key": 1}],
            "vendor_id_key": "0x0A27",
            "vendor_name_key": "Apple Inc.",
        }
        for peer in peers
    ]
    if dock:
        items.append(
            {
                "_name": "Dock",
                "mode_key": "usb_four_v2",
                "switch_uid_key": "0x01",
                "route_string_key": "1",
            }
        )
    joined = bool(items)
    found: dict[str, Any] = {
        "_name": f"thunderboltusb4_bus_{number}",
        "device_name_key": "MacBook Pro",
        "domain_uuid_key": domain,
        "receptacle_1_tag": {
            "current_speed_key": speed if joined else "Up to 120 Gb/s",
            "link_status_key": "0x2" if joined else "0x100",
            "receptacle_id_key": str(number + 1),
            "receptacle_status_key": (
                "receptacle_connected" if joined else "receptacle_no_devices_connected"
            ),
        },
        "route_string_key": "0",
        "vendor_name_key": "Apple Inc.",
    }
    return {"_items": items, **found} if joined else found


def profile(*buses: dict[str, Any]) -> str:
    return json.dumps({"SPThunderboltDataType": list(buses)}, indent=1)


def services(*, bridge: str = "(3)", name: str = "Thunderbolt Bridge") -> str:
    """`networksetup -listnetworkserviceorder`."""
    return f"""An asterisk (*) denotes that a network service is disabled.
(1) USB 10/100/1000 LAN
(Hardware Port: USB 10/100/1000 LAN, Device: en5)

(2) Wi-Fi
(Hardware Port: Wi-Fi, Device: en0)

{bridge} {name}
(Hardware Port: Thunderbolt Bridge, Device: bridge0)
"""


def devinfo(*devices: tuple[str, str]) -> str:
    """`ibv_devinfo`: (device, state) of each, e.g. ("rdma_en2", "PORT_ACTIVE (4)")."""
    return "\n".join(
        f"hca_id:\t{name}\n"
        "\ttransport:\t\t\tThunderbolt (100)\n"
        f"\tnode_guid:\t\t\t0000:0000:0000:000{place}\n"
        "\tsys_image_guid:\t\t\t0000:0000:0000:0001\n"
        "\tvendor_id:\t\t\t0x0000\n"
        "\tvendor_part_id:\t\t\t0\n"
        "\thw_ver:\t\t\t\t0x0\n"
        "\tphys_port_cnt:\t\t\t1\n"
        "\t\tport:\t1\n"
        f"\t\t\tstate:\t\t\t{state}\n"
        "\t\t\tmax_mtu:\t\t4096 (5)\n"
        "\t\t\tactive_mtu:\t\t4096 (5)\n"
        f"\t\t\tsm_lid:\t\t\t{place}\n"
        f"\t\t\tport_lid:\t\t{place}\n"
        "\t\t\tport_lmc:\t\t0x00\n"
        "\t\t\tlink_layer:\t\tThunderbolt\n"
        for place, (name, state) in enumerate(devices, 1)
    )
