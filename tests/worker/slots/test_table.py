from __future__ import annotations

import pytest

from bus.replica.state import ClusterState
from bus.wire.ids import Boot, InstanceId, NodeId
from bus.wire.instances import Instance, RankReady, Shard
from bus.wire.messages.control import Phase, SlotEnded, SlotHello
from bus.wire.messages.events import RunnerEnded, RunnerUnloaded
from worker.slots.actions import GiveSpec, KillSlot, Task
from worker.slots.admission import USUAL, NodeInventory
from worker.slots.diagnoses import PATIENCE_S, OpenQuestions
from worker.slots.facts import Reported, exit_fact
from worker.slots.reconcile import instance_slot, reconcile
from worker.slots.table import Gone, Seen, Slot, SlotTable

NODE = NodeId("n1")
TASK = Task(InstanceId("i"), 1, 0)


def hello(phase: Phase, *, boot: str = "b1", pid: int = 7, slot: str = "00") -> SlotHello:
    return SlotHello(
        slot=slot, pid=pid, boot=Boot(boot), protocol_min=1, protocol_max=1, phase=phase,
        instance=None if phase == "idle" else TASK.instance, generation=TASK.generation,
    )  # fmt: skip


def state(status: str = "ready", generation: int = 1) -> ClusterState:
    shard = Shard(rank=0, node=NODE, first_layer=0, last_layer=2, bytes_reserved=1)
    lead = RankReady(rank=0, node=NODE, process="runner:00", addresses=(), pid=7)
    instance = Instance(
        instance=TASK.instance, model="m", shards=(shard,), generation=generation,
        status=status, context_tokens=8, keep_alive_s=1.0, ready=(lead,),
    )  # fmt: skip
    return ClusterState(instances={"i": instance})


def desk(now: float) -> NodeInventory:
    return NodeInventory(NODE, True, None, frozenset({"m"}), 30.0, now)


def test_a_late_hello_does_not_turn_a_life_back() -> None:
    table = SlotTable()
    for phase in ("idle", "loading", "ready"):
        table.take_hello(hello(phase), 1.0)
    table.take_hello(hello("loading"), 2.0)
    table.take_hello(hello("idle"), 3.0)
    slot = table.slots["00"]
    assert (slot.life, slot.heard_at, slot.task) == ("ready", 3.0, TASK)


def test_the_runner_that_is_asked_is_the_lowest_rank_of_the_latest_generation() -> None:
    name = TASK.instance
    tasks = (Task(name, 2, 1), Task(name, 1, 0), Task(name, 2, 0), Task(InstanceId("x"), 3, 0))
    table = SlotTable()
    for number, task in enumerate(tasks):
        slot = f"{number:02}"
        table.slots[slot] = Slot(slot, life="ready", pid=7, task=task)
    found = instance_slot(table, name)
    assert found is not None and found.task == Task(name, 2, 0)
    assert instance_slot(table, InstanceId("gone")) is None


def test_a_new_boot_in_a_slot_means_that_the_old_process_is_gone() -> None:
    table = SlotTable()
    table.take_hello(hello("ready"), 1.0)
    gone = table.take_hello(hello("idle", boot="b2", pid=8), 2.0)
    assert gone is not None and gone.slot.task == TASK
    slot = table.slots["00"]
    assert (slot.life, slot.pid, slot.task) == ("idle", 8, None)


def test_supervisords_list_frees_slots_and_sees_restarts_by_hand() -> None:
    table = SlotTable()
    assert table.listed([Seen("00", True, 7, None), Seen("01", False, 0, None)], 0.0) == []
    assert (table.slots["00"].life, table.slots["01"].life) == ("starting", "free")
    table.take_hello(hello("ready"), 1.0)
    (gone,) = table.listed([Seen("00", True, 9, None)], 2.0)
    assert gone.slot.pid == 7 and table.slots["00"].life == "starting"
    (gone,) = table.listed([Seen("00", False, 0, 71)], 3.0)
    assert gone.exit_code == 71 and table.slots["00"] == Slot("00", since_at=3.0)


def test_silence_counts_from_the_last_word_and_not_while_the_worker_was_away() -> None:
    table = SlotTable()
    table.listed([Seen("00", True, 7, None)], 0.0)
    table.take_hello(hello("ready"), 1.0)
    assert reconcile(state(), table, desk(USUAL.silent_s + 0.9), Reported()) == []
    (action,) = reconcile(state(), table, desk(USUAL.silent_s + 1.0), Reported())
    assert isinstance(action, KillSlot) and "silent for 12 s" in action.why
    table.forgive(USUAL.silent_s + 1.0)
    assert reconcile(state(), table, desk(2 * USUAL.silent_s), Reported()) == []


