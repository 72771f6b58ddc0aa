"""Ranks of the bundled model that several tests ask: one alone, pipelines, a tensor group.

A test that kills or freezes a rank, or gives one a fault, has a group of its own (`ready_group`).
What is asked of a shared one stays in its prefix cache, so counts of cached tokens are compared
only for prompts that one test alone uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count

from tests.harness.ranks import Layers, one_gateway, ready_group, stages
from tests.harness.shared_things import SharedThings
from tests.harness.slot import ROOT, FakeGateway, Slot

TINY = ROOT / "conf" / "tiny"
LAYERS = 8
PIPELINE_2 = stages(LAYERS, 2)
PIPELINE_3 = [(7, 8), (4, 7), (0, 4)]
TENSOR_2 = [(0, LAYERS)] * 2

SHARED = SharedThings()
_numbers = count(1)


@contextmanager
def shared_group(sharding: str, layers: Layers) -> Iterator[tuple[list[Slot], FakeGateway]]:
    """The group of this shape, started where it is not there yet, and a gateway of its own."""
    slots, _ = SHARED.get(f"{sharding} {layers}", lambda: ready_group(TINY, sharding, layers))
    assert all(slot.process.poll() is None for slot in slots), "an earlier test ended a rank"
    for slot in slots:
        slot.listen()
    with closing(FakeGateway(slots[0], f"gw-{next(_numbers)}")) as gateway:
        yield slots, gateway


@contextmanager
def shared_rank() -> Iterator[FakeGateway]:
    """One rank that has the whole model, and a gateway of its own."""
    slot = SHARED.get("one rank", lambda: one_gateway(TINY)).slot
    assert slot.process.poll() is None, "an earlier test ended the rank"
    slot.listen()
    with closing(FakeGateway(slot, f"gw-{next(_numbers)}")) as gateway:
        yield gateway
