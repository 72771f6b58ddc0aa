"""Pulls in the background: they outlive their clients and their worker, and users change them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bus.client import BusClient
from bus.process.identity import sealed
from bus.wire.cards import ModelCard, PartialModel
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.gateways import ChangePull, PullChanged
from bus.wire.messages.readings import PullReading, PullState
from bus.wire.messages.weights import PullAsked
from tests.harness.nodes import eventually
from tests.recorded.specimens import least
from worker.models.local_models import PULLING, LocalModels
from worker.pulling.active import pulls as pulling
from worker.pulling.active import record
from worker.pulling.active.board import ENDED_S, REPEAT_S
from worker.pulling.active.pulls import LEASE_S, Pulls
from worker.pulling.order import HERE_ALREADY, PullOrder, PullSettings
from worker.transfer.downloads import Downloads

ME = NodeId("me")
M = ModelId("owner/name")


@dataclass
class Process:
    """A pull process that does what a test says."""

    order: PullOrder
    state: PullState | None = None
    ended: bool = False
    stopped: bool = False

    def go(self) -> None:
        """Do nothing: the test decides."""

    def stop(self) -> None:
        """Note it."""
        self.stopped = True


@dataclass
class Machine:
    """A node's disk and bus, on which workers start and end."""

    folder: Path
    now: float = 0.0
    states: list[PullState] = field(default_factory=list[PullState])
    processes: list[Process] = field(default_factory=list[Process])
    logged: list[str] = field(default_factory=list[str])
    readings: int = 0
    cards: dict[ModelId, ModelCard] = field(default_factory=dict[ModelId, ModelCard])
    parts: dict[ModelId, PartialModel] = field(default_factory=dict[ModelId, PartialModel])

    def start_worker(self) -> Pulls:
        """Start a worker; the one before must have ended."""
        self.heard: dict[str, Callable[[str, Any], None]] = {}
        self.states = []
        log = SimpleNamespace(
            info=lambda text, **_: self.logged.append(text),
            warning=lambda text, **_: self.logged.append(text),
        )
        bus = SimpleNamespace(
            log=log,
            reactor=SimpleNamespace(now=lambda: self.now),
            speaker=SimpleNamespace(node=ME),
            hear=self.heard.__setitem__,
            publish=self.publish,
        )
        downloads = SimpleNamespace(
            elsewhere=lambda _: SimpleNamespace(has_heard=True, cards={}, fetches={}),
            givers=lambda *_: (),
            let_go=lambda _: None,
            addresses=(),
        )
        here = SimpleNamespace(cards=self.cards, parts=self.parts, passed_over=())
        settings = PullSettings(self.folder / "models", self.folder / "pulls")
        self.worker = Pulls(
            cast(BusClient, bus), settings, cast(Downloads, downloads), cast(LocalModels, here)
        )
        return self.worker

    def publish(self, _topic: str, reading: PullReading) -> None:
        """Note what is published."""
        self.readings += 1
        self.states = list(reading.pulls)

    def ask(self, question: str, **fields: Any) -> None:
        """Have a client ask."""
        asked = PullAsked(question=question, asker=ME, model=M, **fields)
        self.heard[f"pull.asked.{ME}"]("", SimpleNamespace(message=asked))

    def tick(self, seconds: float = 0.0) -> None:
        """Let time go by."""
        self.now += seconds
        self.worker.tick(self.now)

    def change(self, change: Any) -> PullChanged:
        """Have a user change the pull; return the answer."""
        answers: list[PullChanged] = []
        self.worker.changes.ask(ChangePull(model=M, change=change), answers.append)

        def has_answer() -> bool:
            self.tick()
            return bool(answers)

        eventually(has_answer, 30, "the user has an answer")
        self.tick()
        return answers[0]

    def is_safe(self) -> bool:
        """Return whether the state says that the pull continues by itself."""
        self.tick()
        return [state.background for state in self.states] == [True]

    def restart(self) -> None:
        """End the worker, as at the end of a node, and start another."""
        self.worker.close()
        self.start_worker()
        self.tick()

    @property
    def running(self) -> list[Process]:
        """The processes that still fetch."""
        return [process for process in self.processes if not process.stopped]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine(tmp_path)

    def process(order: PullOrder) -> Process:
        made.processes.append(Process(order, PullState(model=order.model, phase="fetching")))
        return made.processes[-1]

    monkeypatch.setattr(pulling, "PullProcess", process)
    made.start_worker()
    yield made
    made.worker.close()


@pytest.fixture
def begun(machine: Machine) -> Machine:
    """A machine with a recorded background pull whose client has left."""
    machine.ask("q", revision="main", background=True)
    eventually(machine.is_safe, 30, "the pull is recorded")
    machine.ask("q", revision="main", background=True, leaves=True)
    return machine


