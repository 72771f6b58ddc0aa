from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bus.process.installation.tree import running_code
from bus.process.logs import Log
from bus.wire.ids import InstanceId, NodeId
from bus.wire.messages.events import LoadRefused
from worker.slots import executor
from worker.slots.actions import AssignSlot, StartSlot, Task, Tell
from worker.slots.executor import Executor

TASK = Task(InstanceId("i"), 1, 0)


class Slots:
    """What supervisord would be asked, and what would be told."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.told: list[Any] = []
        self.log = Log(node="n", process="worker", level="critical")
        self.speaker = SimpleNamespace(node=NodeId("n"))

    def start(self, slot: str) -> bool:
        self.started.append(slot)
        return True

    def tell(self, fact: Any) -> None:
        self.told.append(fact)

    def executor(self) -> Executor:
        none = cast(Any, None)
        it = cast(Any, self)
        return Executor(client=it, link=none, processes=it, specs=none, seats=none, downloads=none)


def test_a_runner_is_started_from_the_tree_that_the_worker_runs() -> None:
    slots, start = Slots(), StartSlot("00", TASK)
    assert slots.executor().do(start, {}, 0.0) == [start]
    assert slots.started == ["00"] and not slots.told


def test_neither_is_a_spare_started_from_another_tree_nor_is_it_given_a_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slots, spare, assign = Slots(), StartSlot("00", None), AssignSlot("00", TASK)
    assert slots.executor().do(spare, {}, 0.0) == [spare] and slots.started == ["00"]
    assert slots.executor().do(assign, {}, 0.0) == [assign]
    monkeypatch.setattr(executor, "installed_code", lambda: "9/other")
    assert slots.executor().do(spare, {}, 0.0) == [] and slots.started == ["00"]
    assert not slots.told
    (noted,) = slots.executor().do(assign, {}, 0.0)
    assert isinstance(noted, Tell) and isinstance(slots.told[0], LoadRefused)
    away = AssignSlot("00", None)
    assert slots.executor().do(away, {}, 0.0) == [away]


def test_no_runner_is_started_from_another_tree_and_the_reason_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slots = Slots()
    monkeypatch.setattr(executor, "installed_code", lambda: "9/other")
    noted = slots.executor().do(StartSlot("00", TASK), {}, 0.0)
    assert isinstance(noted[0], Tell) and not slots.started
    (fact,) = slots.told
    assert isinstance(fact, LoadRefused)
    message = fact.refusal.message
    assert "`shoal restart`" in message and running_code() in message and "9/other" in message
