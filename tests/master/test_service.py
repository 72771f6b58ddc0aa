"""A real master behind a real switchboard, on real sockets, in one reactor."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bus.client import BusClient, Speaker
from bus.links.reactor import PollReactor
from bus.process.endpoints import Endpoints
from bus.process.logs import Log
from bus.switchboard.switchboard import Switchboard
from bus.wire.api_keys import LOST_KEYS, ApiKey
from bus.wire.cards import ModelCard, NodeCard
from bus.wire.ids import Boot, CommandId, InstanceId, ModelId, NodeId
from bus.wire.messages.commands import (
    Acknowledged,
    AddApiKey,
    Command,
    CommandRefused,
    DeleteInstance,
    PlaceModel,
    RemoveApiKey,
)
from bus.wire.messages.events import NodeJoined, RunnerEnded, RunnerReady, RunnerUnloaded
from bus.wire.messages.readings import CardReading, NodeReading
from master.consensus.candidate import CandidateSettings
from master.consensus.term_file import keep_term, read_term
from master.consensus.types import PersistentState
from master.decisions.decide import Policy
from master.service import Master, MasterSettings

NODE = NodeId("n1")
TINY = ModelId("tiny")
GB = 10**9
Answer = Acknowledged | CommandRefused


class House:
    """A switchboard, a master that can be restarted, and clients; turned by hand."""

    def __init__(self, folder: Path, runtime: str, policy: Policy) -> None:
        self.reactor = PollReactor()
        self.log = Log(node=NODE, process="test", level="critical")
        self.endpoints = Endpoints(runtime)
        self.settings = MasterSettings(
            CandidateSettings(folder / "journal", folder / "term"), policy
        )
        self.switchboard = Switchboard(self.endpoints, self.reactor, self.log)
        self.boots = 0
        self.closing: list[Callable[[], None]] = [self.switchboard.close]
        self.master: Master | None = None
        self.start()
        self.worker = self.client("worker")
        self.announce()

    def client(self, process: str, *, follow: bool = True) -> BusClient:
        self.boots += 1
        speaker = Speaker(NODE, process, Boot(f"boot{self.boots}"))
        client = BusClient(speaker, self.endpoints, self.reactor, self.log, follow=follow)
        if process != "master":
            self.closing.append(client.close)
        return client

    def start(self) -> Master:
        client = self.client("master", follow=False)
        self.master = Master(client, self.reactor, self.log, self.settings)
        return self.master

    def stop(self) -> None:
        if self.master is not None:
            self.master.close()
            self.master = None

    def announce(self) -> None:
        card = ModelCard(
            model=TINY, path="/m", family="qwen3", layers=4, weights_bytes=GB, size_bytes=GB,
            kv_bytes_per_token=1_000, context_tokens=4_096, vocabulary=100,
        )  # fmt: skip
        node = NodeCard(
            node=NODE, name="box", platform="linux", cores=2, memory_bytes=16 * GB,
            backends=("mlx-cpu",), mlx_version="", shoal_version="", slots=4, models=(card,),
            announced_at_s=1.0,
        )  # fmt: skip
        self.worker.publish(f"card.{NODE}", CardReading(card=node))
        reading = NodeReading(
            node=NODE, memory_total_bytes=16 * GB, memory_available_bytes=12 * GB, cpu_ratio=0.0,
            load_1m=0.0, disk_total_bytes=1, disk_free_bytes=1, measured_at_s=0.0,
        )  # fmt: skip
        self.worker.publish(f"reading.node.{NODE}", reading)

    def until(self, condition: Callable[[], bool], what: str, within_s: float = 30.0) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"not in time: {what}"
            self.reactor.turn(0.02)

    def ask(self, command: Command) -> Answer:
        answers: list[Answer] = []
        self.worker.command(command, answers.append, deadline_s=20.0)
        self.until(lambda: bool(answers), "an answer")
        return answers[0]

    def close(self) -> None:
        self.stop()
        for close in reversed(self.closing):
            close()
        self.reactor.close()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with tempfile.TemporaryDirectory(prefix="shoal-test-", dir="/tmp") as runtime:
        house = House(tmp_path, runtime, Policy())
        try:
            house.until(lambda: house.worker.mirror.live, "a first snapshot")
            yield house
        finally:
            house.close()


def place(house: House, command_id: str = "c1") -> InstanceId:
    command = PlaceModel(command_id=CommandId(command_id), model=TINY)
    answer = house.ask(command)
    assert isinstance(answer, Acknowledged) and answer.instance is not None, answer
    return answer.instance


def ready(house: House, instance: InstanceId, pid: int = 7) -> None:
    generation = house.worker.state.instances[instance].generation
    fact = RunnerReady(
        instance=instance, generation=generation, rank=0, node=NODE, process="runner:00", pid=pid,
        addresses=("ipc://x",),
    )  # fmt: skip
    house.worker.tell(fact)
    house.until(lambda: house.worker.state.instances[instance].status == "ready", "ready")


def test_a_placement_is_journalled_acknowledged_and_seen_by_every_mirror(house: House) -> None:
    instance = place(house)
    late = house.client("late")
    for client in (house.worker, late):
        house.until(lambda client=client: instance in client.state.instances, "the instance")
    house.until(lambda: late.state == house.worker.state, "equal mirrors")
    answer = house.ask(PlaceModel(command_id=CommandId("c1"), model=TINY))
    assert isinstance(answer, Acknowledged)
    assert (answer.instance, answer.durability) == (instance, "local")


def test_a_whole_life_from_placement_to_removal(house: House) -> None:
    instance = place(house)
    house.until(lambda: instance in house.worker.state.instances, "the instance")
    ready(house, instance)
    house.worker.tell(
        RunnerEnded(instance=instance, generation=1, rank=0, node=NODE, exit_code=1, message="x")
    )
    house.until(lambda: house.worker.state.instances[instance].generation == 2, "generation 2")
    ready(house, instance, pid=8)
    house.ask(DeleteInstance(command_id=CommandId("d1"), instance=instance))
    house.until(lambda: house.worker.state.instances[instance].status == "draining", "the draining")
    house.worker.tell(RunnerUnloaded(instance=instance, generation=2, rank=0, node=NODE))
    house.until(lambda: not house.worker.state.instances, "its removal")
    house.until(lambda: not house.worker.outbox.waiting, "an empty outbox")


def test_a_restarted_holder_resumes_its_log_with_a_higher_counter(house: House) -> None:
    instance = place(house)
    house.until(lambda: instance in house.worker.state.instances, "the instance")
    ready(house, instance)
    before = house.worker.state
    house.stop()
    house.worker.tell(NodeJoined(node=NODE, name="told while nobody held the term"))
    master = house.start()
    house.until(lambda: house.worker.mirror.counter == 2, "the second term")
    house.until(lambda: not house.worker.outbox.waiting, "the fact taken by the new holder")
    after = house.worker.state
    assert after.instances == before.instances
    assert after.nodes[NODE].name == "told while nobody held the term"
    house.until(lambda: house.worker.state == master.candidate.state, "mirror and holder agree")


def test_a_holder_without_its_journal_still_opens_a_higher_term(house: House) -> None:
    place(house)
    house.stop()
    for path in house.settings.candidate.journal.iterdir():
        path.unlink()
    master = house.start()
    house.until(lambda: house.worker.mirror.counter == 2, "the second term")
    house.until(
        lambda: house.worker.state == master.candidate.state, "the mirror follows the new log"
    )
    assert not master.candidate.state.instances


def test_refusals_say_why_and_leave_no_trace(house: House) -> None:
    index = house.worker.state.index
    for name, reason in (("nope", "unknown_model"), ("tiny", "unsupported")):
        tokens = None if name == "nope" else 10**6
        command = PlaceModel(
            command_id=CommandId(f"c-{name}"), model=ModelId(name), context_tokens=tokens
        )
        answer = house.ask(command)
        assert isinstance(answer, CommandRefused)
        assert answer.refusal.reason == reason
    assert house.worker.state.index == index


def test_the_term_on_the_disk_survives_and_garbage_is_known_as_such(tmp_path: Path) -> None:
    path = tmp_path / "term"
    assert read_term(path) == PersistentState()
    keep_term(path, PersistentState(41))
    keep_term(path, PersistentState(42, NodeId("n2"), began=True))
    assert read_term(path) == PersistentState(42, NodeId("n2"), began=True)
    path.write_text("7\n")
    assert read_term(path) == PersistentState(7), "as it was written before there were votes"
    path.write_text("garbage")
    assert read_term(path) == PersistentState(garbled=True)


def _with_a_key(house: House) -> dict[str, ApiKey]:
    """Add a key behind another event, and take the master down."""
    made = ApiKey(id="key-00000001", name="ann", hash="sha256:" + "a" * 64, scope="admin")
    house.ask(AddApiKey(command_id=CommandId("c-1"), key=made))
    house.until(lambda: bool(house.worker.state.api_keys), "the key in the state")
    house.stop()
    return house.worker.state.api_keys


def _keys(house: House) -> list[ApiKey]:
    assert house.master is not None
    return list(house.master.candidate.state.api_keys.values())


def _damage_the_first_event(house: House) -> None:
    journal = house.settings.candidate.journal / "events.log"
    data = bytearray(journal.read_bytes())
    data[data.index(b"\x81\xa5event") + 20] ^= 1
    journal.write_bytes(data)


def test_a_damaged_journal_costs_no_api_key_for_they_are_kept_beside_it(house: House) -> None:
    keys = _with_a_key(house)
    _damage_the_first_event(house)
    master = house.start()
    house.until(lambda: master.candidate.holding, "a new term")
    assert master.candidate.state.api_keys == keys


def test_a_damaged_journal_whose_keys_are_nowhere_leaves_the_node_closed(house: House) -> None:
    _with_a_key(house)
    _damage_the_first_event(house)
    house.settings.candidate.keys_file.unlink()
    house.start()
    house.until(lambda: _keys(house) == [LOST_KEYS], "a key that nobody has")
    house.stop()
    house.start()
    house.until(lambda: _keys(house) == [LOST_KEYS], "the same after another start")
    house.ask(RemoveApiKey(command_id=CommandId("c-2"), key_id=LOST_KEYS.id))
    house.until(lambda: _keys(house) == [], "a person has said otherwise")
    house.stop()
    master = house.start()
    house.until(lambda: master.candidate.holding, "a new term")
    assert _keys(house) == [], "and it stays so"
