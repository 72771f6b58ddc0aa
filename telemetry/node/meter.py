"""Talks to the operating system and supervisord: measures this node for its readings.

If supervisord does not answer, a reading lacks the processes, but nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bus.links.certificates import standing, validity_of
from bus.links.tls_files import read_served
from bus.process.clock import now as clock_now
from bus.process.clock import wall
from bus.process.endpoints import Removed
from bus.process.logs import dead_threads
from bus.process.ports import listening, port_owner
from bus.process.supervisor import SupervisedProcess
from bus.wire.ids import NodeId
from bus.wire.messages.readings import NodeReading, ProcessReading, ThunderboltReading
from telemetry.health import ClosedPort, NodeFacts
from telemetry.node import probes

CABLES_S = 60.0
CHILDREN_S = 10.0
DOORS_S = 15.0
"""Seconds between two checks of ports. Younger processes may not listen yet and are not checked."""
RATE_SPAN_S = 3.0
FILES_S = 2.0
"""Seconds between two checks of the node's files: their number makes them dear on an idle node."""
GATEWAY = "gateway"
HTTP_PROCESS = "HTTP process of the gateway"
"""The description of a gateway's child, which gunicorn manages and supervisord does not know."""


ListProcesses = Callable[[], Sequence[SupervisedProcess]]
Keep = Callable[[Collection[str], float], tuple[Removed, ...]]
"""Restores removed files and folders of the node, and returns the removed ones. Takes the names of
the running processes, and the time."""


@dataclass(frozen=True, slots=True)
class _FileFacts:
    """The facts of `NodeFacts` that files of the node show."""

    damaged_files: tuple[str, ...] = ()
    dead_threads: tuple[tuple[str, str], ...] = ()
    pair_trouble: str = ""
    certificate_standing: str = ""
    removed: tuple[Removed, ...] = ()


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
        self.supervised = probes.SupervisorList(list_processes)
        self._folder = folder
        self._doors = doors
        self._closed: tuple[ClosedPort, ...] = ()
        self._doors_at = clock_now()
        self._rates = probes.Rates(RATE_SPAN_S)
        self._files = _FileFacts()
        self._files_at = -FILES_S
        self._cables: ThunderboltReading | None = None
        self._cables_at = -CABLES_S
        self._http: tuple[int, ...] = ()
        self._http_of = 0
        self._http_at = -CHILDREN_S

    def measure(self) -> NodeFacts:
        """Return the current facts about the node. May wait for supervisord."""
        at = clock_now()
        busy = self._rates.rate("cpu", at, probes.cpu_busy_s())
        keys: set[object] = {"cpu"}
        processes: list[ProcessReading] = []
        for supervised in self.supervised.at(at):
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
        files = self._file_facts([p.name for p in processes if _is_settled(p)], at)
        return NodeFacts(
            reading,
            closed_ports=self._closed_ports(processes, at),
            damaged_files=files.damaged_files,
            dead_threads=files.dead_threads,
            pair_trouble=files.pair_trouble,
            certificate_standing=files.certificate_standing,
            removed=files.removed,
        )

    def _file_facts(self, settled: Sequence[str], at: float) -> _FileFacts:
        """Return the facts that files show, checked every `FILES_S`. `settled`: the names of the
        processes that have run for a while."""
        if at - self._files_at >= FILES_S:
            served = read_served(self._runtime)
            valid = validity_of(served.certificates[0]) if served.certificates else None
            journal = self._journal
            self._files_at = at
            self._files = _FileFacts(
                (*probes.damaged_files(journal), *probes.damaged_files(journal.parent)),
                dead_threads(self._runtime, probes.is_there) if self._runtime else (),
                served.trouble,
                "" if valid is None else standing(valid, wall()),
                self._keep(settled, at),
            )
        return self._files

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
            key = (sample.pid, sample.started)
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
            uptime_s=sample.uptime_s if sample else 0.0,
            description=supervised.description,
        )


def _is_settled(process: ProcessReading) -> bool:
    return bool(process.pid) and process.uptime_s >= DOORS_S
