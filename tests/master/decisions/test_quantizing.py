"""Where a model in fewer bits is made, why it is not, and how that ends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.replica.state import ClusterState
from bus.wire.cards import AdapterCard
from bus.wire.errors import Refusal
from bus.wire.ids import CommandId, InstanceId, ModelId
from bus.wire.instances import Instance
from bus.wire.messages.commands import QuantizeModel
from bus.wire.messages.derived import DerivedModel
from bus.wire.messages.events import (
    InstanceDraining,
    InstanceFailed,
    InstancePlaced,
    InstanceRemoved,
    RunnerEnded,
)
from bus.wire.messages.weights import Quantizing, usual_name
from master.decisions.collective_tests import FAILED_S, expire_tests
from master.decisions.crash_loop import CrashLoops
from master.decisions.observations import Observations
from master.decisions.planner import follow_up
from master.decisions.quantizing import decide_quantizing
from master.decisions.quantizing.quantize import made_bytes, memory_bytes
from master.placement.capacity import NodeCapacity, node_capacities
from tests.harness.placement_nodes import GB, MODEL, model, node

NAME, MADE = InstanceId("q1"), ModelId("m-4bit")
SIZE = 16 * GB
CARD = model((2 * GB,) * 8, parameters=8 * GB)


def command(**more: Any) -> QuantizeModel:
    order = Quantizing(source=MODEL, bits=more.pop("bits", 4))
    said = {"command_id": CommandId("c"), "name": MADE, "quantizing": order}
    return QuantizeModel.model_validate({**said, **more})


def having(number: int, **more: Any) -> NodeCapacity:
    return node(number, **{"models": (CARD,), **more})


def decided(fleet: list[NodeCapacity], state: ClusterState | None = None, **more: Any) -> Any:
    return decide_quantizing(command(**more), fleet, state or ClusterState(), NAME)


def placed(fleet: list[NodeCapacity], **more: Any) -> Instance:
    bodies = decided(fleet, **more)
    assert not isinstance(bodies, Refusal), bodies
    assert isinstance(bodies[-1], InstancePlaced)
    return bodies[-1].instance


def held(*instances: Instance) -> ClusterState:
    return ClusterState(instances={one.instance: one for one in instances})


def test_it_is_an_instance_of_what_is_made_that_serves_nothing() -> None:
    one = placed([having(1)])
    assert (one.model, one.reads, one.serves) == (MADE, MODEL, False)
    assert one.keep_alive_s < 0
    assert [shard.node for shard in one.shards] == ["n1"]
    assert one.quantizes is not None
    assert one.quantizes.group_size == 64


def test_its_bill_is_less_than_the_model_and_counts_until_its_end() -> None:
    one = placed([having(1)])
    assert 2 * GB < one.shards[0].bytes_reserved < SIZE // 2
    ready = one.model_copy(update={"status": "ready"})
    for state in (one, ready):
        (capacity,) = node_capacities({having(1).id: having(1).card}, {}, {NAME: state})
        assert capacity.reserved_bytes == capacity.loading_bytes == one.shards[0].bytes_reserved


def test_the_node_with_most_room_makes_it_or_the_one_that_is_named() -> None:
    fleet = [having(1), having(2, usable=32 * GB), node(3, usable=99 * GB)]
    assert placed(fleet).shards[0].node == "n2"
    assert placed(fleet, node="n1").shards[0].node == "n1"


@pytest.mark.parametrize(
    ("fleet", "more", "reason", "field", "said"),
    [
        ([node(1)], {}, "unknown_model", "model", "shoal pull m"),
        ([having(1), node(3)], {"node": "n3"}, "unknown_node", "node", "it is on box1"),
        ([having(1, models=(CARD, model(model=MADE)))], {}, "conflict", "name", "--name"),
        ([having(1)], {"name": "a b"}, "bad_request", "name", "is not a valid name"),
        ([having(1)], {"name": "a:b"}, "bad_request", "name", "is not a valid name"),
        ([having(1, models=(model(quantization="4-bit", made_from="big"),))], {},
         "bad_request", "model", "made from, big"),
        ([having(1, models=(model(makes="embedding"),))], {}, "unsupported", "model", "embedding"),
        ([having(1, usable=GB)], {}, "insufficient_memory", None, "unload a model"),
        ([having(1, shards=4)], {}, "no_capacity", None, "slot"),
        ([having(1, free_bytes=None)], {}, "pending", None, "not measured"),
        ([having(1, disk_free_bytes=2 * GB)], {}, "disk_full", None, "free disk space"),
    ],
)  # fmt: skip
def test_refusals_name_what_is_wrong_and_what_to_do(
    fleet: list[NodeCapacity], more: dict[str, Any], reason: str, field: str | None, said: str
) -> None:
    refusal = decided(fleet, **more)
    assert isinstance(refusal, Refusal), refusal
    assert (refusal.reason, refusal.field) == (reason, field)
    assert said in refusal.message


def test_a_name_is_taken_by_derived_models_and_by_what_is_being_made() -> None:
    derived = ClusterState(derived={MADE: DerivedModel(name=MADE, base=MODEL)})
    under_way = held(placed([having(1)]))
    for state in (derived, under_way):
        refusal = decided([having(1)], state)
        assert isinstance(refusal, Refusal)
        assert (refusal.reason, refusal.field) == ("conflict", "name")


def test_one_that_failed_makes_way_for_another_try() -> None:
    failed = placed([having(1)]).model_copy(update={"status": "failed", "instance": "q0"})
    bodies = decided([having(1)], held(failed))
    assert isinstance(bodies, tuple)
    assert isinstance(bodies[0], InstanceRemoved)
    assert bodies[0].instance == "q0"


def ended(one: Instance, code: int, message: str) -> RunnerEnded:
    return RunnerEnded(
        instance=one.instance, generation=1, rank=0, node=one.shards[0].node,
        exit_code=code, message=message,
    )  # fmt: skip


def test_it_leaves_when_it_is_done_and_says_why_for_a_minute_when_it_failed() -> None:
    one = placed([having(1)])
    (gone,) = follow_up(one, ended(one, 0, "made"), CrashLoops(), 0.0)
    assert isinstance(gone, InstanceDraining)
    (failed,) = follow_up(one, ended(one, 72, "the disk is full"), CrashLoops(), 0.0)
    assert isinstance(failed, InstanceFailed)
    assert (failed.why, failed.place_again) == ("the disk is full", None)
    state = held(one.model_copy(update={"status": "failed", "why": failed.why}))
    observed = Observations()
    assert expire_tests(state, observed, {NAME: 0.0}, FAILED_S - 1) == []
    (removed,) = expire_tests(state, observed, {NAME: 0.0}, FAILED_S)
    assert isinstance(removed, InstanceRemoved)


@given(
    st.sampled_from((4, 6, 8)),
    st.sampled_from((32, 64, 128)),
    st.integers(10**6, 10**12),
    st.integers(0, 5),
)
def test_the_files_are_billed_by_bits_and_groups(
    bits: Any, group: Any, parameters: int, adapters: int
) -> None:
    card = model(
        (2 * parameters // 8,) * 8,
        parameters=parameters,
        adapters=tuple(AdapterCard(name=f"a{n}", rank=1, size_bytes=1) for n in range(adapters)),
    )
    least = parameters * (bits + 32 / group) / 8  # scale and bias in 16 bits each
    made = made_bytes(card, bits, group)
    assert min(card.size_bytes, least) * 0.99 <= made <= card.size_bytes
    assert memory_bytes(card, made) > 2 * max(card.layer_bytes)


def test_what_is_made_is_never_named_after_an_owner() -> None:
    assert usual_name(ModelId("mlx-community/Qwen3-4B"), 6) == "Qwen3-4B-6bit"
