from __future__ import annotations

import sys
import time

import psutil
import pytest

from bus.process.logs import Log
from bus.wire.ids import Boot, InstanceId
from bus.wire.messages.control import Phase, SlotHello
from worker.machine.awake import LINGER_S, KeepAwake, has_work

HOLDS = (sys.executable, "-c", "import sys, time; time.sleep(600)")


def hello(phase: Phase = "ready", requests: int = 0, step: int = 0, boot: str = "b") -> SlotHello:
    return SlotHello(
        slot="00", pid=1, boot=Boot(boot), protocol_min=1, protocol_max=1, phase=phase,
        instance=InstanceId("i"), generation=1, rank=0, open_requests=requests, step=step,
    )  # fmt: skip


def silent() -> Log:
    return Log(node="n", process="test", level="critical")


@pytest.mark.parametrize(
    ("said", "before", "works"),
    [
        (hello(), None, False),
        (hello(step=7), 7, False),
        (hello(step=8), 7, True),
        (hello(requests=1), None, True),
        (hello("loading"), None, True),
        (hello("warming"), None, True),
    ],
)
def test_a_runner_that_loads_owes_or_computes_has_work(
    said: SlotHello, before: int | None, works: bool
) -> None:
    assert has_work(said, before) is works


def test_the_machine_is_held_awake_from_the_first_work_until_a_while_after_the_last() -> None:
    awake = KeepAwake(silent(), HOLDS)
    try:
        awake.look([hello()], 0.0)
        assert not awake.is_held, "a loaded model alone keeps nothing awake"
        awake.look([hello(requests=1)], 1.0)
        assert awake.is_held
        (child,) = (p for p in psutil.Process().children() if HOLDS[2] in p.cmdline())
        awake.look([hello()], LINGER_S)
        assert awake.is_held
        awake.look([hello()], LINGER_S + 1.0)
        assert not awake.is_held and not child.is_running()
        awake.look([hello(step=1)], LINGER_S + 2.0)
        assert awake.is_held, "a follower's steps are work"
    finally:
        awake.release()
    assert not awake.is_held


def test_an_assertion_that_ended_by_itself_is_made_anew() -> None:
    awake = KeepAwake(silent(), (sys.executable, "-c", "pass"))
    awake.look([hello(requests=1)], 0.0)
    ends_at = time.monotonic() + 20
    while awake.is_held:
        assert time.monotonic() < ends_at
        time.sleep(0.02)
    awake.look([hello(requests=1)], 1.0)
    assert awake.is_held
    awake.release()


def test_without_the_program_nothing_is_held_and_nothing_raised() -> None:
    for command in ((), ("/nowhere/caffeinate",)):
        awake = KeepAwake(silent(), command)
        awake.look([hello(requests=1)], 0.0)
        awake.look([hello(requests=1)], 1.0)
        assert not awake.is_held
        awake.release()
