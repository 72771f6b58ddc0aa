"""The TCP ports of a node: one stated table, all below the systems' ephemeral ranges.

Pure. Linux hands out 32768-60999 to clients, macOS 49152-65535; a fixed port in there can be
taken by any outgoing connection. HTTP alone lies there by default (52415, what users of
this kind of software expect). A `base_port` moves everything, HTTP included, to
`base_port + offset`, so that two nodes can share a machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field

DEFAULT_HTTP_PORT = 52415
DEFAULT_BASE_PORT = 24150
SPAN = 100
"""Ports from the base on that belong to one node."""
HIGHEST_BASE_PORT = 32768 - SPAN


@dataclass(frozen=True, slots=True)
class Ports:
    """A row of the table: `count` ports from `offset` on. `process` listens there as long as it
    runs; empty: ports that are taken up when there is a use for them."""

    offset: int
    count: int
    use: str
    process: str = ""


PORTS: Mapping[str, Ports] = {
    "http": Ports(
        0, 1, "the HTTP API and the dashboard (52415 unless a base port is given)", "gateway"
    ),
    "control": Ports(1, 1, "switchboard, control plane, beyond this machine", "bus"),
    "telemetry": Ports(2, 1, "switchboard, telemetry plane, beyond this machine", "bus"),
    "candidate": Ports(3, 1, "the master candidate, beyond this machine", "master"),
    "peers": Ports(4, 1, "membership: hellos and presence of other nodes' switchboards", "bus"),
    "weights": Ports(5, 1, "the worker's store: weights for nodes that lack them", "worker"),
    "data": Ports(10, 16, "runners' data sockets, one per slot, beyond this machine"),
    "ring": Ports(32, 48, "MLX's ring: ranks of a group, fresh ones for each generation"),
    "plans": Ports(80, 16, "step plans: a lead runner's socket for its followers, one per slot"),
}


def port_of(use: str, base_port: int | None) -> int:
    """Return the (first) port of a use under `base_port`, None for the default base."""
    if use == "http" and base_port is None:
        return DEFAULT_HTTP_PORT
    return (DEFAULT_BASE_PORT if base_port is None else base_port) + PORTS[use].offset


def _base_port(port: int) -> int:
    if port > HIGHEST_BASE_PORT:
        raise ValueError(
            f"a node's {SPAN} ports begin there, and all lie below {HIGHEST_BASE_PORT + SPAN}: the "
            "system gives higher ones to outgoing connections, which would take them now and then; "
            f"choose one from 1024 to {HIGHEST_BASE_PORT}, such as 25000"
        )
    return port


BasePort = Annotated[int, Field(ge=0), AfterValidator(_base_port)]
"""The first of a node's ports; 0: the usual ones."""
