"""Hostfiles as `mlx.launch` reads them, checked, and what MLX's backends want instead.

Pure. A hostfile is a JSON list of `{"ssh", "ips", "rdma"}`, rank by rank, or an object that
holds one as `hosts`. `rdma` is one row of the device matrix: by which RDMA device a rank
reaches each rank, null itself. shoal needs none of these files, for its workers agree on the same
facts over the bus; they serve MLX's own tools, and to compare.
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
    """One rank's machine. `rdma` is empty where no rank names devices."""

    ssh: str
    ips: tuple[str, ...]
    rdma: tuple[str | None, ...]


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
    """Return (ssh, device, ssh, device) of each cable."""
    return [
        (one.ssh, str(one.rdma[far]), other.ssh, str(other.rdma[near]))
        for near, one in enumerate(hosts)
        for far, other in enumerate(hosts)
        if near < far and one.rdma
    ]


def device_matrix(hosts: Sequence[Host]) -> str:
    """Return the contents of MLX_IBV_DEVICES. Raises BadHostfile where a rank names no devices."""
    if len(hosts) < 2 or not hosts[0].rdma:
        raise BadHostfile("no RDMA devices are named")
    return json.dumps([list(one.rdma) for one in hosts])


def ring(hosts: Sequence[Host], port: int) -> str:
    """Return the contents of MLX_HOSTFILE, as `mlx.launch` numbers it.

    Each rank stands with all of its addresses, the ports counted up from `port` over all. Raises
    BadHostfile where a rank has no IPv4 address, for a ring speaks nothing else.
    """
    if len(hosts) < 2:
        raise BadHostfile("a ring has two ranks or more")
    addresses: list[list[str]] = []
    ports = itertools.count(port)
    for rank, one in enumerate(hosts):
        usable = [ip for ip in one.ips if ipaddress.ip_address(ip).version == 4]
        if not usable:
            raise BadHostfile(f"rank {rank} ({one.ssh}) has no IPv4 address, which a ring needs")
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
    states = {one.device: one.state for one in ports}
    return [
        f"{host.ssh}: {device} is {states.get(device, 'not there')}, not {ACTIVE}"
        for device in dict.fromkeys(one for one in host.rdma if one)
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
        try:
            ipaddress.ip_address(ip or "")
        except ValueError:
            raise BadHostfile(f"rank {rank} ({ssh}): {ip!r} is no IP address") from None
    return Host(ssh, tuple(str(ip) for ip in ips), rdma)


def _row(rank: int, name: str, fields: Mapping[str, Any]) -> tuple[str | None, ...]:
    row: Any = fields.get(name, [])
    if not isinstance(row, list):
        raise BadHostfile(f"rank {rank}: {name} is not a list")
    for one in cast(list[Any], row):
        if isinstance(one, list):
            raise BadHostfile(f"rank {rank}: several devices for one rank are not read here")
        if one is not None and (not isinstance(one, str) or not one):
            raise BadHostfile(f"rank {rank}: {name} holds {one!r}, neither text nor null")
    return tuple(cast(list[str | None], row))


def _check(hosts: Sequence[Host]) -> None:
    size = len(hosts)
    seen: dict[str, int] = {}
    for rank, one in enumerate(hosts):
        if one.ssh in seen:
            raise BadHostfile(f"ranks {seen[one.ssh]} and {rank} are both {one.ssh}")
        seen[one.ssh] = rank
    if not hosts[0].ips:
        raise BadHostfile(f"rank 0 ({hosts[0].ssh}) has no address, and the others dial it")
    if not any(one.rdma for one in hosts):
        return
    for rank, one in enumerate(hosts):
        if len(one.rdma) != size:
            raise BadHostfile(
                f"rank {rank} ({one.ssh}) names {len(one.rdma)} devices for {size} ranks"
            )
        if one.rdma[rank] is not None:
            raise BadHostfile(f"rank {rank} ({one.ssh}) names a device to itself; that is null")
        for other, device in enumerate(one.rdma):
            if other != rank and device is None:
                raise BadHostfile(
                    f"rank {rank} ({one.ssh}) names no device to rank {other} ({hosts[other].ssh})"
                )
