"""Hostfiles of `mlx.launch`: parse and check them, and render the files that MLX's backends read.

Pure. A hostfile is a JSON list of `{"ssh", "ips", "rdma"}` in rank order, or an object with that
list as `hosts`. `rdma` is the rank's row of the device matrix: the RDMA device to each rank, null
to itself, a list if several cables join the two. A device has one cable, and an address belongs to
one machine. shoal does not need hostfiles, because its workers exchange these facts over the bus.
Hostfiles are for MLX's own tools, and for comparison.
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
    """A fault in a hostfile. The message names the rank, or both ranks of a pair."""


@dataclass(frozen=True, slots=True)
class Host:
    """The machine of one rank. `rdma` has the RDMA devices to each rank (none to itself); empty if
    the hostfile has no RDMA devices."""

    ssh: str
    ips: tuple[str, ...]
    rdma: tuple[tuple[str, ...], ...]

    @property
    def machine(self) -> str:
        """Return the host name without the user, in lower case."""
        return self.ssh.rpartition("@")[2].rstrip(".").lower()


def parse_hostfile(text: str) -> tuple[Host, ...]:
    """Return the hosts in rank order. Raises BadHostfile."""
    try:
        document: Any = json.loads(text)
    except ValueError as error:
        raise BadHostfile(f"not JSON: {error}") from None
    if isinstance(document, dict):
        document = cast(dict[str, Any], document).get("hosts")
    if not isinstance(document, list) or not document:
        raise BadHostfile('neither a list of hosts nor an object with a list "hosts"')
    hosts = tuple(_host(rank, entry) for rank, entry in enumerate(cast(list[Any], document)))
    _check(hosts)
    return hosts


def cables(size: int) -> int:
    """Return the number of cables that connect each of `size` machines with every other one."""
    return size * (size - 1) // 2


def pairs(hosts: Sequence[Host]) -> list[tuple[str, str, str, str]]:
    """Return (ssh, device, ssh, device) of each cable. If two machines have several cables between
    them, the first devices of both lists form a pair, then the second ones, and so on."""
    return [
        (host.ssh, here, other.ssh, there)
        for near, host in enumerate(hosts)
        for far, other in enumerate(hosts)
        if near < far and host.rdma
        for here, there in zip(host.rdma[far], other.rdma[near], strict=True)
    ]


def device_matrix(hosts: Sequence[Host]) -> str:
    """Return the device matrix, which MLX reads from the file named in MLX_IBV_DEVICES. Raises
    BadHostfile if the hostfile has no RDMA devices."""
    if len(hosts) < 2 or not hosts[0].rdma:
        raise BadHostfile("the hostfile has no RDMA devices")
    return json.dumps([[_as_mlx_has_it(devices) for devices in host.rdma] for host in hosts])


def ring(hosts: Sequence[Host], port: int) -> str:
    """Return the addresses of a ring, which MLX reads from the file named in MLX_HOSTFILE.

    The port numbers are those of `mlx.launch`: they count up from `port` over all addresses of all
    ranks. Raises BadHostfile if a rank has no IPv4 address, because a ring uses IPv4 only.
    """
    if len(hosts) < 2:
        raise BadHostfile("a ring needs at least two ranks")
    addresses: list[list[str]] = []
    ports = itertools.count(port)
    for rank, host in enumerate(hosts):
        usable = [ip for ip in host.ips if ipaddress.ip_address(ip).version == 4]
        if not usable:
            raise BadHostfile(f"rank {rank} ({host.ssh}) has no IPv4 address; a ring needs one")
        addresses.append([f"{ip}:{next(ports)}" for ip in usable])
    return json.dumps(addresses)


def environment(hosts: Sequence[Host], rank: int, path: str, port: int) -> Mapping[str, str]:
    """Return the environment variables of a rank's process.

    If the hostfile has RDMA devices, the variables select JACCL and `path` is the file of the
    device matrix. Otherwise they select the ring, and `path` is the file of the ring's addresses.
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
    """Return the RDMA devices of a host that are missing or down, according to the output of
    `ibv_devinfo` on that host."""
    states = {port.device: port.state for port in ports}
    return [
        f"{host.ssh}: {device} is {states.get(device, 'missing')}, not {ACTIVE}"
        for device in itertools.chain.from_iterable(host.rdma)
        if states.get(device) != ACTIVE
    ]


def _host(rank: int, entry: Any) -> Host:
    if not isinstance(entry, dict):
        raise BadHostfile(f"rank {rank} is not an object")
    fields = cast(dict[str, Any], entry)
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
    """Return the entries of a row of the device matrix, each as a list of device names. An entry of
    null becomes an empty list."""
    row: Any = fields.get(name, [])
    if not isinstance(row, list):
        raise BadHostfile(f"rank {rank}: {name} is not a list")
    rows: list[tuple[str, ...]] = []
    for entry in cast(list[Any], row):
        names: list[Any] = (
            [] if entry is None else cast(list[Any], entry) if isinstance(entry, list) else [entry]
        )
        if any(not isinstance(device, str) or not device for device in names):
            raise BadHostfile(
                f"rank {rank}: {name} contains {entry!r}; only strings and null are allowed"
            )
        rows.append(tuple(names))
    return tuple(rows)


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
    for rank, host in enumerate(hosts):
        other = machines.setdefault(host.machine, rank)
        if other != rank:
            raise BadHostfile(
                f"ranks {other} and {rank} are the same machine ({hosts[other].ssh}, {host.ssh})"
            )
        for ip in host.ips:
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
    host = hosts[rank]
    mine = f"rank {rank} ({host.ssh})"
    if len(host.rdma) != len(hosts):
        raise BadHostfile(f"{mine} lists {len(host.rdma)} devices for {len(hosts)} ranks")
    if host.rdma[rank]:
        raise BadHostfile(f"{mine} lists a device to itself; use null")
    leads_to: dict[str, int] = {}
    for far, devices in enumerate(host.rdma):
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