@pytest.mark.parametrize("life", ["idle", "ready"])
def test_silence_of_a_runner_that_had_no_core_does_not_count(life: str) -> None:
    table = SlotTable()
    table.take_hello(hello(life), 0.0)
    table.excuse("00", 8.0)
    assert table.slots["00"].silent_s(USUAL.silent_s + 7.0) == USUAL.silent_s - 1.0
    kills = reconcile(state(), table, desk(USUAL.silent_s + 7.0), Reported())
    assert not any(isinstance(one, KillSlot) for one in kills)
    kills = reconcile(state(), table, desk(USUAL.silent_s + 8.0), Reported())
    assert any(isinstance(one, KillSlot) for one in kills), "what counts has passed the limit"
    table.take_hello(hello(life), 30.0)
    assert table.slots["00"].silent_s(35.0) == 5.0, "with a word all is as at first"


def test_a_spec_that_was_lost_is_given_again_to_a_runner_that_still_says_idle() -> None:
    wanted, told = state("placed"), Reported()
    wanted.instances["i"] = wanted.instances["i"].model_copy(update={"ready": ()})
    table = SlotTable({"00": Slot("00", life="starting", task=TASK)})
    table.take_hello(hello("idle"), 1.0)
    (given,) = reconcile(wanted, table, desk(1.0), told)
    assert isinstance(given, GiveSpec)
    table.note(given, 1.0)
    late = 1.0 + USUAL.repeat_s
    assert reconcile(wanted, table, desk(late), told) == [], "it has said nothing since"
    table.take_hello(hello("idle"), 1.5)
    assert reconcile(wanted, table, desk(late - 0.1), told) == [], "its words may have crossed"
    assert reconcile(wanted, table, desk(late), told) == [given]
    table.take_hello(hello("loading"), late)
    assert reconcile(wanted, table, desk(late + 1.0), told) == []
    table.take_hello(hello("ready"), late + 1.0)
    table.take_hello(hello("idle"), late + 2.0)
    said = reconcile(wanted, table, desk(late + 3.0), told)
    assert not any(isinstance(one, GiveSpec) for one in said), "a late word makes it no idle one"


@pytest.mark.parametrize(
    ("exit_code", "word", "doom", "words", "said"),
    [
        (-1, None, "", "", "runner:00 was killed by a signal"),
        (71, None, "", "Boom", "runner:00 ended with exit code 71; its last line: Boom"),
        (None, None, "", "", "runner:00 is gone"),
        (70, "a step took 60 s", "", "", "a step took 60 s"),
        (-1, "bye", "was silent for 12 s", "", "runner:00 was silent for 12 s"),
    ],
)
def test_the_fact_says_how_a_runner_ended(
    exit_code: int | None, word: str | None, doom: str, words: str, said: str
) -> None:
    last = None
    if word is not None:
        last = SlotEnded(
            slot="00", boot=Boot("b1"), instance=TASK.instance, generation=1, rank=0,
            exit_code=70, message=word,
        )  # fmt: skip
    slot = Slot("00", life="ready", task=TASK, doom=doom, last_word=last)
    told = Reported()
    (action,) = exit_fact(Gone(slot, exit_code), state(), NODE, told, words)
    assert isinstance(action.fact, RunnerEnded) and action.fact.message == said
    told.note(action, 1.0)
    assert exit_fact(Gone(slot, exit_code), state(), NODE, told, words) == []


def test_a_runner_that_leaves_while_draining_has_unloaded_however_it_went() -> None:
    slot = Slot("00", life="killed", task=TASK, doom="did not leave")
    (action,) = exit_fact(Gone(slot, -1), state("draining"), NODE, Reported(), "")
    assert isinstance(action.fact, RunnerUnloaded)


def test_the_leaving_of_an_older_generation_is_not_news() -> None:
    slot = Slot("00", life="ready", task=TASK)
    assert exit_fact(Gone(slot, -1), state(generation=2), NODE, Reported(), "") == []


def test_a_report_answers_everybody_who_asked_and_silence_is_told() -> None:
    questions = OpenQuestions()
    questions.ask(InstanceId("i"), b"one", 0.0)
    questions.ask(InstanceId("i"), b"two", 1.0)
    questions.ask(InstanceId("j"), b"three", 0.0)
    assert questions.answered(InstanceId("i")) == [b"one", b"two"]
    assert questions.answered(InstanceId("i")) == []
    assert questions.expired(PATIENCE_S - 0.1) == []
    assert questions.expired(PATIENCE_S) == [b"three"]
    assert questions.waiting == {}
