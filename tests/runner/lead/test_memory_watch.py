"""When a rank looks at its memory, and what it holds it against; the measure is simulated."""

from __future__ import annotations

import sys

import pytest

from bus.process.memory import DataGrant, anonymous_bytes, own_bytes
from runner.engine import EngineMemory, MemoryLook
from runner.lead.memory_watch import BESIDE_BYTES, LOOKS_OVER, MemoryWatch, ProcessMemory
from tests.harness.engine import FakeEngine, facts

PROMISED = 1600


class Simulated(FakeEngine):
    """Takes as much as it is told; some of it is free, until it is eased."""

    active_bytes = 0
    cache_bytes = 0

    def memory(self) -> EngineMemory:
        return EngineMemory(self.active_bytes, 0, 0, 0, self.cache_bytes)

    def ease(self) -> None:
        super().ease()
        self.cache_bytes = 0


def no_limit() -> DataGrant | None:
    return None


def test_a_look_is_due_every_sixteen_steps_and_after_each_that_reads_a_prompt() -> None:
    watch, engine = MemoryWatch(PROMISED, no_limit), Simulated(facts())
    looked = [step for step in range(1, 50) if watch.look(engine, step)]
    assert looked == [16, 32, 48]
    assert watch.look(engine, 50) is None
    watch.reads_prompt = True
    assert watch.look(engine, 51) == MemoryLook(51, 0, 1700)
    assert watch.look(engine, 52) is None


def test_what_is_over_is_eased_first_and_what_is_over_then_is_told() -> None:
    watch, engine = MemoryWatch(PROMISED, no_limit), Simulated(facts())
    engine.active_bytes, engine.cache_bytes = 1700, 0
    look = watch.look(engine, 16)
    assert look is not None and not look.is_over
    assert look == MemoryLook(16, 1700, 1700)
    assert engine.eases == 0
    engine.cache_bytes = 1
    look = watch.look(engine, 32)
    assert look == MemoryLook(32, 1700, 1700) and engine.eases == 1
    engine.active_bytes = 1701
    look = watch.look(engine, 48)
    assert look is not None and look.is_over and engine.eases == 2


def test_of_what_the_system_grants_seven_eighths_are_taken_where_that_is_nearer() -> None:
    takes = [0]
    watch = MemoryWatch(PROMISED, lambda: DataGrant(takes[0], 800))
    engine = Simulated(facts())
    for step, taken, over in ((16, 700, False), (32, 701, True), (48, 0, False)):
        takes[0] = taken
        look = watch.look(engine, step)
        assert look is not None and look.is_over == over
    engine.active_bytes, takes[0] = 1701, 100
    assert watch.look(engine, 64) == MemoryLook(64, 1701, 1700)


def test_a_process_that_takes_far_more_than_its_engine_has_to_end_in_words() -> None:
    engine_bytes, taken_bytes = 5 << 30, 6 << 30
    memory = ProcessMemory(lambda: engine_bytes, lambda: taken_bytes)
    assert not any(memory.look("ready", 8 << 30) for _ in range(5))
    assert memory.used_bytes == 6 << 30
    taken_bytes = engine_bytes + BESIDE_BYTES + (1 << 30) + 1
    said = [memory.look("ready", 8 << 30) for _ in range(LOOKS_OVER)]
    assert not any(said[:-1]), "what is over for a moment ends nothing"
    assert said[-1].startswith("the runner used 4.3 GB beside the model; the limit is 4.3 GB")


def test_what_an_engine_has_freed_or_loads_is_not_held_against_its_process() -> None:
    engine_bytes: int | None = None
    memory = ProcessMemory(lambda: engine_bytes, lambda: 40 << 30)
    assert not any(memory.look("ready", 0) for _ in range(5)), "nothing is known of the engine"
    engine_bytes = 1 << 30
    assert not any(memory.look("loading", 0) for _ in range(5))
    engine_bytes = 39 << 30
    assert not memory.look("ready", 0)
    engine_bytes = 1 << 30
    assert not any(memory.look("ready", 0) for _ in range(5)), "the C library may keep it"


@pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="no system that tells")
def test_a_process_knows_what_it_has_for_itself() -> None:
    before = own_bytes()
    held = bytearray(b"x") * (64 << 20)
    after = own_bytes()
    assert before is not None and after is not None
    assert 60 << 20 < after - before < 80 << 20 and held
    status = "VmRSS:\t 900 kB\nRssAnon:\t 300 kB\nRssFile:\t 600 kB\nVmSwap:\t 50 kB\n"
    assert anonymous_bytes(status) == 350 * 1024
    assert anonymous_bytes("Name:\tx\n") is None
