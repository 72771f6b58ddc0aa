"""Models on GPUs: how they are divided, that no GPU is over-committed, and what ten known machines
take."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.wire.accelerators import Device, DeviceShare, Vendor, bytes_on
from bus.wire.cards import ModelCard
from bus.wire.errors import Refusal
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, RankReady, Shard
from master.placement import (
    KEPT_BYTES,
    Crowded,
    Home,
    Links,
    NodeCapacity,
    Placement,
    PlacementSpec,
    RunnerSizing,
    node_capacities,
    place,
    plan_of,
)
from master.placement.gpus import shares_of, usable_in
from master.placement.memory_cost import FIXED_BYTES
from master.pool import Copy, PoolChoice, Promise, Victim, Yielding, choose, holds_by_sum, reserve
from master.pool.ledger import without
from tests.harness.placement_nodes import GB, MB, MODEL, model, node, reading

GPU_TAGS = ("mlx-cpu", "llamacpp-cuda", "llamacpp-cpu")


def gpus(*gigabytes: float, vendor: Vendor = "nvidia", **more: Any) -> tuple[Device, ...]:
    return tuple(
        Device(vendor=vendor, index=index, total_bytes=int(each * GB), **more)
        for index, each in enumerate(gigabytes)
    )


def gguf(gigabytes: float, layers: int = 32, **more: Any) -> ModelCard:
    fields: dict[str, Any] = {
        "dtype": "gguf", "compatible_backends": ("llamacpp-cpu", "llamacpp-cuda", "llamacpp-rocm"),
        "unsplit_because": "llama-server runs a model on one node", "tensor_sizes": {}, **more,
    }  # fmt: skip
    return model((int(gigabytes * GB) // layers,) * layers, **fields)


def put(*nodes: NodeCapacity, **spec: Any) -> Placement | Crowded | Refusal:
    return place(PlacementSpec(MODEL, **spec), nodes, RunnerSizing(max_rows=4), Links())


def placed(*nodes: NodeCapacity, **spec: Any) -> Placement:
    verdict = put(*nodes, **spec)
    assert isinstance(verdict, Placement), verdict
    return verdict


def refused(*nodes: NodeCapacity, **spec: Any) -> Refusal:
    verdict = put(*nodes, **spec)
    assert not isinstance(verdict, Placement)
    return verdict.refusal if isinstance(verdict, Crowded) else verdict


def with_gpus(
    devices: tuple[Device, ...],
    *,
    memory: float = 32,
    free: float | None = None,
    instances: tuple[Instance, ...] = (),
    **more: Any,
) -> NodeCapacity:
    """A node with this much memory in GB and these GPUs, which have these instances."""
    fields: dict[str, Any] = {
        "memory_bytes": int(memory * GB), "working_set_bytes": 0, "backends": GPU_TAGS,
        "memory_bytes_per_s": 0.0, "devices": devices, **more,
    }  # fmt: skip
    card = node(1, **fields).card
    measured = reading(card, int((memory if free is None else free) * GB))
    by_name = {str(instance.instance): instance for instance in instances}
    (capacity,) = node_capacities({card.node: card}, {card.node: measured}, by_name)
    return capacity


def instance_of(verdict: Placement, number: int, *, ready: bool) -> Instance:
    rank = verdict.lead
    shard = Shard(
        rank=0, node=rank.copy.node.id, first_layer=0, last_layer=1,
        bytes_reserved=rank.reserved_bytes, backend=rank.copy.backend, devices=rank.devices,
    )  # fmt: skip
    announced = RankReady(rank=0, node=shard.node, process="p", addresses=(), pid=1)
    return Instance(
        instance=InstanceId(f"i{number}"), model=ModelId(f"m{number}"), shards=(shard,),
        status="ready" if ready else "placed", ready=(announced,) if ready else (),
        context_tokens=8, keep_alive_s=1.0,
    )  # fmt: skip


# --- the arithmetic alone ---

rooms_of = st.lists(st.integers(0, 200), min_size=1, max_size=5)
pieces_of = st.lists(st.integers(0, 40), min_size=0, max_size=12)


@settings(max_examples=500)
@given(rooms_of, pieces_of, st.booleans(), st.integers(0, 600))
def test_a_model_is_divided_as_a_whole_in_index_order_and_within_every_room(
    rooms: list[int], pieces: list[int], is_even: bool, size: int
) -> None:
    keys = tuple(gpu.key for gpu in gpus(*rooms))
    home = Home(keys, parts=tuple(pieces) if sum(pieces) else (), is_even=is_even)
    shares = shares_of(home, rooms, size)
    if size <= usable_in(home, rooms):
        assert shares is not None, "what certainly fits does"
    if shares is None:
        return
    assert bytes_on(shares) >= size and (is_even or bytes_on(shares) == size)
    assert [share.index for share in shares] == sorted({share.index for share in shares})
    assert all(share.bytes_reserved <= rooms[share.index] for share in shares)
    if home.parts and not is_even:
        largest = size * max(home.parts) / sum(home.parts) + 1
        for before, after in pairwise(shares):
            skipped = rooms[before.index + 1 : after.index]
            left = rooms[before.index] - before.bytes_reserved
            assert left < largest and all(room < largest for room in skipped)
    elif not is_even:
        assert len(shares) <= 1, "MLX's model is on one GPU"


def test_the_tensor_split_counts_whole_layers_and_the_output_layer() -> None:
    home = Home((("nvidia", 0), ("nvidia", 1)), parts=(10, 10, 10, 10, 5))
    assert shares_of(home, [25, 100], 45) == (
        DeviceShare(vendor="nvidia", index=0, bytes_reserved=20, layers=2),
        DeviceShare(vendor="nvidia", index=1, bytes_reserved=25, layers=3),
    )
    assert shares_of(home, [25, 20], 45) is None, "all of it or nothing"
    assert shares_of(home, [5, 100], 45) == (
        DeviceShare(vendor="nvidia", index=1, bytes_reserved=45, layers=5),
    )


# --- whatever the node ---


@dataclass(frozen=True)
class Drawn:
    devices: tuple[Device, ...]
    models: tuple[ModelCard, ...]
    memory: float
    tags: tuple[str, ...]


@st.composite
def machines(draw: st.DrawFn) -> Drawn:
    sizes = draw(st.lists(st.sampled_from([2, 4, 6, 8, 12, 24]), min_size=1, max_size=4))
    vendor: Vendor = draw(st.sampled_from(["nvidia", "amd"]))
    devices = tuple(
        gpu.model_copy(
            update={
                "free_bytes": draw(st.sampled_from([None, gpu.total_bytes // 2, gpu.total_bytes]))
            }
        )
        for gpu in gpus(*sizes, vendor=vendor)
    )
    if vendor == "amd" and draw(st.booleans()):
        devices = apu(*draw(st.sampled_from([(2, 64, 64), (8, 16, 16), (24, 64, 64), (2, 8, 64)])))
        sizes = [1]
    compute = {"nvidia": "cuda", "amd": "rocm"}[vendor]
    tags = (f"mlx-{compute}", f"llamacpp-{compute}", "llamacpp-cpu", f"command-{MODEL}")
    kinds = st.sampled_from(["gguf", "mlx", "program"])
    cards: list[ModelCard] = []
    for _ in range(draw(st.integers(1, 6))):
        size, kind = draw(st.sampled_from([0.3, 0.9, 2.2, 5.0, 11.0, 30.0])), draw(kinds)
        if kind == "gguf":
            cards.append(
                gguf(
                    size,
                    layers=draw(st.integers(1, 40)),
                    head=draw(st.integers(0, 1)) * 90 * MB,
                    kv=1000,
                )
            )
        elif kind == "mlx":
            cards.append(model((int(size * GB),), compatible_backends=(f"mlx-{compute}",)))
        else:
            used = draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1))
            cards.append(
                model(
                    (int(size * GB),),
                    compatible_backends=(f"command-{MODEL}",),
                    kv=0,
                    memory_bytes=int(size * GB),
                    dtype="command",
                    gpus=tuple(sorted(used)),
                )
            )
    return Drawn(devices, tuple(cards), draw(st.sampled_from([4, 16, 64])), tags)


@settings(max_examples=300, deadline=None)
@given(machines(), st.data())
def test_no_gpu_and_no_memory_is_over_committed_whatever_is_placed_and_unloaded(
    drawn: Drawn, data: st.DataObject
) -> None:
    def now(instances: list[Instance], card: ModelCard) -> NodeCapacity:
        return with_gpus(
            drawn.devices, memory=drawn.memory, instances=tuple(instances), models=(card,),
            backends=drawn.tags, slots=9,
        )  # fmt: skip

    instances: list[Instance] = []
    for number, card in enumerate(drawn.models):
        before = now(instances, card)
        verdict = put(before)
        if isinstance(verdict, Placement):
            made = instance_of(verdict, number, ready=data.draw(st.booleans()))
            assert without(now([*instances, made], card), [made]).devices == tuple(
                replace(room, device=_freed(room.device, made), loading_bytes=other.loading_bytes)
                for room, other in zip(
                    before.devices, now([*instances, made], card).devices, strict=True
                )
            ), "the ledger is as it was"
            assert now(instances, card) == before
            instances.append(made)
        elif instances and data.draw(st.booleans()):
            instances.pop(data.draw(st.integers(0, len(instances) - 1)))
        after = now(instances, card)
        for room in after.devices:
            limit = (
                room.device.total_bytes
                if room.device.free_bytes is None
                else room.device.free_bytes
            )
            reserved = room.reserved_bytes
            assert reserved <= room.ceiling_bytes, "nobody has what another has"
            assert room.loading_bytes <= max(0, limit - KEPT_BYTES)
        mapped = max((gpu.gtt_bytes for gpu in drawn.devices), default=0) - 16 * GB
        assert after.reserved_bytes <= max(after.ceiling_bytes, mapped)
        assert after.loading_bytes <= int(drawn.memory * GB)
        held = Counter[tuple[str, int]]()
        for instance in instances:
            (shard,) = instance.shards
            assert shard.memory_bytes >= 0
            for share in shard.devices:
                held[share.key] += share.bytes_reserved
        assert all(held[room.key] == room.reserved_bytes for room in after.devices)


def _freed(device: Device, made: Instance) -> Device:
    """The GPU with the memory free that the instance leaves."""
    if device.free_bytes is None:
        return device
    left = sum(s.bytes_reserved for s in made.shards[0].devices if s.key == device.key)
    free = min(device.total_bytes, device.free_bytes + left)
    return device.model_copy(update={"free_bytes": free})


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([4, 8, 12, 24]), min_size=1, max_size=3), st.data())
def test_a_plan_reserves_gpus_beside_what_stays_and_gives_all_back(
    sizes: list[int], data: st.DataObject
) -> None:
    there: list[Instance] = []
    devices = gpus(*sizes)
    for number in range(data.draw(st.integers(0, 3))):
        card = gguf(data.draw(st.sampled_from([1.0, 3.0, 6.0])), kv=1000)
        verdict = put(with_gpus(devices, instances=tuple(there), models=(card,), slots=9))
        if isinstance(verdict, Placement):
            there.append(instance_of(verdict, number, ready=True))
    left = list(there)
    promises: list[Promise] = []
    for number in range(2):
        wanted = gguf(data.draw(st.sampled_from([2.0, 5.0, 9.0])), kv=1000)
        bare = with_gpus(devices, instances=tuple(there), models=(wanted,), slots=9)
        (open_,) = reserve([bare], promises)
        victims = [Victim(Copy(one, None, 0.0, 1.0), Yielding(0.0), 1.0) for one in left]
        choice = choose(PlacementSpec(MODEL), [open_], RunnerSizing(max_rows=2), Links(), victims)
        if not isinstance(choice, PoolChoice):
            continue
        gone = tuple(victim.copy.instance for victim in choice.victims)
        promise = Promise(ModelId(f"w{number}"), choice.needs, gone, 1, choice.devices)
        assert holds_by_sum(promise, [open_], promises)
        if choice.placement is None:
            left = [one for one in left if one not in gone]
            promises.append(promise)
    bare = with_gpus(devices, instances=tuple(there), slots=9)
    staying = without(bare, [one for one in there if one not in left])
    planned = Counter[tuple[str, int]]()
    for promise in promises:
        for share in promise.devices.get(bare.id, ()):
            planned[share.key] += share.bytes_reserved
    assert all(
        room.reserved_bytes + planned[room.key] <= room.ceiling_bytes for room in staying.devices
    )
    (held,) = reserve([staying], [replace(promise, leaving=()) for promise in promises])
    assert all(
        after.reserved_bytes == before.reserved_bytes + planned[after.key]
        for before, after in zip(staying.devices, held.devices, strict=True)
    )
    assert reserve([bare], []) == [bare], "a plan that is dropped leaves nothing"


# --- machines that people have ---


@dataclass(frozen=True)
class Machine:
    """A machine, a model in GB, and where it must go: the backend, and GB by GPU (about)."""

    name: str
    devices: tuple[Device, ...]
    memory: float
    tags: tuple[str, ...]
    model: float
    backend: str
    on: tuple[float, ...] = ()
    more: tuple[tuple[str, Any], ...] = ()


APPLE = (Device(vendor="apple", index=0, total_bytes=48 * GB, unified=True),)
CPU = ("mlx-cpu", "llamacpp-cpu")
ROCM = ("mlx-cpu", "llamacpp-rocm", "llamacpp-cpu")
MAC = (("working_set_bytes", 48 * GB),)


def apu(vram: float, gtt: float, memory: float) -> tuple[Device, ...]:
    both = gtt > vram and gtt >= memory
    return gpus(vram, vendor="amd", gtt_bytes=int(gtt * GB), unified=both)


MACHINES = (
    Machine("Mac, 64 GB", APPLE, 64, ("mlx-metal",), 30, "mlx-metal", (), MAC),
    Machine("16 GB PC with a 24 GB card", gpus(24), 16, GPU_TAGS, 18, "llamacpp-cuda", (20.1,)),
    Machine(
        "16 GB PC with a 24 GB card, too large a model", gpus(24), 16, GPU_TAGS, 22, ""
    ),
    Machine("2 x 24 GB in 32 GB", gpus(24, 24), 32, GPU_TAGS, 36, "llamacpp-cuda", (22.3, 17.6)),
    Machine("8 GB card in 64 GB", gpus(8), 64, GPU_TAGS, 30, "llamacpp-cpu"),
    Machine("24 GB + 8 GB in 32 GB", gpus(24, 8), 32, GPU_TAGS, 24, "llamacpp-cuda", (22.5, 4.2)),
    Machine("Strix Halo, half VRAM", apu(64, 120, 64), 64, ROCM, 58.5, "llamacpp-rocm", (63.4,)),
    Machine("Strix Halo, GTT below memory", apu(0.5, 64, 127), 127, ROCM, 58.5, "llamacpp-cpu"),
    Machine("Strix Halo, all mapped", apu(0.5, 124, 124), 124, ROCM, 58.5, "llamacpp-rocm", (0.0,)),
    Machine("CPU only, 32 GB", (), 32, CPU, 18, "llamacpp-cpu"),
)  # fmt: skip


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_a_known_machine_takes_a_model_where_it_has_room(machine: Machine) -> None:
    is_mlx = machine.tags == ("mlx-metal",)
    card = model((int(machine.model * GB) // 32,) * 32) if is_mlx else gguf(machine.model)
    here = with_gpus(
        machine.devices, memory=machine.memory, backends=machine.tags, models=(card,),
        **dict(machine.more),
    )  # fmt: skip
    if not machine.backend:
        refusal = refused(here)
        assert (
            refusal.reason == "insufficient_memory"
            and "NVIDIA GPU 0 has 24.00 GB" in refusal.message
        )
        return
    verdict = placed(here, context_tokens=2048)
    rank = verdict.lead
    assert rank.copy.backend == machine.backend
    assert tuple(share.index for share in rank.devices) == tuple(range(len(machine.on)))
    for share, expected in zip(rank.devices, machine.on, strict=True):
        assert share.bytes_reserved / GB == pytest.approx(expected, abs=1.5)
    needed = rank.need.total - bytes_on(rank.devices)
    if machine.on and not machine.devices[0].unified:
        assert rank.reserved_bytes - bytes_on(rank.devices) == FIXED_BYTES, "its process alone"
    if not machine.on:
        assert needed == rank.need.total, "all of it is memory of the machine"
    plan = plan_of(verdict, Links())["ranks"][0]
    assert [share["bytes_reserved"] for share in plan["devices"]] == [
        share.bytes_reserved for share in rank.devices
    ]


# --- what a refusal says ---


def test_a_refusal_names_the_gpu_and_what_it_lacks() -> None:
    card = gguf(18)
    here = with_gpus(gpus(24, free_bytes=5 * GB), memory=16, models=(card,))
    refusal = refused(here)
    assert refusal.reason == "no_capacity" and refusal.retry_after_s
    assert "NVIDIA GPU 0: 4.46 GB available, 5.00 free" in refusal.message
    assert refusal.facts["devices"][0]["usable_bytes"] == 5 * GB - KEPT_BYTES


def test_a_program_takes_equal_parts_of_the_gpus_that_its_table_names() -> None:
    def program(*wanted: int) -> ModelCard:
        return model(
            (20 * GB,), compatible_backends=(f"command-{MODEL}",), memory_bytes=20 * GB, kv=0,
            dtype="command", gpus=wanted, unsplit_because="one node", tensor_sizes={},
        )  # fmt: skip

    tags = ("mlx-cpu", f"command-{MODEL}")
    here = with_gpus(gpus(24, 12, 12), memory=16, backends=tags, models=(program(1, 2),))
    shares = placed(here).lead.devices
    assert [share.index for share in shares] == [1, 2]
    assert shares[0].bytes_reserved == shares[1].bytes_reserved >= 10 * GB
    lacking = refused(with_gpus(gpus(24), backends=tags, models=(program(0, 3),)))
    assert lacking.reason == "unsupported" and "has no GPU 3" in lacking.message
    small = refused(with_gpus(gpus(24, 8), backends=tags, models=(program(0, 1),)))
    assert "the program divides its memory equally" in small.message
    unseen = with_gpus((), memory=64, backends=tags, models=(program(0),))
    assert placed(unseen).lead.devices == (), "no GPU is known: the machine's memory counts"


def test_a_process_on_a_gpu_needs_some_memory_of_the_machine() -> None:
    here = with_gpus(gpus(24), memory=16, free=0.1, models=(gguf(4),))
    refusal = refused(here)
    assert refusal.reason == "no_capacity" and "memory of the machine: 0.10 free" in refusal.message


def test_nodes_of_one_machine_share_its_gpus() -> None:
    card, devices = gguf(10), gpus(24)
    first = with_gpus(devices, models=(card,), machine="box")
    made = instance_of(placed(first), 1, ready=False)
    other = first.card.model_copy(update={"node": NodeId("n2"), "name": "box2"})
    readings = {card.node: reading(card, 30 * GB) for card in (first.card, other)}
    cards = {card.node: card for card in (first.card, other)}
    both = node_capacities(cards, readings, {made.instance: made})
    assert both[0].devices == both[1].devices
    assert both[1].devices[0].reserved_bytes == bytes_on(made.shards[0].devices) > 0
