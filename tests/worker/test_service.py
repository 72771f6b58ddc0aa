"""A real worker with a real supervisord, bus and master; only the model is missing."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bus.client import BusClient, Speaker
from bus.links.reactor import PollReactor
from bus.links.transport import Link
from bus.process.endpoints import Endpoints
from bus.process.logs import Log
from bus.process.supervisor import SupervisedProcess, Supervisor
from bus.switchboard.switchboard import Switchboard
from bus.wire.codec import decode
from bus.wire.ids import Boot, CommandId, InstanceId, ModelId, NodeId
from bus.wire.messages.commands import Acknowledged, CommandRefused, DeleteInstance, PlaceModel
from bus.wire.messages.control import AskRunner, DiagnosisRefused, RunnerReport
from bus.wire.messages.readings import NodeReading
from bus.wire.messages.wire import Message
from master.consensus.candidate import CandidateSettings
from master.decisions.decide import Policy
from master.service import Master, MasterSettings
from tests.worker.models.test_weights import write_model
from worker.eviction import StoreSettings
from worker.models.weights import Shelf, Weights
from worker.pulling import PullSettings
from worker.service import Worker, WorkerSettings
from worker.slots.admission import USUAL, SlotTiming
from worker.slots.runner_specs import DataPorts, RunnerDefaults
from worker.transfer.thread import WeightsSettings

pytestmark = pytest.mark.slow

NODE = NodeId("n1")
ROOT = Path(__file__).resolve().parents[2]
STAND_IN = ROOT / "tests" / "harness" / "standin_runner.py"
CONF = """
[unix_http_server]
file={runtime}/supervisor.sock
[supervisord]
logfile={folder}/supervisord.log
pidfile={folder}/supervisord.pid
directory={folder}
childlogdir={folder}
user={user}
[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
[program:runner]
command={python} -P {stand_in} {runtime} %(process_num)02d {old}
process_name=%(process_num)02d
numprocs=2
autostart=false
autorestart=false
startsecs=0
stopwaitsecs=2
redirect_stderr=true
environment=PYTHONPATH="{root}"
"""
DEFAULTS = RunnerDefaults(
    max_rows=4, max_waiting=2, prefill_share=0.7, prefix_cache_bytes=1 << 20,
    default_max_tokens=64, drop_idle_s=60.0, load_deadline_s=60.0,
)  # fmt: skip


class House:
    """One node: supervisord as a child, everything else in this process's reactor."""

    def __init__(
        self, folder: Path, runtime: str, *, old: bool = False, timing: SlotTiming = USUAL
    ) -> None:
        self.timing = timing
        conf = folder / "s.conf"
        conf.write_text(
            CONF.format(
                folder=folder, runtime=runtime, python=sys.executable, stand_in=STAND_IN,
                root=ROOT, user=pwd.getpwuid(os.getuid()).pw_name, old="old" if old else "",
            )
        )  # fmt: skip
        command = [sys.executable, "-P", "-m", "supervisor.supervisord", "-n", "-c", str(conf)]
        quiet = subprocess.DEVNULL
        self.child = subprocess.Popen(command, stdout=quiet, stderr=quiet)
        write_model(folder / "models" / "tiny")
        self.folder, self.endpoints = folder, Endpoints(runtime)
        self.reactor = PollReactor()
        self.log = Log(node=NODE, process="test", level="critical")
        self.supervisor = Supervisor(self.endpoints.supervisor)
        self.switchboard = Switchboard(self.endpoints, self.reactor, self.log)
        self.boots = 0
        settings = MasterSettings(CandidateSettings(folder / "journal", folder / "term"), Policy())
        client = self.client("master", follow=False)
        self.master = Master(client, self.reactor, self.log, settings)
        self.until(self.supervisor.is_up, "supervisord")
        self.worker = self.start_worker()
        self.asker = self.client("asker")
        reading = NodeReading(
            node=NODE, memory_total_bytes=1 << 36, memory_available_bytes=1 << 35, cpu_ratio=0.0,
            load_1m=0.0, disk_total_bytes=1, disk_free_bytes=1, measured_at_s=0.0,
        )  # fmt: skip
        self.asker.publish(f"reading.node.{NODE}", reading)
        self.until(lambda: self.asker.mirror.live, "a first snapshot")

    def client(self, process: str, *, follow: bool = True) -> BusClient:
        self.boots += 1
        speaker = Speaker(NODE, process, Boot(f"boot{self.boots}"))
        return BusClient(speaker, self.endpoints, self.reactor, self.log, follow=follow)

    def start_worker(self) -> Worker:
        shelf = Shelf({}, (self.folder / "models",), None, float32=True)
        settings = WorkerSettings(
            node_name="box",
            slots=2,
            memory_bytes=0,
            runner=DEFAULTS,
            data=DataPorts(listen="", port=0, hosts=()),
            ring_ports=(0, 0),
            plan_ports=(0, 0),
            weights=WeightsSettings(self.folder / "models", self.folder / "hashes"),
            pulls=PullSettings(self.folder / "models", self.folder / "pulls", offline=True),
            store=StoreSettings(self.folder / "models"),
            timing=self.timing,
        )
        return Worker(
            self.client("worker"),
            settings,
            self.supervisor,
            Weights(shelf),
        )

    def until(self, condition: Callable[[], object], what: str, within_s: float = 60.0) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"not in time: {what}"
            self.reactor.turn(0.02)

    def place(self) -> InstanceId:
        answers: list[Acknowledged | CommandRefused] = []
        command = PlaceModel(command_id=CommandId(f"c{self.boots}"), model=ModelId("tiny"))
        self.asker.command(command, answers.append, deadline_s=30.0)
        self.until(lambda: answers, "an answer")
        assert isinstance(answers[0], Acknowledged) and answers[0].instance, answers[0]
        instance = answers[0].instance
        self.until(lambda: self.is_ready(instance), "a ready instance")
        return instance

    def is_ready(self, instance: InstanceId) -> bool:
        known = self.asker.state.instances.get(instance)
        return known is not None and known.status == "ready"

    def pid(self, instance: InstanceId) -> int:
        lead = self.asker.state.instances[instance].lead
        assert lead is not None
        return lead.pid

    def slots(self) -> list[SupervisedProcess]:
        return [p for p in self.supervisor.list_processes() if p.alive]

    def close(self) -> None:
        self.worker.close()
        self.asker.close()
        self.master.close()
        self.switchboard.close()
        self.reactor.close()
        self.child.terminate()
        self.child.wait(30)


@pytest.fixture
def runtime() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="shoal-test-", dir="/tmp") as folder:
        yield folder


