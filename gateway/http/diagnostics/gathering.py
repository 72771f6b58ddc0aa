"""Talks to telemetry, the worker, supervisord and the disk: what a capture of this node holds.

One step after the other, each under a deadline: what a step cannot bring is named as missing, and
the next is taken. A capture ends within `CaptureTiming.whole_s`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TypeVar

from bus.wire.errors import ShoalError
from bus.wire.messages.control import AskDiagnosis
from gateway.cluster.captures import (
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
from gateway.http.diagnostics.node import (
    DiagnosticsTiming,
    asked_of_telemetry,
    node_document,
    runtime,
)
from gateway.http.diagnostics.processes import stacks_text
from gateway.service import HttpService

BUSY = 429
STOPPED = "stopped"
_T = TypeVar("_T")
Found = Iterator[tuple[str, bytes | Missing]]


@dataclass(frozen=True, slots=True)
class CaptureTiming:
    """How long a node's capture may take, and of it each step and each process's stacks."""

    whole_s: float = 60.0
    step_s: float = 15.0
    again_s: float = 0.3
    """Between questions to a telemetry that is at another's."""


async def gathered(service: HttpService, timing: CaptureTiming) -> NodeCapture:
    """Return what could be had of this node, without what is secret."""
    taking = _Gathering(service, timing)
    await taking.documents()
    await taking.logs()
    processes = await taking.processes()
    await taking.stacks(processes)
    await taking.memory(processes)
    return await asyncio.to_thread(taking.cleaned)


class _Gathering:
    """A capture under way."""

    def __init__(self, service: HttpService, timing: CaptureTiming) -> None:
        options = service.options
        self._service = service
        self._timing = timing
        self._until = service.reactor.now() + timing.whole_s
        self._capture = NodeCapture(options.node, options.node_name)
        self._machine = Machine(options.endpoints.supervisor, options.logs_folder)

    async def documents(self) -> None:
        """Take what the node tells of itself: its runners' flight recorders, those of runners that
        have ended, versions, settings."""
        document = await self._step(
            "node.json", lambda: node_document(self._service, DiagnosticsTiming())
        )
        if document is not None:
            self._capture.add("node.json", await asyncio.to_thread(json_text, document))
            for warning in document["warnings"]:
                if str(warning.get("code", "")).endswith("_silent"):
                    self._capture.lack("node.json", str(warning["message"]))
        self._capture.add("versions.json", json_text(runtime()))
        self._capture.add("config.json", json_text(self._service.options.settings_shown))

    async def logs(self) -> None:
        """Take the ends of the logs."""
        await self._take("logs", self._machine.log_ends, "logs/{name}")

    async def processes(self) -> list[SeenProcess]:
        """Take the list of processes, and return it: of supervisord, else of the last reading."""
        found = await self._step(
            "processes.json", lambda: asyncio.to_thread(self._machine.processes)
        )
        if found is None:
            node, now = self._service.options.node, self._service.reactor.now()
            readings = [one for one, _ in self._service.readings.nodes(now) if one.node == node]
            listed = readings[0].processes if readings else ()
            found = [SeenProcess(p.name, p.pid, p.status, "unknown", p.description) for p in listed]
        self._capture.add("processes.json", json_text([asdict(one) for one in found]))
        halted = [f"{one.name} (pid {one.pid})" for one in found if one.state == STOPPED]
        self._capture.stopped = halted
        return [one for one in found if one.pid]

    async def stacks(self, processes: list[SeenProcess]) -> None:
        """Take the stacks of each process; those of HTTP processes one by one."""
        silent = ""
        for process in processes:
            name = f"stacks/{file_name(process.name)}.txt"
            if silent:
                self._capture.lack(name, silent)
                continue
            if process.name == GATEWAY and any(p.name.startswith(f"{GATEWAY}/") for p in processes):
                continue  # its own thread only minds the HTTP processes, which are asked each
            try:
                text = await self._stacks_of(process.name)
            except HttpFaultRaised as error:
                self._capture.lack(name, error.fault.message)
                if error.fault.code == "telemetry_silent":
                    silent = f"telemetry did not answer earlier: {error.fault.message}"
            except Exception as error:
                # One process's stacks are not worth those of the others.
                self._capture.lack(name, f"{type(error).__name__}: {error}")
            else:
                self._capture.add(name, text.encode())

    async def memory(self, processes: list[SeenProcess]) -> None:
        """Take what the system tells of each process's memory."""
        for one in processes:
            pattern = f"memory/{file_name(one.name)}.{{name}}.txt"
            await self._take(f"memory of {one.name}", lambda one=one: memory_of(one), pattern)

    def cleaned(self) -> NodeCapture:
        """Return the capture without what is secret on this node. Waits for the disk."""
        service, taken = self._service, self._capture
        remover = remover_of(service.options.secret_files, service.tasks.variables())

        def clean(text: str) -> str:
            """Return a text without what is secret."""
            return remover.cleaned(text.encode()).decode(errors="replace")

        taken.files = {name: remover.cleaned(content) for name, content in taken.files.items()}
        taken.missing = [Missing(clean(one.what), clean(one.why)) for one in taken.missing]
        return taken

    async def _stacks_of(self, process: str) -> str:
        """Return a process's stacks as text. Raises HttpFaultRaised, also for want of time."""
        question = AskDiagnosis(want="stacks", process=process)
        until = min(self._until, self._service.reactor.now() + self._timing.step_s)
        while True:
            left_s = max(0.1, until - self._service.reactor.now())
            try:
                found = await asked_of_telemetry(self._service, question, left_s)
            except HttpFaultRaised as error:
                now = self._service.reactor.now()
                if error.fault.status != BUSY or now + self._timing.again_s >= until:
                    raise
                await asyncio.sleep(self._timing.again_s)
            else:
                return stacks_text(json.loads(found.content))

    async def _take(self, what: str, find: Callable[[], Found], pattern: str) -> None:
        """Take files that are found in a thread, named by `pattern`."""
        found = await self._step(what, lambda: asyncio.to_thread(lambda: list(find())))
        for name, content in found or ():
            if isinstance(content, Missing):
                self._capture.lack(content.what, content.why)
            else:
                self._capture.add(pattern.format(name=name), content)

    async def _step(self, what: str, find: Callable[[], Awaitable[_T]]) -> _T | None:
        """Return what is found; None where it is not, and name it as missing."""
        left_s = min(self._timing.step_s, self._until - self._service.reactor.now())
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
            # The rest of the capture is wanted all the more.
            self._capture.lack(what, f"{type(error).__name__}: {error}")
        return None
