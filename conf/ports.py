"""The table of a node's TCP ports, which are below the ephemeral ranges of the systems.

Pure. Outgoing connections use 32768-60999 on Linux and 49152-65535 on macOS, and may take any port
of that range. Only HTTP has a default port in it: 52415, which users of such software expect. A
`base_port` moves all ports, HTTP's too, to `base_port + offset`, so that two nodes can share a
machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field

DEFAULT_HTTP_PORT = 52415
DEFAULT_BASE_PORT = 24150
SPAN = 100
"""The number of ports that a node may use, counted from its base port."""
HIGHEST_BASE_PORT = 32768 - SPAN


@dataclass(frozen=True, slots=True)
class Ports:
    """A row of the table: `count` ports, the first one `offset` above the base port. `process`
    listens on them as long as it runs; empty: the ports are opened only if needed."""

    offset: int
    count: int
    use: str
    process: str = ""


PORTS: Mapping[str, Ports] = {
    "http": Ports(
        0, 1, "the HTTP API and the dashboard (52415 unless a base port is given)", "gateway"
    ),
    "control": Ports(1, 1, "the switchboard's control plane, for other machines", "bus"),
    "telemetry": Ports(2, 1, "the switchboard's telemetry plane, for other machines", "bus"),
    "candidate": Ports(3, 1, "the master, for other machines", "master"),
    "peers": Ports(4, 1, "membership: hellos and presence of other nodes' switchboards", "bus"),
    "weights": Ports(5, 1, "the worker's store: weights for nodes that lack them", "worker"),
    "data": Ports(10, 16, "runners' data sockets, one per runner slot, for other machines"),
    "ring": Ports(32, 48, "MLX's ring between the ranks of a group, new ports for each load"),
    "plans": Ports(80, 16, "step plans: a lead runner's socket for its followers, one per slot"),
}


def port_of(use: str, base_port: int | None) -> int:
    """Return the first port of a use, such as `http` (a key of `PORTS`). `base_port` None: the
    default base port."""
    if use == "http" and base_port is None:
        return DEFAULT_HTTP_PORT
    return (DEFAULT_BASE_PORT if base_port is None else base_port) + PORTS[use].offset


def _base_port(port: int) -> int:
    if port > HIGHEST_BASE_PORT:
        raise ValueError(
            f"a node uses this port and the {SPAN - 1} after it, and the system may use ports "
            f"above {HIGHEST_BASE_PORT + SPAN - 1} for outgoing connections; "
            f"choose one from 1024 to {HIGHEST_BASE_PORT}, such as 25000"
        )
    return port


BasePort = Annotated[int, Field(ge=0), AfterValidator(_base_port)]
"""The first port of a node; 0: the default ports."""
