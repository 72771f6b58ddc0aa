"""The memory of a node's GPUs: what is reserved on each, and how a model is divided over several.

Pure. On each GPU 512 MB stay free, for the driver's context and for buffers. A GPU can give

    usable = min(free, total - reserved) - 512 MB

where the free memory is measured, less the reservations of ranks that are still loading. The layers
of a model fill the GPUs in the order of their indices, each with whole layers. A model is divided
as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from bus.wire.accelerators import Device, DeviceKey, DeviceShare

KEPT_BYTES = 512 << 20
"""Memory that stays free on each GPU."""


@dataclass(frozen=True, slots=True)
class DeviceRoom:
    """A GPU with its reservations: their bytes, and the bytes that are not allocated yet (of
    loading ranks)."""

    device: Device
    reserved_bytes: int = 0
    loading_bytes: int = 0

    @property
    def key(self) -> DeviceKey:
        """Return the name of the GPU on its node."""
        return self.device.key

    @property
    def ceiling_bytes(self) -> int:
        """Return the limit in bytes for all models together on this GPU."""
        return max(0, self.device.total_bytes - KEPT_BYTES)

    @property
    def usable_bytes(self) -> int:
        """Return the bytes available to one more model. If the free memory is not measured, only
        reservations count."""
        left = self.ceiling_bytes - self.reserved_bytes
        free = self.device.free_bytes
        if free is not None:
            left = min(left, free - self.loading_bytes - KEPT_BYTES)
        return max(0, left)


@dataclass(frozen=True, slots=True)
class Home:
    """The GPUs of a node on which a backend keeps a model, in index order.

    `parts`: the relative sizes of the pieces that cannot be divided (layers, and the output layer),
    in order; empty: the model is one piece. `is_even`: the program divides its memory equally over
    all these GPUs. `spills`: the one GPU is part of an APU, and what its own memory does not hold
    is in the memory of the machine.
    """

    keys: tuple[DeviceKey, ...]
    parts: tuple[int, ...] = ()
    is_even: bool = False
    spills: bool = False


def device_rooms(home: Home, devices: Iterable[DeviceRoom]) -> list[DeviceRoom]:
    """Return the GPUs of a home, in its order."""
    by_key = {room.key: room for room in devices}
    return [by_key[key] for key in home.keys if key in by_key]


def usable_in(home: Home, rooms: Sequence[int]) -> int:
    """Return how many bytes of a model certainly fit on the GPUs of a home, of which `rooms` are
    the free bytes.

    A GPU that is filled with whole layers may keep less than one layer free, except the last. So n
    GPUs hold a model of B bytes, whose largest layer has p x B, if B + (n - 1) x p x B is at most
    their sum. GPUs with too little room for that are left out.
    """
    if not rooms:
        return 0
    if home.is_even:
        return len(rooms) * min(rooms)
    pieces = home.parts or (1,)
    total, largest = sum(pieces), max(pieces)
    if total <= 0:
        return max(rooms)
    best, sum_of = 0, 0
    for others, room in enumerate(sorted(rooms, reverse=True)):
        sum_of += room
        best = max(best, max(0, sum_of - others) * total // (total + others * largest))
    return best


def divided(
    home: Home, rooms: Sequence[int], size_bytes: int
) -> tuple[tuple[int, int], ...] | None:
    """Return (bytes, layers) on each GPU of a home if a model of `size_bytes` fits as a whole into
    `rooms`; else None. It fits whenever `size_bytes` is at most `usable_in(home, rooms)`. `layers`
    is 0 if shoal does not divide the model by layers."""
    if home.is_even:
        each = -(-size_bytes // len(rooms)) if rooms else 0
        return tuple((each, 0) for _ in rooms) if rooms and each <= min(rooms) else None
    pieces = home.parts or (1,)
    total = sum(pieces)
    if total <= 0:
        return None
    bounds = [size_bytes * piece // total for piece in accumulate(pieces, initial=0)]
    sizes = [after - before for before, after in pairwise(bounds)]
    shares: list[tuple[int, int]] = []
    first = 0
    for room in rooms:
        last, taken = first, 0
        while last < len(sizes) and taken + sizes[last] <= room:
            taken += sizes[last]
            last += 1
        shares.append((taken, last - first))
        first = last
    if first < len(sizes):
        return None
    return tuple(shares) if home.parts else tuple((taken, 0) for taken, _ in shares)


def shares_of(home: Home, rooms: Sequence[int], size_bytes: int) -> tuple[DeviceShare, ...] | None:
    """Return what a model of `size_bytes` reserves on each GPU that it uses, in index order; None
    if it does not fit as a whole. On an APU the rest is memory of the machine."""
    if len(rooms) != len(home.keys):
        return None
    taken = ((min(size_bytes, *rooms), 0),) if home.spills else divided(home, rooms, size_bytes)
    if taken is None:
        return None
    return tuple(
        DeviceShare(vendor=vendor, index=index, bytes_reserved=on_it, layers=layers)
        for (vendor, index), (on_it, layers) in zip(home.keys, taken, strict=True)
        if on_it or home.spills
    )
