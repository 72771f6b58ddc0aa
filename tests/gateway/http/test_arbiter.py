"""gunicorn's master process ends HTTP processes that hang, and none that stood still with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bus.process.clock import now
from bus.process.endpoints import Endpoints
from bus.process.identity import RoleLock
from bus.service import role_lock
from bus.wire.ids import NodeId
from gateway.http import server
from gateway.view.options import Options

TIMEOUT_S = 60
HUNG = 4711


class Looks(server._Arbiter):
    """A master process of one HTTP process, which last said long ago that it lives."""

    def __init__(self, role: RoleLock) -> None:
        self.ended: list[int] = []
        super().__init__(_Settings(), role)
        self.WORKERS = {HUNG: _Worker()}

    def setup(self, app: Any) -> None:
        self.app, self.timeout, self.log = app, TIMEOUT_S, app

    def kill_worker(self, pid: int, sig: int) -> None:
        self.ended.append(pid)


class _Settings:
    served = None
    options = Options(NodeId("n"), "n", Endpoints("/nowhere"), "/nowhere")

    def critical(self, *_: object) -> None: ...


class _Worker:
    aborted = False

    def __init__(self) -> None:
        self.tmp = self

    def last_update(self) -> float:
        return time.monotonic() - 2 * TIMEOUT_S


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[Looks, list[float]]]:
    at = [now()]
    monkeypatch.setattr(server, "clock_now", lambda: at[0])
    with role_lock(Endpoints(str(tmp_path)), "gateway") as role:
        yield Looks(role), at


def test_what_hangs_is_ended(looks: tuple[Looks, list[float]]) -> None:
    arbiter, _ = looks
    arbiter.murder_workers()
    assert arbiter.ended == [HUNG]


def test_what_stood_still_with_its_master_has_its_time_once_more(
    looks: tuple[Looks, list[float]],
) -> None:
    arbiter, at = looks
    arbiter.murder_workers()
    arbiter.ended.clear()
    at[0] += 90.0
    for _ in range(TIMEOUT_S):
        arbiter.murder_workers()
        at[0] += 1.0
    assert arbiter.ended == []
    arbiter.murder_workers()
    assert arbiter.ended == [HUNG]
