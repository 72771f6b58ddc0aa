"""Kills HTTP processes and gateways at random while jobs run, and holds what became of these
against what a synthetic runner was asked for."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.harness.gateway_testbed import MODEL, GatewayTestbed, eventually

ENDED = ("done", "failed", "cancelled")


def http_processes(testbed: GatewayTestbed) -> list[int]:
    """The process ids of the gateway's HTTP processes."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [one.pid for one in psutil.Process(testbed.gateway.pid).children()]
    return []


def killed(*processes: int) -> None:
    """kill -9, and wait until they are gone."""
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    psutil.wait_procs([p for pid in processes if (p := _process(pid)) is not None], 10)


def kill_family(master: int, chance: float) -> None:
    """kill -9 a master and its processes, in either order; it makes no new ones meanwhile."""
    os.kill(master, signal.SIGSTOP)
    family = [master, *(one.pid for one in psutil.Process(master).children())]
    killed(*(family if chance < 0.5 else reversed(family)))


def _process(pid: int) -> psutil.Process | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid)
    return None


def persistent(testbed: GatewayTestbed, method: str, path: str, body: Any = None) -> httpx.Response:
    """An answer, asked for again as long as none comes for a process is killed. What is asked may
    have been done each time."""
    found: list[httpx.Response] = []

    def asked() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            answer = httpx.request(method, f"{testbed.url}{path}", json=body, timeout=10)
            if answer.status_code < 500:
                found.append(answer)
        return bool(found)

    eventually(asked, 60, f"{method} {path} is answered")
    return found[0]


class Kills:
    """A gateway that is killed, and the jobs that it took."""

    def __init__(self, testbed: GatewayTestbed, options: dict[str, Any], seed: int) -> None:
        self.testbed = testbed
        self.options = options
        self.chance = random.Random(seed)
        self.jobs: list[str] = []
        self.pause_until = 0.0

    def submit(self) -> None:
        """Submit a job, or a response in the background; what is acknowledged is noted."""
        orders = f"tokens={self.chance.choice((1, 5, 20))} every_ms={self.chance.choice((0, 20))}"
        streams = self.chance.random() < 0.5
        chat = {"model": MODEL, "messages": [{"role": "user", "content": orders}]}
        asked: tuple[str, Any] = (
            "/v1/jobs",
            {"path": "/v1/chat/completions", "body": {**chat, "stream": streams}},
        )
        if self.chance.random() < 0.3:
            asked = "/v1/responses", {"model": MODEL, "input": orders, "background": True}
        with contextlib.suppress(httpx.HTTPError):
            answer = httpx.post(f"{self.testbed.url}{asked[0]}", json=asked[1], timeout=10)
            if answer.status_code < 300:
                name = answer.json()["id"]
                self.jobs.append("job_" + name.removeprefix("job_").removeprefix("resp_"))

    def kill(self) -> None:
        """Kill an HTTP process, or all of the gateway, which then starts anew."""
        processes = http_processes(self.testbed)
        if self.chance.random() < 0.8 and processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.chance.choice(processes), signal.SIGKILL)
            return
        kill_family(self.testbed.gateway.pid, self.chance.random())
        self.testbed.gateway.wait(10)
        self.testbed.log.close()
        self.testbed.gateway = self.testbed.start_gateway(**self.options)

    def check(self) -> Counter[str]:
        """Each job that was acknowledged is there and ends; its runs are those that it tells of,
        and no more. Returns how many ended how."""
        found: Counter[str] = Counter()
        for name in self.jobs:
            job = eventually(lambda name=name: self._ended(name), 90, f"{name} ends")
            found[job["status"]] += 1
            request = name.removeprefix("job_")
            heard = Counter(
                one["request"]
                for runner in self.testbed.runners
                for one in runner.heard("submit")
                if one["request"] == request or one["request"].startswith(f"{request}.")
            )
            assert all(times == 1 for times in heard.values()), heard
            allowed = {request, *(f"{request}.{n}" for n in range(2, job["attempts"] + 1))}
            assert set(heard) <= allowed, (job, heard)
            if job["status"] == "done":
                assert heard, job
            else:
                assert job["error"]["code"] == "interrupted" and job["attempts"] >= 3, job
        assert not list(Path(self.testbed.folder).glob("records.sqlite.broken*"))
        return found

    def _ended(self, name: str) -> dict[str, Any] | None:
        answer = persistent(self.testbed, "GET", f"/v1/jobs/{name}")
        assert answer.status_code == 200, (name, answer.text)
        job = answer.json()
        return job if job["status"] in ENDED else None
