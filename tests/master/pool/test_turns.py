from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, Shard
from bus.wire.messages.collectives import CollectiveTest
from bus.wire.messages.weights import Quantizing
from master.pool import (
    Claim,
    Copy,
    CopyUse,
    PoolSettings,
    Yielding,
    is_in_use,
    yielding,
)

SETTINGS = PoolSettings(turn_s=30.0, turn_loads=4.0, ageing_per_s=0.5)


def used(
    open_requests: int, idle_s: float, best_priority: int | None = None, idle_then_s: float = 0.0
) -> CopyUse:
    return CopyUse(open_requests, idle_s, best_priority, heard_at=0.0, idle_then_s=idle_then_s)


BUSY = used(1, 0.0, best_priority=10)


def copy(
    use: CopyUse | None = BUSY, *, ready_at: float | None = 0.0, load_s: float = 2.0, **more: Any
) -> Copy:
    fields = {name: more.pop(name) for name in ("status", "yields_to") if name in more}
    instance = Instance(
        instance=InstanceId("i"), model=ModelId("held"), context_tokens=8, keep_alive_s=1.0,
        shards=(Shard(rank=0, node=NodeId("n"), first_layer=0, last_layer=1, bytes_reserved=1),),
        **{"status": "ready", **fields},
    )  # fmt: skip
    return Copy(instance, use, ready_at, load_s, **more)


def claim(priority: int = 10, since_at: float = 0.0) -> Claim:
    return Claim(ModelId("wanted"), ((priority, since_at),))


def at(held: Copy, wants: Claim, now: float) -> Yielding:
    return yielding(held, wants, SETTINGS, now)


def idle(idle_s: float) -> CopyUse:
    return used(0, idle_s=idle_s, idle_then_s=idle_s)


def test_what_nobody_uses_yields_at_once_however_short_it_was_there() -> None:
    found = at(copy(idle(2.0), ready_at=100.0), claim(50, 105.0), now=105.0)
    assert (found.at, found.idle) == (105.0, True)


def test_a_moment_between_two_requests_is_no_idleness() -> None:
    use = used(0, idle_s=0.9, idle_then_s=0.05)
    assert at(copy(use), claim(), now=10.0).at == 30.0


def test_a_copy_that_was_just_loaded_waits_for_those_who_wanted_it() -> None:
    use = used(0, idle_s=9.0, idle_then_s=9.0)
    assert at(copy(use, ready_at=100.0), claim(), now=100.2).at > 100.2
    assert at(copy(use, ready_at=100.0), claim(), now=103.5).at == 103.5


@pytest.mark.parametrize(("load_s", "turn_s"), [(2.0, 30.0), (20.0, 80.0)])
def test_a_turn_is_thirty_seconds_or_so_many_loads(load_s: float, turn_s: float) -> None:
    held = copy(ready_at=100.0, load_s=load_s)
    assert at(held, claim(since_at=100.0), now=110.0).at == 100.0 + turn_s
    assert at(held, claim(since_at=100.0), now=100.0 + turn_s).at == 100.0 + turn_s


def test_what_is_less_urgent_has_to_age_first_and_is_told_so() -> None:
    found = at(copy(ready_at=0.0), claim(50, since_at=40.0), now=50.0)
    assert found.at == 40.0 + 80.0
    assert "more urgent" in found.why


def test_nothing_that_ages_displaces_running_urgent_requests() -> None:
    urgent = used(1, idle_s=0.0, best_priority=1)
    assert math.isinf(at(copy(urgent), claim(2, since_at=-1e6), now=1e6).at)
    assert at(copy(urgent, ready_at=0.0), claim(1), now=5.0).at == 30.0, "among urgent ones: turns"


def test_urgent_claims_do_not_wait_for_turns_of_others() -> None:
    found = at(copy(), claim(1, since_at=3.0), now=3.0)
    assert (found.at, found.idle) == (3.0, False)


def test_a_copy_that_yields_stays_when_it_is_itself_wanted_urgently() -> None:
    urgent = Claim(ModelId("held"), ((1, 0.0),))
    assert at(copy(yields_to="wanted"), claim(), now=9.0).leaves
    assert math.isinf(at(copy(yields_to="wanted", waiting=urgent), claim(), now=9.0).at)


@pytest.mark.parametrize(
    ("held", "why", "ever"),
    [
        (copy(idle(99.0), pinned_by="ann"), "pinned by ann", False),
        (copy(None), "not reported", True),
        (copy(idle(99.0), status="placed"), "loading", True),
    ],
)
def test_what_does_not_yield_says_why(held: Copy, why: str, ever: bool) -> None:
    found = at(held, claim(1), now=1e4)
    assert math.isinf(found.at) and why in found.why and found.ever == ever


def test_a_copy_with_a_request_is_in_use_however_long_it_was_idle_before() -> None:
    resumed = used(1, idle_s=60.0, idle_then_s=60.0)
    assert is_in_use(copy(resumed), 100.0) and not is_in_use(copy(idle(60.0)), 100.0)