def partial(machine: Machine, name: str = "owner--name@abc") -> Path:
    folder = machine.folder / "models" / PULLING / name
    (folder / "files").mkdir(parents=True)
    (folder / "files" / "model.safetensors").write_bytes(b"x" * 10_000)
    return folder


def test_a_background_pull_outlives_its_clients_and_its_worker(begun: Machine) -> None:
    begun.tick(LEASE_S + 1)
    assert len(begun.running) == 1 and begun.states[0].phase == "fetching"
    begun.restart()
    resumed = begun.running[-1]
    assert len(begun.processes) == 2 and resumed.order.revision == "main"
    assert not resumed.order.holds and "resuming a pull after a restart" in begun.logged
    begun.tick(LEASE_S + 1)
    assert resumed in begun.running


def test_a_pull_of_layers_stays_one_of_layers_until_they_are_here(machine: Machine) -> None:
    machine.ask("q", revision="abc", background=True, layers=(3, 6))
    eventually(machine.is_safe, 30, "the pull is recorded")
    assert machine.states[0].layers == machine.running[0].order.layers == (3, 6)
    machine.restart()
    assert machine.running[-1].order.layers == (3, 6)
    assert machine.change("pause").why == machine.change("resume").why == ""
    order = machine.running[-1].order
    assert (order.layers, order.revision) == ((3, 6), "abc")
    machine.ask("whole", revision="abc")
    machine.ask("others", revision="abc", layers=(0, 3))
    machine.ask("same", revision="abc", layers=(3, 6))
    machine.tick()
    reasons = {state.questions: state.reason for state in machine.states}
    assert reasons[("whole",)] == reasons[("others",)] == "conflict"
    assert reasons[("same",)] is None
    machine.processes[-1].state = PullState(model=M, phase="done")
    machine.tick()
    machine.parts[M] = PartialModel(model=M, layers=((3, 6),), have_bytes=1, size_bytes=2)
    machine.worker.looked([M], machine.now)
    machine.tick()
    ended = next(state for state in machine.states if "same" in state.questions)
    assert ended.phase == "done" and not ended.background
    machine.restart()
    assert not machine.states


def test_layers_that_are_not_on_the_disk_after_their_pull_are_a_failure(machine: Machine) -> None:
    machine.ask("q", layers=(3, 6))
    machine.tick()
    machine.processes[-1].state = PullState(model=M, phase="done")
    machine.tick()
    machine.parts[M] = PartialModel(model=M, layers=((3, 5),), have_bytes=1, size_bytes=2)
    machine.worker.looked([M], machine.now)
    machine.tick()
    assert machine.states[0].reason == "unfit"


def test_a_pull_that_nobody_waits_for_is_no_conflict(machine: Machine) -> None:
    machine.ask("dry run", holds=True)
    machine.tick()
    machine.ask("dry run", holds=True, leaves=True)
    machine.ask("q", revision="abc", background=True, layers=(0, 3))
    eventually(machine.is_safe, 30, "the pull is recorded")
    assert [process.order.layers for process in machine.running] == [(0, 3)]


def test_any_other_pull_ends_with_its_client_and_with_its_worker(machine: Machine) -> None:
    machine.ask("q")
    machine.tick()
    assert not machine.states[0].background
    machine.restart()
    assert not machine.states and len(machine.processes) == 1
    machine.ask("q")
    machine.tick()
    machine.tick(LEASE_S + 1)
    assert machine.processes[-1].stopped and not machine.states


def test_a_pull_is_in_the_background_once_the_disk_has_a_record_and_no_client_holds_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [OSError("the disk is full")]

    def write(self: Any, pulls: Any) -> None:
        if failures:
            raise failures.pop()
        real(self, pulls)

    real = record.PullRecord._write  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(record.PullRecord, "_write", write)
    machine.ask("q", background=True, holds=True)
    machine.tick()
    assert not machine.states[0].background
    machine.ask("q", background=True)

    def failed() -> bool:
        machine.tick()
        return any("cannot record" in text for text in machine.logged)

    eventually(failed, 30, "the record was not written")
    assert not machine.states[0].background and not (machine.folder / "pulls").exists()
    machine.tick(record.RETRY_S + 1)
    machine.ask("q", background=True)
    eventually(machine.is_safe, 30, "the pull is recorded")


def test_a_finished_pull_leaves_the_record(begun: Machine) -> None:
    begun.processes[0].state = PullState(model=M, phase="done")
    begun.tick()
    assert begun.worker.came() == [M]
    begun.cards[M] = least(ModelCard)
    begun.worker.looked([M], begun.now)
    begun.tick()
    assert begun.states[0].phase == "done" and not begun.states[0].background
    begun.restart()
    assert not begun.states


