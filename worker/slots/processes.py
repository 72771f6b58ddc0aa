"""Talks to supervisord, and to the system: the processes of the runner slots.

Trouble with supervisord is logged once while it lasts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from bus.patience import LostTime
from bus.process.clock import CoreWaits, tasks_of
from bus.process.endpoints import Endpoints
from bus.process.flight import take_flight
from bus.process.logs import Log
from bus.process.supervisor import ProcessRefused, Supervisor
from bus.service import sweep_role
from bus.wire.errors import Unavailable
from worker.slots.table import Seen, Slot

GROUP = "runner:"
OWING = ("starting", "loading")
UNHEARD_S = 1.5
"""After this many seconds of silence, the worker checks whether a runner lacks a CPU core. A runner
reports each second."""


class RunnerWaits:
    """Measures how long runners had to wait for a CPU core while the worker waited for their report
    or load."""

    def __init__(self) -> None:
        self._watched: dict[int, LostTime] = {}

    def lost(self, slots: Iterable[Slot], now: float) -> list[tuple[str, float]]:
        """Return the slots that load or have been silent for `UNHEARD_S`. Each comes with the
        seconds since the last call in which its runner had no core. These seconds do not count as
        silence."""
        owing = [
            slot
            for slot in slots
            if slot.pid and (slot.life in OWING or now - slot.heard_at >= UNHEARD_S)
        ]
        self._watched = {
            slot.pid: self._watched.get(slot.pid)
            or LostTime(CoreWaits(tasks_of(slot.pid), slot.pid))
            for slot in owing
        }
        return [(slot.name, self._watched[slot.pid].look(now)) for slot in owing]


class SlotProcesses:
    """The processes of the slots, as supervisord manages them. `trouble` is supervisord's error; it
    is empty while supervisord answers."""

    def __init__(self, supervisor: Supervisor, endpoints: Endpoints, log: Log) -> None:
        self.trouble = ""
        self._supervisor = supervisor
        self._endpoints = endpoints
        self._log = log
        self._swept: set[str] = set()

    def listed(self) -> list[Seen] | None:
        """Return supervisord's runner slots; None if it does not answer."""
        try:
            processes = self._supervisor.list_processes()
        except (ProcessRefused, Unavailable) as error:
            if not (isinstance(error, ProcessRefused) and error.reason == "shutting_down"):
                self.say_once(str(error))
            return None
        self.trouble = ""
        return [
            Seen(process.name.removeprefix(GROUP), process.alive, process.pid, process.exit_code)
            for process in processes
            if process.name.startswith(GROUP)
        ]

    def start(self, slot: str) -> bool:
        """Start a slot's process; return whether supervisord did. Raises Unavailable,
        ProcessRefused."""
        return self._supervisor.start(GROUP + slot)

    def stop(self, slot: str) -> None:
        """Send a slot's process SIGTERM; supervisord follows with SIGKILL. Raises Unavailable,
        ProcessRefused."""
        self._supervisor.stop(GROUP + slot, wait=False)

    def kill(self, slot: str) -> None:
        """Send a slot's process SIGKILL. Raises Unavailable, ProcessRefused."""
        self._supervisor.signal(GROUP + slot, "KILL")

    def sweep(self, free: set[str]) -> None:
        """Delete the sockets that killed runners left behind, once for each slot that became
        free."""
        for slot in sorted(free - self._swept):
            left = sweep_role(self._endpoints, GROUP + slot)
            if left:
                files = ", ".join(left)
                self._log.info(
                    "killed the child processes of a killed runner", slot=slot, files=files
                )
        self._swept = free

    def take_flight(self, slot: str, pid: int) -> tuple[dict[str, Any], ...]:
        """Return the flight recorder's entries of a slot's ended process, and delete the recorder's
        file."""
        return take_flight(Path(self._endpoints.folder), GROUP + slot, pid)

    def last_words(self, slot: str) -> str:
        """Return the last line of a slot's log as plain text; empty if there is none."""
        try:
            tail = self._supervisor.last_words(GROUP + slot)
        except (Unavailable, ProcessRefused):
            return ""
        lines = [line.strip() for line in tail.splitlines() if line.strip()]
        return _readable(lines[-1])[:300] if lines else ""

    def say_once(self, trouble: str) -> None:
        """Log an error of supervisord once, not again while it lasts."""
        if trouble != self.trouble:
            self.trouble = trouble
            self._log.error("supervisord does not answer", error=trouble)


def _readable(line: str) -> str:
    """Return the message in a line of a runner's log if the line is JSON, as shoal writes it;
    otherwise the line itself."""
    try:
        log_record: Any = json.loads(line)
    except ValueError:
        return line
    if not isinstance(log_record, dict):
        return line
    record = cast(dict[str, Any], log_record)
    error = str(record.get("error", "")).strip().splitlines()
    return ": ".join([str(record.get("message", line)), *error[-1:]])
