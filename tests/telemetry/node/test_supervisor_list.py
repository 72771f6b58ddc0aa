"""How often telemetry asks supervisord for its list of processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bus.process.supervisor import Status, SupervisedProcess
from telemetry.node.probes import LIST_S, SupervisorList


class Supervised:
    """A list of one process, which counts how often it is read."""

    def __init__(self, status: Status = "running", pid: int = 0) -> None:
        self.rows = [SupervisedProcess("bus", status, pid or os.getpid(), 0, 0, None, "", "")]
        self.questions = 0

    def ask(self) -> list[SupervisedProcess]:
        self.questions += 1
        return self.rows


def test_a_calm_node_reuses_the_list_for_a_while() -> None:
    supervised = Supervised()
    listed = SupervisorList(supervised.ask)
    assert [listed.at(now) for now in (10.0, 11.0, 12.0)] == [supervised.rows] * 3
    assert supervised.questions == 1
    listed.at(10.0 + LIST_S)
    assert supervised.questions == 2


def test_supervisord_is_asked_again_when_the_state_of_the_cluster_changed() -> None:
    supervised = Supervised()
    listed = SupervisorList(supervised.ask)
    listed.at(10.0)
    listed.renew()
    for now in (10.5, 11.0):
        listed.at(now)
    assert supervised.questions == 2


@pytest.mark.parametrize("status", ["starting", "stopping", "backoff", "unknown"])
def test_supervisord_is_asked_each_time_while_a_process_changes(status: Status) -> None:
    supervised = Supervised(status)
    listed = SupervisorList(supervised.ask)
    for now in (10.0, 11.0, 12.0):
        listed.at(now)
    assert supervised.questions == 3


def test_supervisord_is_asked_at_once_when_a_process_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        supervised = Supervised(pid=child.pid)
        listed = SupervisorList(supervised.ask)
        listed.at(10.0)
        listed.at(10.5)
        assert supervised.questions == 1
    listed.at(11.0)
    assert supervised.questions == 2


def test_supervisord_is_asked_again_after_it_gave_no_list() -> None:
    supervised = Supervised()
    supervised.rows = []
    listed = SupervisorList(supervised.ask)
    for now in (10.0, 10.5):
        listed.at(now)
    assert supervised.questions == 2
