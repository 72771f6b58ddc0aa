"""Which bytes of a model's files one stage of a pipeline needs.

Pure. A safetensors file begins with the length of its header (8 bytes), the header (JSON: each
tensor's name and place) and then the tensors. A stage needs the headers, for the loader looks
at all of them, and every tensor but those that belong to layers of others: the embedding where
it is first, or last in a model without a projection of its own; the projection where it is last.
What belongs to no layer is always needed. A header that does not lie within the first piece is
not read: then the whole file is needed, as is that of an adapter, which ranks compare.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from bus.wire.cards import ModelCard
from bus.wire.lora import FOLDER
from bus.wire.messages.weights import PIECE_BYTES
from worker.models.files import tensors_in
from worker.models.layers import Place, place_of
from worker.models.manifest import piece_count

LENGTH_BYTES = 8
SUFFIX = ".safetensors"
Range = tuple[int, int]
"""Bytes of a file: first, and the one after the last."""


@dataclass(frozen=True, slots=True, order=True)
class Layers:
    """Layers `first` up to, not including, `last` of `count`."""

    first: int
    last: int
    count: int


def part_wanted(card: ModelCard, first: int, last: int) -> Layers | None:
    """Return the layers to fetch of a model for a stage of a pipeline; None: the whole model."""
    whole = first <= 0 and last >= card.layers
    if whole or not card.fetched_in_parts:
        return None
    return Layers(first, last, card.layers)


def wanted_pieces(
    heads: Mapping[str, bytes], sizes: Mapping[str, int], layers: Layers
) -> dict[str, bytes]:
    """Return for each file of `heads` (its first piece) one byte for each piece: 1 where it is
    needed."""
    tables = {path: tensor_ranges(head) for path, head in heads.items()}
    places: dict[str, dict[str, Place] | None] = {
        path: None if table is None else {n: place_of(n, layers.count) for n in table}
        for path, table in tables.items()
    }
    known = [found for found in places.values() if found is not None]
    projects = any("projection" in found.values() for found in known)
    found: dict[str, bytes] = {}
    for path, table in tables.items():
        count, where = piece_count(sizes[path]), places[path]
        if table is None or where is None or path.startswith(f"{FOLDER}/"):
            found[path] = b"\1" * count
            continue
        ranges = [table[n] for n in table if needs(where[n], layers, projects=projects)]
        mask = bytearray(count)
        for first, last in [(0, 1), *ranges]:
            at, end = first // PIECE_BYTES, -(-last // PIECE_BYTES)
            mask[at:end] = b"\1" * (min(end, count) - at)
        found[path] = bytes(mask)
    return found


def needs(place: Place, layers: Layers, *, projects: bool) -> bool:
    """Return whether a stage of these layers uses a tensor; `projects`: the files hold a
    projection."""
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
    """Return where each tensor lies in a file that begins so; None where its header is not
    whole."""
    try:
        (length,) = struct.unpack_from("<Q", head)
        base = LENGTH_BYTES + length
        if base > len(head):
            return None
        found = tensors_in(head[LENGTH_BYTES:base])
    except (struct.error, ValueError, KeyError, TypeError, AttributeError):
        return None
    return {one.name: (base + one.first, base + one.last) for one in found}