def test_a_failed_pull_stays_until_a_user_resumes_it(begun: Machine) -> None:
    failure = {"phase": "failed", "reason": "unreachable", "message": "no route to the hub"}
    begun.processes[0].state = PullState.model_validate({"model": M, **failure})
    begun.tick()
    begun.tick(ENDED_S + 1)
    begun.restart()
    (state,) = begun.states
    assert (state.phase, state.reason, state.background) == ("failed", "unreachable", True)
    assert state.message == "no route to the hub" and len(begun.processes) == 1
    before = begun.readings
    begun.tick(REPEAT_S + 1)
    assert begun.readings == before + 1, "other processes drop old readings"
    assert begun.change("resume").why == ""
    assert len(begun.processes) == 2 and begun.processes[-1].order.revision == "main"


def test_a_paused_pull_keeps_its_files_and_starts_only_when_resumed(begun: Machine) -> None:
    folder = partial(begun)
    assert begun.change("pause").why == ""
    assert not begun.running and begun.states[0].reason == "paused"
    assert begun.change("pause").why == "", "a repeated call changes nothing"
    begun.restart()
    begun.tick(LEASE_S)
    assert not begun.running and begun.states[0].reason == "paused"
    begun.ask("dry run", holds=True)
    begun.tick()
    begun.ask("dry run", holds=True, leaves=True)
    begun.tick(LEASE_S)
    assert begun.states[0].reason == "paused", "a dry run does not resume it"
    assert begun.change("resume").why == ""
    assert len(begun.running) == 1 and folder.exists()


def test_a_cancelled_pull_does_not_come_back_and_its_files_are_deleted(begun: Machine) -> None:
    folder, other = partial(begun), partial(begun, "owner--name2@abc")
    answer = begun.change("cancel")
    assert answer.why == "" and answer.deleted_bytes >= 10_000
    assert not folder.exists() and other.exists() and not begun.running
    assert begun.states[0].reason == "cancelled"
    assert begun.change("cancel").why == "", "a repeated call changes nothing"
    begun.restart()
    assert not begun.states and len(begun.processes) == 1


def test_a_cancelled_pull_ends_for_the_clients_that_wait_for_it(machine: Machine) -> None:
    machine.ask("q")
    machine.tick()
    assert machine.change("cancel").why == ""
    machine.ask("q")
    machine.tick()
    (state,) = machine.states
    assert (state.phase, state.reason, state.questions) == ("failed", "cancelled", ("q",))


def test_a_model_that_has_arrived_is_not_cancelled(begun: Machine) -> None:
    begun.processes[0].state = PullState(model=M, phase="done")
    begun.tick()
    assert "shoal rm" in begun.change("cancel").why


def test_a_change_without_a_pull_says_so(machine: Machine) -> None:
    for change in ("cancel", "pause", "resume"):
        assert machine.change(change).why == "this node has no such pull"


def test_a_client_that_asks_for_a_paused_model_replaces_the_paused_pull(begun: Machine) -> None:
    begun.change("pause")
    begun.ask("again", background=True)
    begun.tick()
    eventually(lambda: begun.tick() is None and len(begun.running) == 1, 30, "it runs")
    begun.now += ENDED_S
    eventually(begun.is_safe, 30, "one pull is left")


@pytest.mark.parametrize("content", [b"", b"[]", sealed("[{}]"), sealed('[{"model": 3}]')])
def test_a_damaged_record_is_set_aside(machine: Machine, content: bytes) -> None:
    machine.worker.close()
    file = machine.folder / "pulls"
    file.write_bytes(content)
    machine.start_worker()
    machine.tick()
    assert not machine.states and file.with_name("pulls.damaged").read_bytes() == content
    assert any("cannot be used" in text for text in machine.logged)


def test_the_record_keeps_running_pulls_and_the_newest_of_the_others() -> None:
    failed = [
        record.RecordedPull(model=ModelId(f"o/{n}"), reason="broken")
        for n in range(record.MOST_RECORDED + 3)
    ]
    running = record.RecordedPull(model=M)
    kept = record._newest([running, *failed])  # pyright: ignore[reportPrivateUsage]
    assert kept == (running, *failed[4:]) and len(kept) == record.MOST_RECORDED


def test_a_pull_trusts_only_a_scan_that_began_after_it(machine: Machine) -> None:
    machine.cards[M] = least(ModelCard)
    machine.worker.looked([], machine.now)
    machine.tick(1.0)
    machine.ask("deleted a moment ago")
    machine.tick()
    assert machine.worker.awaits_scan() and machine.states[0].phase == "waiting"
    del machine.cards[M]
    machine.worker.looked([], machine.now + 0.1)
    machine.tick(0.2)
    assert len(machine.running) == 1 and not machine.worker.awaits_scan()


def test_a_model_that_the_next_scan_still_sees_is_not_pulled(machine: Machine) -> None:
    machine.cards[M] = least(ModelCard)
    machine.ask("it is here")
    machine.tick()
    machine.worker.looked([], machine.now + 0.1)
    machine.tick(0.2)
    assert (machine.states[0].phase, machine.states[0].note) == ("done", HERE_ALREADY)
    assert not machine.processes
