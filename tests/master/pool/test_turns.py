from __future__ import annotations

import math
from typing import Any

import pytest

from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, Shard
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
    use: CopyUse | None = BUSY, *, ready_at: float = 0.0, load_s: float = 2.0, **more: Any
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
        (copy(None), "not known", True),
        (copy(idle(99.0), status="placed"), "loading", True),
    ],
)
def test_what_does_not_yield_says_why(held: Copy, why: str, ever: bool) -> None:
    found = at(held, claim(1), now=1e4)
    assert math.isinf(found.at) and why in found.why and found.ever == ever


def test_a_copy_with_a_request_is_in_use_however_long_it_was_idle_before() -> None:
    resumed = used(1, idle_s=60.0, idle_then_s=60.0)
    assert is_in_use(copy(resumed), 100.0) and not is_in_use(copy(idle(60.0)), 100.0)
