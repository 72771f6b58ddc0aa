"""Hostfiles as `mlx.launch` reads them, checked, and what MLX's backends want instead.

Pure. A hostfile is a JSON list of `{"ssh", "ips", "rdma"}`, rank by rank, or an object that
holds one as `hosts`. `rdma` is one row of the device matrix: by which RDMA device a rank
reaches each rank, null itself, a list where several cables join the two. A device has one
cable, and an address one machine. shoal needs none of these files, for its workers agree on the
same facts over the bus; they serve MLX's own tools, and to compare.
"""

from __future__ import annotations

import ipaddress
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from bus.hardware.rdma_ports import ACTIVE, DevicePort

FIELDS = ("ssh", "ips", "rdma")


class BadHostfile(ValueError):
    """What is wrong with a hostfile; names the rank, and the pair where there is one."""


@dataclass(frozen=True, slots=True)
class Host:
    """One rank's machine. `rdma` has the devices to each rank, none to itself; it is empty where no
    rank names devices."""

    ssh: str
    ips: tuple[str, ...]
    rdma: tuple[tuple[str, ...], ...]

    @property
    def machine(self) -> str:
        """Return what ssh makes of its name: whose account is asked does not matter."""
        return self.ssh.rpartition("@")[2].rstrip(".").lower()


def parse_hostfile(text: str) -> tuple[Host, ...]:
    """Return the hosts in rank order. Raises BadHostfile."""
    try:
        found: Any = json.loads(text)
    except ValueError as error:
        raise BadHostfile(f"not JSON: {error}") from None
    if isinstance(found, dict):
        found = cast(dict[str, Any], found).get("hosts")
    if not isinstance(found, list) or not found:
        raise BadHostfile('neither a list of hosts nor an object with a list "hosts"')
    hosts = tuple(_host(rank, one) for rank, one in enumerate(cast(list[Any], found)))
    _check(hosts)
    return hosts


def cables(size: int) -> int:
    """Return how many cables a full mesh of `size` machines takes."""
    return size * (size - 1) // 2


def pairs(hosts: Sequence[Host]) -> list[tuple[str, str, str, str]]:
    """Return (ssh, device, ssh, device) of each cable; where several join two machines, in the
    order in which both name them."""
    return [
        (one.ssh, here, other.ssh, there)
        for near, one in enumerate(hosts)
        for far, other in enumerate(hosts)
        if near < far and one.rdma
        for here, there in zip(one.rdma[far], other.rdma[near], strict=True)
    ]


def device_matrix(hosts: Sequence[Host]) -> str:
    """Return the contents of MLX_IBV_DEVICES. Raises BadHostfile where a rank names no devices."""
    if len(hosts) < 2 or not hosts[0].rdma:
        raise BadHostfile("the hostfile has no RDMA devices")
    return json.dumps([[_as_mlx_has_it(devices) for devices in host.rdma] for host in hosts])


def ring(hosts: Sequence[Host], port: int) -> str:
    """Return the contents of MLX_HOSTFILE, as `mlx.launch` numbers it.

    Each rank stands with all of its addresses, the ports counted up from `port` over all. Raises
    BadHostfile where a rank has no IPv4 address, for a ring speaks nothing else.
    """
    if len(hosts) < 2:
        raise BadHostfile("a ring needs at least two ranks")
    addresses: list[list[str]] = []
    ports = itertools.count(port)
    for rank, one in enumerate(hosts):
        usable = [ip for ip in one.ips if ipaddress.ip_address(ip).version == 4]
        if not usable:
            raise BadHostfile(f"rank {rank} ({one.ssh}) has no IPv4 address; a ring needs one")
        addresses.append([f"{ip}:{next(ports)}" for ip in usable])
    return json.dumps(addresses)


def environment(hosts: Sequence[Host], rank: int, path: str, port: int) -> Mapping[str, str]:
    """Return what rank's process has in its environment.

    It is JACCL's where devices are named (`path` is then the matrix), else the ring's.
    """
    if hosts[0].rdma:
        coordinator = f"{hosts[0].ips[0]}:{port}"
        return {
            "MLX_RANK": str(rank),
            "MLX_IBV_DEVICES": path,
            "MLX_JACCL_COORDINATOR": coordinator,
        }
    return {"MLX_RANK": str(rank), "MLX_HOSTFILE": path}


