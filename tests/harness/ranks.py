"""A group of runner slots as real processes with a real ring on loopback, and its one gateway."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bus.wire.messages.control import GroupSpec, RankSeat
from tests.harness.ports import free_ports
from tests.harness.slot import ROOT, FakeGateway, Slot, started_slot

Layers = Sequence[tuple[int, int]]


def stages(layers: int, ranks: int) -> Layers:
    """Even stages of a pipeline, rank 0 the last."""
    cuts = [layers * cut // ranks for cut in range(ranks + 1)]
    return [(cuts[ranks - 1 - rank], cuts[ranks - rank]) for rank in range(ranks)]


TINY = ROOT / "conf" / "tiny"
LAYERS = 8
PIPELINE_2 = stages(LAYERS, 2)
PIPELINE_3 = [(7, 8), (4, 7), (0, 4)]
TENSOR_2 = [(0, LAYERS)] * 2
"""Shapes of groups of the bundled model."""


def group_spec(sharding: str, layers: Layers, **changes: Any) -> GroupSpec:
    ports = free_ports(len(layers) + 1)
    seats = tuple(
        RankSeat(
            rank=rank,
            node=f"node-{rank}",
            first_layer=first,
            last_layer=last,
            ring=(f"127.0.0.1:{ports[rank]}",),
            plans=(f"tcp://127.0.0.1:{ports[-1]}",) if rank == 0 else (),
        )
        for rank, (first, last) in enumerate(layers)
    )
    fields = {"sharding": sharding, "ranks": seats, "secret": secrets.token_hex(32)}
    return GroupSpec.model_validate(fields | changes)


@contextlib.contextmanager
def one_gateway(model: Path) -> Iterator[FakeGateway]:
    """A gateway of a model that one rank holds."""
    with (
        tempfile.TemporaryDirectory(prefix="shoal-one-") as home,
        started_slot(Path(home), model) as slot,
    ):
        slot.ready()
        with contextlib.closing(FakeGateway(slot)) as gateway:
            yield gateway


@contextlib.contextmanager
def started_ranks(
    model: Path,
    group: GroupSpec,
    *,
    faults: Mapping[int, str] | None = None,
    models: Mapping[int, Path] | None = None,
    **changes: Any,
) -> Iterator[list[Slot]]:
    """A process for every rank, not yet told what to be; all ended by their own pids. `faults`
    by rank are those of `faulty_runner`; `models` the folders of ranks that have another."""
    with contextlib.ExitStack() as stack:
        slots: list[Slot] = []
        for seat in group.ranks:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-rank-")))
            fields = {
                "rank": seat.rank,
                "size": len(group.ranks),
                "first_layer": seat.first_layer,
                "last_layer": seat.last_layer,
                "group": group,
            }
            fault = (faults or {}).get(seat.rank, "")
            own = (models or {}).get(seat.rank, model)
            slots.append(
                stack.enter_context(started_slot(home, own, fault=fault, **fields | changes))
            )
        yield slots


def become(slots: Sequence[Slot]) -> None:
    """Tell every rank what to be."""
    for slot in slots:
        slot.until(lambda slot=slot: bool(slot.hellos), "a first hello")
        slot.tell(slot.spec)


def until_ready(slots: Sequence[Slot], seconds: float = 60.0) -> None:
    for slot in slots:
        slot.until(lambda slot=slot: slot.phase in ("ready", "ended"), "ready", seconds)
        assert slot.phase == "ready", slot.hellos[-1].message


@contextlib.contextmanager
def ready_group(
    model: Path, sharding: str, layers: Layers, *, seconds: float = 60.0, **changes: Any
) -> Iterator[tuple[list[Slot], FakeGateway]]:
    """A group that serves (within `seconds`), and a gateway of its lead's."""
    with started_ranks(model, group_spec(sharding, layers), **changes) as slots:
        become(slots)
        until_ready(slots, seconds)
        gateway = FakeGateway(slots[0])
        try:
            yield slots, gateway
        finally:
            gateway.close()
