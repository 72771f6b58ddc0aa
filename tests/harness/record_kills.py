"""Kills what keeps records, an HTTP process, a whole gateway, a whole node, and looks at the file.

A target is a gateway of a testbed, whose synthetic runner tells what it was asked for, or a whole
node with its real runner, whose request log does.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Literal, Protocol

import httpx
import psutil

from bus.process.clock import now
from tests.harness.gateway_testbed import MODEL, GatewayTestbed
from tests.harness.job_kills import http_processes, kill_family, killed
from tests.harness.nodes import Node, eventually

SERVES_S = 120.0
"""However busy the machine is, what was killed serves again within this."""
Level = Literal["process", "gateway", "node"]
TALLIES = {
    "SELECT count(*) FROM request": "SELECT rows FROM request_tally",
    "SELECT count(*) FROM answer": "SELECT coalesce(sum(rows), 0) FROM answer_tally",
    "SELECT count(*) FROM answer_item": "SELECT coalesce(sum(uses), 0) FROM item",
    "SELECT count(*) FROM item WHERE uses < 1": "SELECT 0",
    "SELECT coalesce(sum(bytes), 0) FROM answer_tally": "SELECT "
    "(SELECT coalesce(sum(row_bytes), 0) FROM answer) + "
    "(SELECT coalesce(sum(item_bytes), 0) FROM item)",
    "SELECT count(*) FROM job_event WHERE job NOT IN (SELECT number FROM job)": "SELECT 0",
}
"""Questions that have one answer."""


class Target(Protocol):
    """What is killed."""

    @property
    def url(self) -> str:
        """Where it serves."""
        ...

    @property
    def records(self) -> Path:
        """Its file."""
        ...

    def kill(self, level: Level, chance: float) -> None:
        """kill -9; `chance` chooses where there are several. Returns once it is dead."""
        ...

    def start(self) -> None:
        """Start what does not start by itself."""
        ...

    def is_back(self) -> bool:
        """Whether it serves."""
        ...

    def runs(self) -> Counter[str]:
        """How often each request was run."""
        ...


class GatewayTarget:
    """A gateway under gunicorn, with a synthetic runner."""

    def __init__(self, made: GatewayTestbed, options: dict[str, Any]) -> None:
        self.made, self.options = made, options
        made.patience_s = SERVES_S
        self._over = False

    @property
    def url(self) -> str:
        return self.made.url

    @property
    def records(self) -> Path:
        return Path(self.made.folder) / "records.sqlite"

    def kill(self, level: Level, chance: float) -> None:
        processes = http_processes(self.made)
        if level == "process" and processes:
            killed(processes[int(chance * len(processes))])
            return
        kill_family(self.made.gateway.pid, chance)
        self.made.gateway.wait(10)
        self.made.log.close()
        self._over = True

    def start(self) -> None:
        if self._over:
            self.made.gateway = self.made.start_gateway(**self.options)
            self._over = False

    def is_back(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            told = httpx.get(f"{self.url}/health", timeout=5)
            return told.status_code == 200 and MODEL in told.json().get("models_ready", ())
        return False

    def runs(self) -> Counter[str]:
        runner = self.made.runners[0]
        return Counter(one["request"] for one in runner.heard("submit"))


class NodeTarget:
    """A whole node: supervisord, its services, and a runner with the bundled model."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._over = False

    @property
    def url(self) -> str:
        return self.node.url

    @property
    def records(self) -> Path:
        return self.node.home / "state" / "records.sqlite"

    def kill(self, level: Level, chance: float) -> None:
        if level == "node":
            self.node.kill()
            self._over = True
            return
        master = self.node.pid("gateway")
        processes = [one.pid for one in psutil.Process(master).children()]
        if level == "process" and processes:
            killed(processes[int(chance * len(processes))])
        else:
            kill_family(master, chance)

    def start(self) -> None:
        if self._over:
            self.node.up(180.0)
            self._over = False

    def is_back(self) -> bool:
        return self.node.ready()

    def runs(self) -> Counter[str]:
        rows = self.node.http.get("/requests/recent?limit=1000").json()["requests"]
        return Counter(row["request"] for row in rows)


def look_at_file(records: Path) -> None:
    """Hold a file to SQLite's own check, and its tallies to what they count. A copy is looked at,
    for a look brings what was cut forward, and that is for those who come back."""
    assert not [*records.parent.glob(f"{records.name}.broken*")], "the file was set aside"
    with tempfile.TemporaryDirectory(prefix="shoal-records-") as folder:
        copy = Path(folder) / records.name
        for suffix in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(f"{records}{suffix}", f"{copy}{suffix}")
        connection = sqlite3.connect(copy)
        try:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            for one, other in TALLIES.items():
                found = [connection.execute(text).fetchone()[0] for text in (one, other)]
                assert found[0] == found[1], (one, other, found)
        finally:
            connection.close()


def kill_one(target: Target, level: Level, chance: float) -> float:
    """Kill, look at the file where nothing has it open any more, and have all serve again; return
    the seconds that took."""
    at = now()
    target.kill(level, chance)
    looked_s = 0.0
    if level == "node" or (isinstance(target, GatewayTarget) and level == "gateway"):
        began_at = now()
        look_at_file(target.records)
        looked_s = now() - began_at
    target.start()
    eventually(target.is_back, SERVES_S, f"it serves again after its {level} was killed")
    return now() - at - looked_s


def check_runs(runs: Counter[str], attempts: dict[str, int]) -> int:
    """Hold every request to one run, and the runs of a job to its attempts; return how many runs
    were further attempts."""
    twice = {request: times for request, times in runs.items() if times > 1}
    assert not twice, twice
    again = 0
    for request in runs:
        name, dot, number = request.rpartition(".")
        if dot and name in attempts:
            again += 1
            assert 2 <= int(number) <= attempts[name], (request, attempts[name])
    return again