@pytest.fixture
def house(tmp_path: Path, runtime: str) -> Iterator[House]:
    house = House(tmp_path, runtime)
    try:
        yield house
    finally:
        house.close()


def test_a_slot_is_started_killed_replaced_adopted_and_drained(house: House) -> None:
    instance = house.place()
    first = house.pid(instance)
    assert [p.pid for p in house.slots()] == [first]

    os.kill(first, signal.SIGKILL)
    house.until(lambda: house.asker.state.instances[instance].generation == 2, "generation 2")
    house.until(lambda: house.is_ready(instance), "its replacement")
    second = house.pid(instance)
    known = house.asker.state.instances[instance]
    assert second != first and "killed by a signal" in known.failures[-1]

    index = house.asker.state.index
    house.worker.close()
    house.worker = house.start_worker()
    house.until(lambda: house.asker.state.index > index, "the new worker joining")
    house.until(lambda: house.worker.table.slots["00"].life == "ready", "the adoption")
    assert house.asker.state.index == index + 1 and house.pid(instance) == second

    delete = DeleteInstance(command_id=CommandId("d"), instance=instance, drain_s=5.0)
    house.asker.command(delete, lambda _: None)
    house.until(lambda: not house.asker.state.instances, "its removal")
    assert house.slots() == []


def test_a_runner_that_dies_in_peace_and_quiet_is_missed_by_its_connection(
    tmp_path: Path, runtime: str
) -> None:
    house = House(tmp_path, runtime, timing=SlotTiming(list_steady_s=3600.0, silent_s=3600.0))
    try:
        instance = house.place()
        os.kill(house.pid(instance), signal.SIGKILL)
        house.until(lambda: house.asker.state.instances[instance].generation == 2, "generation 2")
        house.until(lambda: house.is_ready(instance), "its replacement")
    finally:
        house.close()


def test_a_runners_account_of_itself_is_fetched_through_the_worker(house: House) -> None:
    instance = house.place()
    link = Link("dealer")
    answers: list[Message] = []
    link.connect(house.endpoints.worker)
    house.reactor.watch(link, lambda frames: answers.append(decode(frames[-1]).message))
    try:
        for name in (instance, InstanceId("nobody")):
            link.send(house.asker.write(AskRunner(instance=name)))
        house.until(lambda: len(answers) == 2, "both answers")
    finally:
        house.reactor.unwatch(link)
        link.close()
    report = next(a for a in answers if isinstance(a, RunnerReport))
    refusal = next(a for a in answers if isinstance(a, DiagnosisRefused))
    assert (report.pid, report.phase) == (house.pid(instance), "ready")
    assert refusal.status == 404 and "nobody" in refusal.message


def test_a_runner_of_another_protocol_is_refused_and_the_instance_given_up(
    tmp_path: Path, runtime: str
) -> None:
    house = House(tmp_path, runtime, old=True)
    try:
        answers: list[object] = []
        command = PlaceModel(command_id=CommandId("c"), model=ModelId("tiny"))
        house.asker.command(command, answers.append, deadline_s=30.0)
        house.until(
            lambda: any(i.status == "failed" for i in house.asker.state.instances.values()),
            "the instance given up",
        )
        (instance,) = house.asker.state.instances.values()
        assert "protocol 90 to 99" in instance.why
    finally:
        house.close()
