"""Which bytes of a model's files a pipeline stage needs.

Pure. A safetensors file begins with the length of its header (8 bytes), the header (JSON: each
tensor's name and place) and then the tensors. A stage needs all headers, because the loader reads
them, and every tensor except those of other stages' layers. The first stage needs the embedding. So
does the last stage if the model has no output projection of its own; otherwise it needs the
projection. All other tensors outside the layers are always needed. A header that exceeds the first
piece is not read; then the whole file is needed. An adapter's file is always needed as a whole,
because the ranks compare adapters.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from bus.models.lora import FOLDER
from bus.wire.cards import ModelCard
from bus.wire.messages.weights import PIECE_BYTES
from worker.models.files import tensors_in
from worker.models.layers import Place, place_of
from worker.models.manifest import piece_count

LENGTH_BYTES = 8
SUFFIX = ".safetensors"
Range = tuple[int, int]
"""A range of bytes in a file: the first byte, and the byte after the last."""


@dataclass(frozen=True, slots=True, order=True)
class Layers:
    """The layers from `first` up to, not including, `last`, of a model with `count` layers."""

    first: int
    last: int
    count: int


def part_wanted(card: ModelCard, first: int, last: int) -> Layers | None:
    """Return the layers that a pipeline stage must fetch; None: the whole model."""
    whole = first <= 0 and last >= card.layers
    if whole or not card.fetched_in_parts:
        return None
    return Layers(first, last, card.layers)


def wanted_pieces(
    heads: Mapping[str, bytes], sizes: Mapping[str, int], layers: Layers
) -> dict[str, bytes]:
    """Return for each file of `heads` (its first piece) one byte per piece: 1 if it is needed."""
    tables = {path: tensor_ranges(head) for path, head in heads.items()}
    places: dict[str, dict[str, Place] | None] = {
        path: None if table is None else {n: place_of(n, layers.count) for n in table}
        for path, table in tables.items()
    }
    readable = [by_name for by_name in places.values() if by_name is not None]
    projects = any("projection" in by_name.values() for by_name in readable)
    wanted: dict[str, bytes] = {}
    for path, table in tables.items():
        count, where = piece_count(sizes[path]), places[path]
        if table is None or where is None or path.startswith(f"{FOLDER}/"):
            wanted[path] = b"\1" * count
            continue
        ranges = [table[n] for n in table if needs(where[n], layers, projects=projects)]
        mask = bytearray(count)
        for first, last in [(0, 1), *ranges]:
            at, end = first // PIECE_BYTES, -(-last // PIECE_BYTES)
            mask[at:end] = b"\1" * (min(end, count) - at)
        wanted[path] = bytes(mask)
    return wanted


def needs(place: Place, layers: Layers, *, projects: bool) -> bool:
    """Return whether a pipeline stage with these layers needs the tensors at `place`. `projects`:
    the files have an output projection of their own."""
    is_last = layers.last >= layers.count
    match place:
        case int(layer):
            return layers.first <= layer < layers.last
        case "embedding":
            return layers.first == 0 or (is_last and not projects)
        case "projection":
            return is_last
        case "rest":
            return True


def tensor_ranges(head: bytes) -> dict[str, Range] | None:
    """Return the byte range of each tensor, by name, in a file that begins with `head`; None if the
    header is incomplete."""
    try:
        (length,) = struct.unpack_from("<Q", head)
        base = LENGTH_BYTES + length
        if base > len(head):
            return None
        tensors = tensors_in(head[LENGTH_BYTES:base])
    except (struct.error, ValueError, KeyError, TypeError, AttributeError):
        return None
    return {tensor.name: (base + tensor.first, base + tensor.last) for tensor in tensors}
