"""Talks to supervisord, the disk and psutil: measures a node, for the reading of each second."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bus.links.certificates import standing, validity_of
from bus.links.tls_files import read_served
from bus.process.clock import now as clock_now
from bus.process.clock import wall
from bus.process.endpoints import Removed
from bus.process.logs import dead_threads
from bus.process.ports import listening, port_owner
from bus.process.supervisor import Status, SupervisedProcess
from bus.wire.ids import NodeId
from bus.wire.messages.readings import NodeReading, ProcessReading, ThunderboltReading
from telemetry import probes
from telemetry.health import ClosedPort, NodeFacts

LIST_S = 3.0
"""Seconds between two questions to supervisord on a calm node. A question costs supervisord and us
more than all other measurements of a reading."""
CALM: frozenset[Status] = frozenset({"running", "stopped", "exited", "fatal"})
CABLES_S = 60.0
CHILDREN_S = 10.0
DOORS_S = 15.0
"""Seconds between two checks of ports. A younger process may not listen yet; it is not checked."""
RATE_SPAN_S = 3.0
GATEWAY = "gateway"
HTTP_PROCESS = "HTTP process of the gateway"
"""The description of a gateway's child, which gunicorn manages and supervisord does not know."""


ListProcesses = Callable[[], Sequence[SupervisedProcess]]
Keep = Callable[[Collection[str], float], tuple[Removed, ...]]
"""Restores removed files and folders of the node, and returns the removed ones. Takes the names of
the running processes, and the time."""


class NodeMeter:
    """Measures a node; processor loads are averages over `RATE_SPAN_S`. For use in one thread."""

    def __init__(
        self,
        node: NodeId,
        list_processes: ListProcesses,
        folder: Path,
        *,
        journal: Path,
        doors: Mapping[str, Sequence[int]],
        runtime: str = "",
        keep: Keep = lambda _running, _now: (),
    ) -> None:
        self._node = node
        self._keep = keep
        self._runtime = runtime
        self._journal = journal
        self._list_processes = list_processes
        self._folder = folder
        self._doors = doors
        self._closed: tuple[ClosedPort, ...] = ()
        self._doors_at = clock_now()
        self._rates = probes.Rates(RATE_SPAN_S)
        self._cables: ThunderboltReading | None = None
        self._cables_at = -CABLES_S
        self._listed: Sequence[SupervisedProcess] = ()
        self._listed_at = -LIST_S
        self._http: tuple[int, ...] = ()
        self._http_of = 0
        self._http_at = -CHILDREN_S

    def measure(self) -> NodeFacts:
        """Return the current facts about the node. May wait for supervisord."""
        at = clock_now()
        busy = self._rates.rate("cpu", at, probes.cpu_busy_s())
        keys: set[object] = {"cpu"}
        processes: list[ProcessReading] = []
        for supervised in self._supervised(at):
            processes.append(self._process(supervised, keys))
            if supervised.name == GATEWAY and supervised.pid:
                for count, pid in enumerate(self._http_processes(supervised.pid, at), 1):
                    name = f"{GATEWAY}/{count}"
                    child = replace(
                        supervised, name=name, pid=pid, status="running", description=HTTP_PROCESS
                    )
                    processes.append(self._process(child, keys))
        self._rates.keep(keys)
        memory, disk = probes.memory(), probes.disk(self._folder)
        served = read_served(self._runtime)
        valid = validity_of(served.certificates[0]) if served.certificates else None
        reading = NodeReading(
            node=self._node,
            memory_total_bytes=memory.total_bytes,
            memory_available_bytes=memory.available_bytes,
            cpu_ratio=min(1.0, max(0.0, busy / probes.cores())),
            load_1m=probes.load_1m(),
            disk_total_bytes=disk.total_bytes,
            disk_free_bytes=disk.free_bytes,
            processes=tuple(processes),
            measured_at_s=wall(),
            thunderbolt=self._thunderbolt(at),
            wired_bytes=memory.wired_bytes,
        )
        return NodeFacts(
            reading,
            closed_ports=self._closed_ports(processes, at),
            damaged_files=(
                *probes.damaged_files(self._journal),
                *probes.damaged_files(self._journal.parent),
            ),
            dead_threads=dead_threads(self._runtime, probes.is_there) if self._runtime else (),
            pair_trouble=served.trouble,
            certificate_standing="" if valid is None else standing(valid, wall()),
            removed=self._keep([process.name for process in processes if _is_settled(process)], at),
        )

    def _supervised(self, at: float) -> Sequence[SupervisedProcess]:
        """Return supervisord's list of processes. The last list is reused for `LIST_S`, unless one
        of its processes has ended, or supervisord is starting or stopping one."""
        is_calm = all(
            process.status in CALM and (not process.pid or probes.is_there(process.pid))
            for process in self._listed
        )
        if not self._listed or not is_calm or at - self._listed_at >= LIST_S:
            self._listed, self._listed_at = self._list_processes(), at
        return self._listed

    def _closed_ports(
        self, processes: Sequence[ProcessReading], at: float
    ) -> tuple[ClosedPort, ...]:
        """Return the ports at which their processes do not listen, checked every `DOORS_S`."""
        if at - self._doors_at >= DOORS_S:
            self._doors_at = at
            settled = [process for process in processes if _is_settled(process)]
            self._closed = tuple(
                ClosedPort(port, process.name, port_owner(port) or "an unknown process")
                for process in settled
                for port in self._missing(process)
            )
        return self._closed

    def _missing(self, process: ProcessReading) -> Sequence[int]:
        doors = self._doors.get(process.name, ())
        open_ports = listening(process.pid) if doors else frozenset[int]()
        return [port for port in doors if port not in open_ports]

    def _http_processes(self, gateway: int, at: float) -> tuple[int, ...]:
        """Return the pids of a gateway's children. A search reads every process of the machine, so
        its result is reused until a child has ended, for at most `CHILDREN_S`."""
        stale = gateway != self._http_of or at - self._http_at >= CHILDREN_S or not self._http
        if stale or not all(probes.is_there(child) for child in self._http):
            self._http, self._http_of = tuple(probes.children(gateway)), gateway
            self._http_at = at
        return self._http

    def _thunderbolt(self, at: float) -> ThunderboltReading | None:
        if at - self._cables_at >= CABLES_S:
            self._cables, self._cables_at = probes.thunderbolt(), at
        return self._cables

    def _process(self, supervised: SupervisedProcess, keys: set[object]) -> ProcessReading:
        sample = probes.process(supervised.pid) if supervised.pid else None
        ratio = 0.0
        if sample is not None:
            key = (sample.pid, sample.started_at_s)
            keys.add(key)
            ratio = self._rates.rate(key, clock_now(), sample.cpu_s)
        return ProcessReading(
            name=supervised.name,
            pid=supervised.pid,
            status=supervised.status,
            cpu_s=sample.cpu_s if sample else 0.0,
            cpu_ratio=ratio,
            resident_bytes=sample.resident_bytes if sample else 0,
            threads=sample.threads if sample else 0,
            uptime_s=max(0.0, wall() - sample.started_at_s) if sample else 0.0,
            description=supervised.description,
        )


def _is_settled(process: ProcessReading) -> bool:
    return bool(process.pid) and process.uptime_s >= DOORS_S
