"""Finds RDMA ports, and whether RDMA is switched on, in the output of the system's tools.

Pure: it parses the output of a tool and returns facts. Text in another format gives no facts.
Formats: `ibv_devinfo` of rdma-core, Apple's `rdma_ctl status`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ACTIVE = "PORT_ACTIVE"
DOWN = "PORT_DOWN"


@dataclass(frozen=True, slots=True)
class DevicePort:
    """A port of an RDMA device. `state` is the port state as ibverbs names it, without the numeric
    code: `PORT_ACTIVE`, not `PORT_ACTIVE (4)`."""

    device: str
    port: int
    state: str


def rdma_ports(devinfo: str) -> tuple[DevicePort, ...]:
    """Return the ports in the output of `ibv_devinfo`, in its order."""
    ports: list[DevicePort] = []
    device, port = "", 0
    lines = re.findall(r"^\s*(hca_id|port|state|port_state):\s+(\S+)", devinfo, re.MULTILINE)
    for key, value in lines:
        if key == "hca_id":
            device, port = value, 0
        elif key == "port" and value.isdigit():
            port = int(value)
        elif key in ("state", "port_state") and device and port:
            ports.append(DevicePort(device, port, value))
    return tuple(ports)


def rdma_enabled(status: str) -> bool | None:
    """Return whether RDMA is enabled, from the output of `rdma_ctl status`; None if the output says
    neither "enabled" nor "disabled"."""
    words = status.lower().split()
    if "enabled" in words:
        return True
    return False if "disabled" in words else None
