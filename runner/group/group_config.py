"""The settings by which MLX's backends find the ranks of a group.

Pure. A ring's hostfile is a JSON list with one list of `ip:port` per rank, preferred address first.
JACCL needs an N by N matrix of RDMA device names (row: sender, column: receiver, null on the
diagonal) and the coordinator's `ip:port`. Neither authenticates ranks, so the ranks first exchange
`greeting`s: HMAC-SHA256 over generation and rank.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping, Sequence

from bus.wire.messages.control import GroupSpec
from runner.lifecycle import lost_peer

GREETING_BYTES = 32


class CannotForm(Exception):
    """The group cannot be formed; `args[0]` says why and names the rank if there is one."""


def ring_hostfile(group: GroupSpec) -> str:
    """Return the contents of MLX_HOSTFILE. Raises CannotForm if a rank has no IPv4 address or
    name."""
    for seat in group.ranks:
        if not seat.ring:
            raise CannotForm(f"rank {seat.rank} on node {seat.node} has no ring address")
        for address in seat.ring:
            host, _, port = address.partition(":")
            if not host or not port.isdigit():
                raise CannotForm(
                    f"rank {seat.rank}: {address!r} is not ip:port (the ring supports IPv4 only)"
                )
    return json.dumps([list(seat.ring) for seat in group.ranks])


def told_error(message: str, group: GroupSpec | None, rank: int) -> str:
    """Return the message for people about an engine's error. If another rank was lost, the message
    names that rank and its node instead of quoting the library. In a ring the lost rank is one of
    the two neighbours, so both are named; otherwise all other ranks are named."""
    if group is None or not lost_peer(message):
        return message
    size = len(group.ranks)
    near = {(rank - 1) % size, (rank + 1) % size} if group.backend == "ring" else {*range(size)}
    others = [seat for seat in group.ranks if seat.rank in near - {rank}]
    names = " or ".join(f"rank {seat.rank} on node {seat.node}" for seat in others)
    return f"rank {rank} lost its connection to {names}: that runner or its machine is gone"


def ring_environment(rank: int, hostfile: str) -> Mapping[str, str]:
    """Return the environment variables with which a rank's process joins a ring."""
    return {"MLX_RANK": str(rank), "MLX_HOSTFILE": hostfile}


def jaccl_devices(group: GroupSpec) -> str:
    """Return the contents of MLX_IBV_DEVICES: the device from each rank to each other rank. Raises
    CannotForm if a rank lists no device for another rank."""
    size = len(group.ranks)
    matrix: list[list[str | None]] = []
    for seat in group.ranks:
        if len(seat.rdma) != size:
            raise CannotForm(
                f"rank {seat.rank} on node {seat.node} lists {len(seat.rdma)} RDMA "
                f"devices for {size} ranks"
            )
        row = [None if other == seat.rank else seat.rdma[other] for other in range(size)]
        if any(device == "" for device in row):
            raise CannotForm(f"rank {seat.rank} on node {seat.node} has no RDMA device")
        matrix.append(row)
    return json.dumps(matrix)


def jaccl_environment(rank: int, devices: str, coordinator: str) -> Mapping[str, str]:
    """Return the environment variables with which a rank's process joins over JACCL. `devices` is
    the path of the matrix, `coordinator` rank 0's `ip:port`."""
    return {
        "MLX_RANK": str(rank),
        "MLX_IBV_DEVICES": devices,
        "MLX_JACCL_COORDINATOR": coordinator,
    }


def greeting(secret: str, generation: int, rank: int) -> bytes:
    """Return the proof of a rank's identity, GREETING_BYTES long; `secret` is hexadecimal."""
    return hmac.digest(bytes.fromhex(secret), f"shoal:{generation}:{rank}".encode(), "sha256")


def stranger(secret: str, generation: int, greetings: Sequence[bytes]) -> int | None:
    """Return the first rank with a wrong greeting, or None; `greetings` are in rank order."""
    for rank, proof in enumerate(greetings):
        if not hmac.compare_digest(proof, greeting(secret, generation, rank)):
            return rank
    return None