@pytest.mark.parametrize(
    ("use", "ready_at", "now", "in_use"),
    [
        (None, 0.0, 99.0, True),
        (used(1, 60.0, idle_then_s=60.0), 0.0, 99.0, True),
        (used(0, 9.0, idle_then_s=0.29), 0.0, 99.0, True),
        (used(0, 9.0, idle_then_s=0.3), 0.0, 99.0, False),
        (used(0, 2.0, idle_then_s=2.0), 97.0, 99.0, True),  # nobody has used it since it is ready
        (used(0, 1.96, idle_then_s=1.96), 97.0, 99.0, True),
        (used(0, 1.9, idle_then_s=1.9), 97.0, 99.0, False),
        (used(0, 2.99, idle_then_s=2.99), 96.01, 99.0, True),
        (used(0, 3.0, idle_then_s=3.0), 96.0, 99.0, False),
        (used(0, 9.0, idle_then_s=9.0), None, 99.0, False),
    ],
)
def test_until_when_a_copy_is_in_use(
    use: CopyUse | None, ready_at: float | None, now: float, in_use: bool
) -> None:
    assert is_in_use(copy(use, ready_at=ready_at), now) == in_use


URGENT, BATCH = claim(1), claim(50, since_at=40.0)
FINISHES, REPLICA = "held is finishing its requests", "too much was asked"


@pytest.mark.parametrize(
    ("held", "wants", "found"),
    [
        (copy(status="draining"), claim(), Yielding(50.0, "held is being unloaded", leaves=True)),
        (copy(status="draining", pinned_by="ann"), claim(),
         Yielding(50.0, "held is being unloaded", True)),
        (copy(status="placed"), claim(), Yielding(math.inf, "held is loading")),
        (copy(status="placed", replica=REPLICA), claim(), Yielding(50.0, idle=True)),
        (copy(idle(9.0)), claim(), Yielding(50.0, idle=True)),
        (copy(idle(9.0), replica=REPLICA), claim(), Yielding(50.0, idle=True)),
        (copy(replica=REPLICA), claim(),
         Yielding(50.0, "a replica of held is finishing its requests")),
        (copy(yields_to="x"), claim(), Yielding(50.0, FINISHES, leaves=True)),
        (copy(yields_to="x", replica=REPLICA), claim(), Yielding(50.0, FINISHES, leaves=True)),
        (copy(idle(9.0), waiting=URGENT), claim(),
         Yielding(math.inf, "urgent requests wait for held")),
        (copy(idle(9.0), waiting=URGENT), URGENT, Yielding(50.0, idle=True)),
        (copy(idle(9.0), waiting=claim()), claim(), Yielding(50.0, idle=True)),
        (copy(idle(9.0), waiting=URGENT, replica=REPLICA), claim(), Yielding(50.0, idle=True)),
        (copy(), URGENT, Yielding(50.0, FINISHES)),
        (copy(used(1, 0.0)), URGENT, Yielding(50.0, FINISHES)),
        (copy(ready_at=45.0), claim(),
         Yielding(75.0, "held is in use; its minimum residency ends in 25 s")),
        (copy(used(1, 0.0), ready_at=45.0), claim(),
         Yielding(75.0, "held is in use; its minimum residency ends in 25 s")),
        (copy(ready_at=None), claim(),
         Yielding(80.0, "held is in use; its minimum residency ends in 30 s")),
        (copy(ready_at=20.0), claim(), Yielding(50.0, FINISHES)),
        (copy(ready_at=0.0), claim(11, 20.0), Yielding(50.0, FINISHES)),
        (copy(used(1, 0.0), ready_at=0.0), claim(11, 49.0),
         Yielding(51.0, "held is serving more urgent requests for up to 1 s more")),
        (copy(ready_at=45.0), BATCH,
         Yielding(120.0, "held is serving more urgent requests for up to 70 s more")),
        (copy(ready_at=90.0), BATCH,
         Yielding(120.0, "held is in use; its minimum residency ends in 70 s")),
        (copy(used(1, 0.0, best_priority=1)), claim(),
         Yielding(math.inf, "held is serving urgent requests")),
        (copy(used(1, 0.0, best_priority=2)), URGENT, Yielding(50.0, FINISHES)),
        (copy(used(1, 0.0, best_priority=1), ready_at=45.0), URGENT,
         Yielding(75.0, "held is in use; its minimum residency ends in 25 s")),
    ],
)  # fmt: skip
def test_when_each_copy_yields_at_fifty_seconds_and_why_not_before(
    held: Copy, wants: Claim, found: Yielding
) -> None:
    assert at(held, wants, now=50.0) == found


TEST = CollectiveTest(
    mode="quick", sizes=(1,), latency_warm_ups=0, latency_rounds=1, warm_ups=0, rounds=1,
    cap_bytes=1, deadline_s=1.0,
)  # fmt: skip


def test_what_holds_no_copy_of_a_model_never_yields() -> None:
    made = copy(idle(99.0))
    test = made.instance.model_copy(update={"test": TEST})
    making = made.instance.model_copy(update={"quantizes": Quantizing(source=ModelId("s"), bits=4)})
    found = [at(replace(made, instance=one), claim(1), now=1e4) for one in (test, making)]
    assert [one.why for one in found] == [
        "a collective test uses the memory", "the quantization to held uses the memory",
    ]  # fmt: skip
    assert all(math.isinf(one.at) and one.ever for one in found)


def test_turns_are_as_long_as_the_settings_promise() -> None:
    assert PoolSettings() == PoolSettings(30.0, 4.0, 0.5, 1, 8, 30.0, 120.0)
    assert [PoolSettings().turn_of(load_s) for load_s in (0.0, 7.0, 7.5, 10.0)] == [30, 30, 30, 40]
