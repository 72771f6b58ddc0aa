"""Talks to telemetry, the worker, supervisord and the disk: collects a capture of this node.

The steps run one after the other, each with a deadline. If a step fails, its result is listed as
missing, and the next step runs. A capture is complete within `CaptureTiming.whole_s`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import TypeVar

from bus.wire.errors import ShoalError
from bus.wire.messages.control import AskDiagnosis
from gateway.control.captures import (
    GATEWAY,
    Machine,
    Missing,
    NodeCapture,
    SeenProcess,
    file_name,
    json_text,
    memory_of,
    remover_of,
)
from gateway.dialects.faults import HttpFaultRaised
from gateway.exchange import Parts
from gateway.http.diagnostics.node import (
    DiagnosticsTiming,
    diagnosis_of,
    node_document,
    runtime,
)
from gateway.http.diagnostics.processes import stacks_text

BUSY = 429
STOPPED = "stopped"
_T = TypeVar("_T")
Found = Iterator[tuple[str, bytes | Missing]]


@dataclass(frozen=True, slots=True)
class CaptureTiming:
    """Time limits of a node's capture: for the whole capture, for each step, and for the stacks of
    each process."""

    whole_s: float = 60.0
    step_s: float = 15.0
    again_s: float = 0.3
    """Pause before a retry, while telemetry serves another client."""


async def gathered(parts: Parts, timing: CaptureTiming) -> NodeCapture:
    """Return a capture of this node, without secrets; failed parts are listed as missing."""
    taking = _Gathering(parts, timing)
    await taking.documents()
    await taking.logs()
    processes = await taking.processes()
    await taking.stacks(processes)
    await taking.memory(processes)
    return await asyncio.to_thread(taking.cleaned)


class _Gathering:
    """A capture that is being made."""

    def __init__(self, parts: Parts, timing: CaptureTiming) -> None:
        options, cluster = parts.options, parts.cluster
        self._parts, self._cluster = parts, cluster
        self._timing = timing
        self._until = cluster.reactor.now() + timing.whole_s
        self._capture = NodeCapture(options.node, options.node_name)
        self._machine = Machine(options.endpoints.supervisor, options.logs_folder)

    async def documents(self) -> None:
        """Add the node document (with the flight recorders, that is the latest steps, of running
        and ended runners), versions and settings."""
        document = await self._step(
            "node.json", lambda: node_document(self._cluster, DiagnosticsTiming())
        )
        if document is not None:
            self._capture.add("node.json", await asyncio.to_thread(json_text, document))
            for warning in document["warnings"]:
                if str(warning.get("code", "")).endswith("_silent"):
                    self._capture.lack("node.json", str(warning["message"]))
        self._capture.add("versions.json", json_text(runtime()))
        self._capture.add("config.json", json_text(self._cluster.options.settings_shown))

    async def logs(self) -> None:
        """Add the last lines of the logs."""
        await self._take("logs", self._machine.log_ends, "logs/{name}")

    async def processes(self) -> list[SeenProcess]:
        """Add the list of processes from supervisord, else from the latest reading. Return the
        processes with a pid."""
        processes = await self._step(
            "processes.json", lambda: asyncio.to_thread(self._machine.processes)
        )
        if processes is None:
            node, now = self._cluster.options.node, self._cluster.reactor.now()
            readings = [r for r, _ in self._cluster.readings.nodes(now) if r.node == node]
            listed = readings[0].processes if readings else ()
            processes = [
                SeenProcess(p.name, p.pid, p.status, "unknown", p.description) for p in listed
            ]
        self._capture.add("processes.json", json_text([asdict(process) for process in processes]))
        halted = [f"{p.name} (pid {p.pid})" for p in processes if p.state == STOPPED]
        self._capture.stopped = halted
        return [process for process in processes if process.pid]

    async def stacks(self, processes: list[SeenProcess]) -> None:
        """Add the stacks of each process; each HTTP process counts as one."""
        silent = ""
        for process in processes:
            name = f"stacks/{file_name(process.name)}.txt"
            if silent:
                self._capture.lack(name, silent)
                continue
            if process.name == GATEWAY and any(p.name.startswith(f"{GATEWAY}/") for p in processes):
                continue  # the master only watches the HTTP processes, which are listed themselves
            try:
                text = await self._stacks_of(process.name)
            except HttpFaultRaised as error:
                self._capture.lack(name, error.fault.message)
                if error.fault.code == "telemetry_silent":
                    silent = f"telemetry did not answer earlier: {error.fault.message}"
            except Exception as error:
                # Continue: the other processes' stacks are still useful.
                self._capture.lack(name, f"{type(error).__name__}: {error}")
            else:
                self._capture.add(name, text.encode())

    async def memory(self, processes: list[SeenProcess]) -> None:
        """Add the system's memory figures of each process."""
        for process in processes:
            pattern = f"memory/{file_name(process.name)}.{{name}}.txt"
            find = partial(memory_of, process)
            await self._take(f"memory of {process.name}", find, pattern)

    def cleaned(self) -> NodeCapture:
        """Return the capture without this node's secrets. Blocks on the disk."""
        taken, tasks = self._capture, self._parts.tasks
        remover = remover_of(self._cluster.options.secret_files, tasks.variables())

        def clean(text: str) -> str:
            return remover.cleaned(text.encode()).decode(errors="replace")

        taken.files = {name: remover.cleaned(content) for name, content in taken.files.items()}
        taken.missing = [Missing(clean(gap.what), clean(gap.why)) for gap in taken.missing]
        return taken

    async def _stacks_of(self, process: str) -> str:
        """Return a process's stacks as text. Raises HttpFaultRaised, also after the deadline."""
        question = AskDiagnosis(want="stacks", process=process)
        until = min(self._until, self._cluster.reactor.now() + self._timing.step_s)
        while True:
            left_s = max(0.1, until - self._cluster.reactor.now())
            try:
                diagnosis = await diagnosis_of(self._cluster, question, left_s)
            except HttpFaultRaised as error:
                now = self._cluster.reactor.now()
                if error.fault.status != BUSY or now + self._timing.again_s >= until:
                    raise
                await asyncio.sleep(self._timing.again_s)
            else:
                return stacks_text(json.loads(diagnosis.content))

    async def _take(self, what: str, find: Callable[[], Found], pattern: str) -> None:
        """Run `find` in a thread, and add the files that it returns under names of the form
        `pattern`."""
        files = await self._step(what, lambda: asyncio.to_thread(lambda: list(find())))
        for name, content in files or ():
            if isinstance(content, Missing):
                self._capture.lack(content.what, content.why)
            else:
                self._capture.add(pattern.format(name=name), content)

    async def _step(self, what: str, find: Callable[[], Awaitable[_T]]) -> _T | None:
        """Run `find` and return its result. If `find` fails, list `what` as missing and return
        None."""
        left_s = min(self._timing.step_s, self._until - self._cluster.reactor.now())
        if left_s <= 0:
            why = f"the time limit of the capture ({self._timing.whole_s:g} s) was reached"
            self._capture.lack(what, why)
            return None
        try:
            return await asyncio.wait_for(find(), left_s)
        except TimeoutError:
            self._capture.lack(what, f"no answer within {left_s:.0f} s")
        except ShoalError as error:
            self._capture.lack(what, str(error) or type(error).__name__)
        except Exception as error:
            # Continue: after an unexpected error the rest of the capture is useful.
            self._capture.lack(what, f"{type(error).__name__}: {error}")
        return None
