"""How often a node's meter asks supervisord."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bus.process.supervisor import Status, SupervisedProcess
from bus.wire.ids import NodeId
from telemetry import node_meter
from telemetry.node_meter import NodeMeter


class Supervised:
    """A list of processes that counts how often it is read."""

    def __init__(self, status: Status = "running", pid: int = 0) -> None:
        self.rows = [SupervisedProcess("bus", status, pid or os.getpid(), 0, 0, None, "", "")]
        self.questions = 0

    def list_processes(self) -> list[SupervisedProcess]:
        self.questions += 1
        return self.rows

    def meter(self, folder: Path) -> NodeMeter:
        journal = folder / "journal"
        return NodeMeter(NodeId("n1"), self.list_processes, folder, journal=journal, doors={})


def test_a_calm_node_reuses_supervisords_list_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervised = Supervised()
    meter = supervised.meter(tmp_path)
    readings = [meter.measure().measured for _ in range(3)]
    assert supervised.questions == 1
    assert all(reading.processes[0].pid == os.getpid() for reading in readings)
    monkeypatch.setattr(node_meter, "LIST_S", 0.0)
    meter.measure()
    assert supervised.questions == 2


@pytest.mark.parametrize("status", ["starting", "stopping", "backoff", "unknown"])
def test_supervisord_is_asked_each_time_while_a_process_changes(
    tmp_path: Path, status: Status
) -> None:
    supervised = Supervised(status)
    meter = supervised.meter(tmp_path)
    for _ in range(3):
        meter.measure()
    assert supervised.questions == 3


def test_supervisord_is_asked_at_once_when_a_process_has_ended(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        supervised = Supervised(pid=child.pid)
        meter = supervised.meter(tmp_path)
        for _ in range(2):
            meter.measure()
        assert supervised.questions == 1
    meter.measure()
    assert supervised.questions == 2


def test_supervisord_is_asked_again_after_it_gave_no_list(tmp_path: Path) -> None:
    supervised = Supervised()
    supervised.rows = []
    meter = supervised.meter(tmp_path)
    for _ in range(2):
        meter.measure()
    assert supervised.questions == 2