def port_problems(host: Host, ports: Sequence[DevicePort]) -> list[str]:
    """Return what of a host's devices is not as the hostfile has it, by `ibv_devinfo` there."""
    states = {port.device: port.state for port in ports}
    return [
        f"{host.ssh}: {device} is {states.get(device, 'not there')}, not {ACTIVE}"
        for device in itertools.chain.from_iterable(host.rdma)
        if states.get(device) != ACTIVE
    ]


def _host(rank: int, found: Any) -> Host:
    if not isinstance(found, dict):
        raise BadHostfile(f"rank {rank} is not an object")
    fields = cast(dict[str, Any], found)
    unknown = sorted(set(fields) - set(FIELDS))
    if unknown:
        raise BadHostfile(f"rank {rank} has an unknown field {unknown[0]!r}")
    ssh = fields.get("ssh")
    if not isinstance(ssh, str) or not ssh or ssh.startswith("-") or not ssh.isprintable():
        raise BadHostfile(f"rank {rank} has no usable ssh name")
    ips, rdma = _row(rank, "ips", fields), _row(rank, "rdma", fields)
    for ip in ips:
        if len(ip) != 1 or _address(ip[0]) is None:
            named = ", ".join(ip) or None
            raise BadHostfile(f"rank {rank} ({ssh}): {named!r} is not an IP address")
    return Host(ssh, tuple(ip[0] for ip in ips), rdma)


def _row(rank: int, name: str, fields: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """Return the entries of a row, each as a list of names: none for null."""
    row: Any = fields.get(name, [])
    if not isinstance(row, list):
        raise BadHostfile(f"rank {rank}: {name} is not a list")
    found: list[tuple[str, ...]] = []
    for entry in cast(list[Any], row):
        names: list[Any] = (
            [] if entry is None else cast(list[Any], entry) if isinstance(entry, list) else [entry]
        )
        if any(not isinstance(one, str) or not one for one in names):
            raise BadHostfile(
                f"rank {rank}: {name} contains {entry!r}; only strings and null are allowed"
            )
        found.append(tuple(names))
    return tuple(found)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _as_mlx_has_it(devices: tuple[str, ...]) -> str | list[str] | None:
    if len(devices) > 1:
        return list(devices)
    return devices[0] if devices else None


def _check(hosts: Sequence[Host]) -> None:
    machines: dict[str, int] = {}
    owners: dict[object, int] = {}
    for rank, one in enumerate(hosts):
        other = machines.setdefault(one.machine, rank)
        if other != rank:
            raise BadHostfile(
                f"ranks {other} and {rank} are the same machine ({hosts[other].ssh}, {one.ssh})"
            )
        for ip in one.ips:
            other = owners.setdefault(_address(ip), rank)
            if other != rank:
                raise BadHostfile(f"ranks {other} and {rank} both have the address {ip}")
    if not hosts[0].ips:
        raise BadHostfile(
            f"rank 0 ({hosts[0].ssh}) has no address, but the other ranks connect to it"
        )
    if any(host.rdma for host in hosts):
        for rank in range(len(hosts)):
            _check_devices(rank, hosts)


def _check_devices(rank: int, hosts: Sequence[Host]) -> None:
    one = hosts[rank]
    mine = f"rank {rank} ({one.ssh})"
    if len(one.rdma) != len(hosts):
        raise BadHostfile(f"{mine} lists {len(one.rdma)} devices for {len(hosts)} ranks")
    if one.rdma[rank]:
        raise BadHostfile(f"{mine} lists a device to itself; use null")
    leads_to: dict[str, int] = {}
    for far, devices in enumerate(one.rdma):
        other = hosts[far]
        if far != rank and not devices:
            raise BadHostfile(f"{mine} lists no device to rank {far} ({other.ssh})")
        for device in devices:
            if device in leads_to:
                raise BadHostfile(
                    f"{mine} lists {device} for rank {leads_to[device]} and for rank {far}; "
                    "a device has one cable"
                )
            leads_to[device] = far
        if far < rank and len(devices) != len(other.rdma[rank]):
            raise BadHostfile(
                f"{mine} lists {len(devices)} devices to rank {far} ({other.ssh}), which lists "
                f"{len(other.rdma[rank])} back; each cable has two ends"
            )
