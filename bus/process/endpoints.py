"""The addresses of a node's sockets, all in one short private folder; and the files that a node
needs (decision 0080).

Pure. Local sockets are `ipc://<runtime folder>/<name>`; a path has at most 100 bytes (the system's
limit is 107). TCP ports come from the table in `conf.ports`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bus.wire.topology import ip_in

MAX_PATH_BYTES = 100
WILDCARDS = ("0.0.0.0", "::", "*")
"""Hosts that mean all addresses of a machine."""
LOOPBACKS = ("127.0.0.1", "::1")
"""The loopback addresses of IPv4, which every machine has, and of IPv6."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The addresses of one node's local sockets. `folder` is its runtime folder."""

    folder: str

    def _ipc(self, name: str) -> str:
        path = f"{self.folder}/{name}"
        if len(path.encode()) > MAX_PATH_BYTES:
            raise ValueError(
                f"socket path {path!r} is too long; the limit is {MAX_PATH_BYTES} bytes"
            )
        return f"ipc://{path}"

    def plane_in(self, plane: str) -> str:
        """Return the address at which a service publishes to a plane (`control`, `telemetry`)."""
        return self._ipc(f"{plane}.in")

    def plane_out(self, plane: str) -> str:
        """Return the address at which a service subscribes to a plane."""
        return self._ipc(f"{plane}.out")

    @property
    def tap(self) -> str:
        """Return the address at which a SUB socket sees both planes; it drops messages rather than
        block."""
        return self._ipc("tap")

    @property
    def candidate(self) -> str:
        """Return the address of the master candidate's ROUTER. Every node has one, but only the
        leader answers."""
        return self._ipc("master.ask")

    @property
    def worker(self) -> str:
        """Return the address of the worker's ROUTER for its runner slots."""
        return self._ipc("worker.slots")

    @property
    def telemetry(self) -> str:
        """Return the address of the telemetry service's ROUTER for diagnoses."""
        return self._ipc("telemetry.ask")

    def runner(self, slot: str) -> str:
        """Return the address of a runner's data ROUTER. `slot`: supervisord's number, two
        digits."""
        return self._ipc(f"runner-{slot}.data")

    def gateway(self, number: int) -> str:
        """Return the address of the ROUTER of HTTP process `number`, for the node's other HTTP
        processes."""
        return self._ipc(f"gateway-{number}.ask")

    @property
    def http(self) -> str:
        """Return the path of the unix socket for HTTP on a node that opens no TCP port for HTTP."""
        return self._ipc("http.sock").removeprefix("ipc://")

    def stacks(self, process: str) -> str:
        """Return the address at which a process returns its own stacks, for systems that forbid
        ptrace."""
        return self._ipc(f"{process.replace(':', '-')}.stacks")

    @property
    def supervisor(self) -> str:
        """Return the path of supervisord's unix socket."""
        return f"{self.folder}/supervisor.sock"

    def services(self) -> dict[str, tuple[str, ...]]:
        """Return the paths of the sockets that each service has while it runs, by service."""
        planes = ("control", "telemetry")
        ends = [end(plane) for plane in planes for end in (self.plane_in, self.plane_out)]
        served = {
            "bus": (*ends, self.tap),
            "master": (self.candidate,),
            "worker": (self.worker,),
            "telemetry": (self.telemetry,),
        }
        return {
            process: tuple(path.removeprefix("ipc://") for path in (*paths, self.stacks(process)))
            for process, paths in served.items()
        }


@dataclass(frozen=True, slots=True)
class Means:
    """A folder or file that a node needs. `what` names it in messages to people; `without` says
    what fails if it is missing.

    `owner`: the process that creates the file, and creates it again if it was removed; empty for a
    folder. `lost`: what is lost with the file; empty if nothing is.
    """

    what: str
    path: Path
    without: str
    owner: str = ""
    lost: str = ""


@dataclass(frozen=True, slots=True)
class Removed:
    """A needed file or folder that was removed while the node ran. `is_back`: it has been created
    again; else `trouble` says why not."""

    means: Means
    is_back: bool
    trouble: str = ""


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches `host`: a loopback address or name."""
    if host.casefold() == "localhost" or host.casefold().endswith(".localhost"):
        return True
    address = ip_in(host.strip("[]"))
    return address is not None and address.is_loopback


def host_here(listens: str) -> str:
    """Return the host for a URL by which this machine reaches a server that listens at `listens`.
    If the server listens on all addresses, return the loopback address; for `localhost`, return
    IPv4's."""
    ipv4 = dict.fromkeys(("", "0.0.0.0", "localhost"), LOOPBACKS[0])
    host = {**ipv4, "::": LOOPBACKS[1]}.get(listens.casefold(), listens)
    return f"[{host}]" if ":" in host else host


def host_of(address: str) -> str:
    """Return the host of `tcp://host:port`, without brackets."""
    return address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
