"""The division of a model over several GPUs.

Pure. The layers of a model fill the GPUs in the order of their indices, each with whole layers. A
model is divided as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from bus.wire.accelerators import DeviceShare
from master.placement.gpus.rooms import Home


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
