"""A stage's part of a model: which bytes, fetched, kept, resumed, completed, told from a whole."""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.models.model_folders import STAGING
from bus.wire.cards import ModelCard, covers
from bus.wire.ids import ModelId
from bus.wire.messages.weights import PIECE_BYTES, Manifest
from tests.worker.models.test_weights import CONFIG
from tests.worker.transfer.test_download import entry
from tests.worker.transfer.test_store import Lan, content
from worker.models.layer_bytes import (
    Layers,
    needs,
    part_wanted,
    tensor_ranges,
    wanted_pieces,
)
from worker.models.layers import Place
from worker.models.local_models import files_of, held_layers, parts_held
from worker.models.manifest import manifest_of, piece_count
from worker.models.weights import Shelf, Weights
from worker.transfer.pieces import Piece, Pieces, Staged
from worker.transfer.staging import KEPT_S, Stage, sweep

M = ModelId("m")
COUNT = 8
FILE = "model.safetensors"


def safetensors(tensors: dict[str, int], seed: int = 1) -> bytes:
    """A file of tensors with random bytes of so many lengths."""
    header: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    at = 0
    for name, length in tensors.items():
        header[name] = {"dtype": "U8", "shape": [length], "data_offsets": [at, at + length]}
        at += length
    said = json.dumps(header).encode()
    return struct.pack("<Q", len(said)) + said + random.Random(seed).randbytes(at)


def tensors_of(layer_bytes: int = 1_500_000, *, tied: bool = False) -> dict[str, int]:
    layers = {f"model.layers.{n}.mlp.weight": layer_bytes for n in range(COUNT)}
    ends = {} if tied else {"lm_head.weight": 900_000}
    return {"model.embed_tokens.weight": 900_000, **layers, "model.norm.weight": 64, **ends}


def shards(tied: bool = False) -> dict[str, bytes]:
    """A model in three files, as an index would name them."""
    tensors = list(tensors_of(tied=tied).items())
    files = {f"model-{n}.safetensors": safetensors(dict(tensors[n::3]), seed=n) for n in range(3)}
    return {"config.json": json.dumps({**CONFIG, "num_hidden_layers": COUNT}).encode(), **files}


def manifest(files: dict[str, bytes]) -> Manifest:
    return manifest_of(M, [entry(path, found) for path, found in files.items()])


def bytes_needed(files: dict[str, bytes], names: set[str]) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for path, whole in files.items():
        if path.endswith(".safetensors"):
            table = tensor_ranges(whole)
            assert table is not None
            found[path] = [table[name] for name in table if name in names]
    return found


LATE = {**shards(), "tokenizer.json": bytes(range(256)) * 12_000}
LATE_SHOWN = manifest(LATE)

# --- which bytes ---


@settings(max_examples=30)
@given(st.integers(0, COUNT - 1), st.integers(1, COUNT), st.booleans(), st.integers(1, 3_000_000))
def test_every_byte_of_a_wanted_tensor_lies_in_a_wanted_piece_and_little_else(
    first: int, size: int, tied: bool, layer_bytes: int
) -> None:
    layers = Layers(first, min(COUNT, first + size), COUNT)
    whole = safetensors(tensors_of(min(layer_bytes, 300_000), tied=tied))
    table = tensor_ranges(whole[:PIECE_BYTES])
    assert table is not None
    (mask,) = wanted_pieces({FILE: whole[:PIECE_BYTES]}, {FILE: len(whole)}, layers).values()
    assert len(mask) == piece_count(len(whole)) and mask[0]
    own = {f"model.layers.{n}.mlp.weight" for n in range(layers.first, layers.last)}
    ends = {"model.norm.weight"}
    if layers.first == 0 or (layers.last == COUNT and tied):
        ends.add("model.embed_tokens.weight")
    if layers.last == COUNT:
        ends.add("lm_head.weight")
    touched = {0}
    for name in (own | ends) & set(table):
        start, end = table[name]
        touched |= set(range(start // PIECE_BYTES, -(-end // PIECE_BYTES)))
    assert {n for n, one in enumerate(mask) if one} == touched


@pytest.mark.parametrize(
    "head",
    [b"", b"\0" * 8, struct.pack("<Q", PIECE_BYTES) + b"{", struct.pack("<Q", 4) + b"[1]]",
     struct.pack("<Q", 9) + b'{"a": 1}}', struct.pack("<Q", 1 << 60) + b"{}"],
)  # fmt: skip
def test_a_header_that_cannot_be_read_means_the_whole_file(head: bytes) -> None:
    size = 3 * PIECE_BYTES
    masks = wanted_pieces({FILE: head}, {FILE: size}, Layers(0, 1, COUNT))
    assert masks == {FILE: b"\1\1\1"}


def test_an_adapter_is_needed_whole() -> None:
    whole = safetensors(tensors_of(300_000, tied=True))
    heads = dict.fromkeys((FILE, "adapters/a/adapters.safetensors"), whole[:PIECE_BYTES])
    masks = wanted_pieces(heads, dict.fromkeys(heads, len(whole)), Layers(0, 1, COUNT))
    assert 0 in masks[FILE]
    assert set(masks["adapters/a/adapters.safetensors"]) == {1}


@pytest.mark.parametrize(
    ("place", "layers", "projects", "needed"),
    [
        ("embedding", Layers(0, 2, COUNT), True, True),
        ("embedding", Layers(2, 4, COUNT), False, False),
        ("embedding", Layers(6, 8, COUNT), True, False),
        ("embedding", Layers(6, 8, COUNT), False, True),
        ("projection", Layers(0, 2, COUNT), True, False),
        ("projection", Layers(6, 8, COUNT), True, True),
        ("rest", Layers(2, 4, COUNT), True, True),
        (3, Layers(2, 4, COUNT), True, True),
        (4, Layers(2, 4, COUNT), True, False),
    ],
)
def test_the_embedding_is_the_projection_unless_some_file_has_one(
    place: Place, layers: Layers, projects: bool, needed: bool
) -> None:
    assert needs(place, layers, projects=projects) is needed


def test_spans_cover_layers_together_and_gaps_do_not() -> None:
    assert covers([(0, 3), (3, 6)], 1, 5)
    assert not covers([(0, 3), (4, 6)], 1, 5)
    assert not covers([], 0, 1)


def test_only_families_that_were_shown_and_true_parts_are_fetched_in_part() -> None:
    card = ModelCard(
        model=M, path="/x", family="llama", layers=8, weights_bytes=1, size_bytes=1,
        kv_bytes_per_token=1, context_tokens=1, vocabulary=1, fetched_in_parts=True,
    )  # fmt: skip
    assert part_wanted(card, 2, 4) == Layers(2, 4, 8)
    assert part_wanted(card, 0, 8) is None
    assert part_wanted(card.model_copy(update={"fetched_in_parts": False}), 2, 4) is None


# --- pieces ---


def taken(pieces: Pieces, files: dict[str, bytes]) -> list[Piece]:
    asked: list[Piece] = []
    while (piece := pieces.next()) is not None:
        asked.append(piece)
        sent = files[piece.path][piece.offset : piece.offset + PIECE_BYTES]
        assert pieces.take(piece.path, piece.offset, sent) == "new"
    return asked


def test_first_pieces_come_first_and_then_only_what_they_say_is_needed() -> None:
    files = shards()
    layers = Layers(2, 4, COUNT)
    pieces = Pieces(manifest(files), Staged({}, 1 << 60), layers)
    asked = taken(pieces, files)
    heads = [piece for piece in asked if piece.index == 0]
    assert asked[: len(heads)] == heads and len(heads) == len(files)
    assert pieces.complete and pieces.done_bytes == pieces.total_bytes
    assert pieces.total_bytes < 0.6 * sum(map(len, files.values()))
    assert sorted(pieces.finished()) == sorted(files)
    needed = bytes_needed(files, {f"model.layers.{n}.mlp.weight" for n in (2, 3)})
    got = {(piece.path, piece.index) for piece in asked}
    for path, ranges in needed.items():
        for start, end in ranges:
            assert all((path, at // PIECE_BYTES) in got for at in range(start, end, 4096))


@settings(max_examples=15)
@given(st.randoms(use_true_random=False), st.integers(0, COUNT - 1))
def test_no_piece_is_given_out_twice_however_late_the_first_ones_come(
    chance: random.Random, first: int
) -> None:
    files, nothing = LATE, Staged({}, 1 << 60)
    pieces = Pieces(LATE_SHOWN, nothing, Layers(first, COUNT, COUNT))
    given: list[Piece] = []
    open_now: list[Piece] = []
    while True:
        piece = pieces.next() if len(open_now) < 4 else None
        if piece is not None:
            given.append(piece)
            open_now.append(piece)
        if not open_now:
            break
        if piece is None or chance.random() < 0.4:
            sent = open_now.pop(chance.randrange(len(open_now)))
            got = files[sent.path][sent.offset : sent.offset + PIECE_BYTES]
            assert pieces.take(sent.path, sent.offset, got) == "new"
    assert len(set(given)) == len(given)
    assert pieces.complete and sorted(pieces.finished()) == sorted(files)


def test_a_part_goes_on_from_what_a_stage_holds_and_the_whole_from_the_part() -> None:
    files = shards()
    shown = manifest(files)
    nothing = Staged({}, 1 << 60)
    asked = taken(Pieces(shown, nothing, Layers(2, 4, COUNT)), files)
    have = {one.path: bytearray(piece_count(one.size_bytes)) for one in shown.files}
    for piece in asked:
        have[piece.path][piece.index] = 1
    heads = {path: found[:PIECE_BYTES] for path, found in files.items() if path != "config.json"}
    staged = replace(nothing, have={path: bytes(bits) for path, bits in have.items()}, heads=heads)
    again = Pieces(shown, staged, Layers(2, 4, COUNT))
    assert again.complete and taken(again, files) == []
    more = taken(Pieces(shown, staged, Layers(2, 6, COUNT)), files)
    assert more and not set(more) & set(asked)
    rest = taken(Pieces(shown, staged), files)
    assert not set(rest) & set(asked)
    assert len(rest) + len(asked) == sum(piece_count(len(found)) for found in files.values())


# --- the disk ---


def part_on_disk(models: Path, files: dict[str, bytes], layers: Layers) -> Stage:
    shown = manifest(files)
    stage = Stage(models, shown)
    pieces = Pieces(shown, stage.open(never), layers)
    while (piece := pieces.next()) is not None:
        sent = files[piece.path][piece.offset : piece.offset + PIECE_BYTES]
        pieces.take(piece.path, piece.offset, sent)
        stage.write(piece, sent)
    for path in pieces.finished():
        assert stage.check(path, never, pieces.wanted_pieces(path)) == ()
    stage.keep(layers, never)
    return stage


def never() -> bool:
    return False


def test_a_part_is_no_model_of_this_node_and_says_what_it_is(tmp_path: Path) -> None:
    files = shards()
    part_on_disk(tmp_path, files, Layers(2, 4, COUNT))
    assert Weights(Shelf({}, (tmp_path,), None, float32=True)).look() == ()
    (part,) = parts_held(tmp_path)
    assert (part.model, part.layers) == (M, ((2, 4),))
    assert part.size_bytes == sum(map(len, files.values()))
    assert 0 < part.have_bytes < 0.6 * part.size_bytes
    card = Weights(Shelf({}, (), None, float32=True)).card(M, files_of(Path(part.path)))
    assert card is not None and card.layers == COUNT
    used = sum(os.stat(path).st_blocks * 512 for path in files_of(Path(part.path)).rglob("*"))
    assert used < 0.7 * part.size_bytes, "what did not come takes no room"


def test_a_part_whose_bytes_went_bad_is_found_and_is_one_no_more(tmp_path: Path) -> None:
    files = shards()
    stage = part_on_disk(tmp_path, files, Layers(2, 4, COUNT))
    (part,) = parts_held(tmp_path)
    path = "model-0.safetensors"
    with open(files_of(Path(part.path)) / path, "r+b") as file:
        file.write(b"\xff" * 64)
    wanted = b"\1" + bytes(piece_count(len(files[path])) - 1)
    assert stage.check(path, never, wanted) == (0,)
    stage.spoil(path, (0,))
    assert parts_held(tmp_path) == ()


def test_a_part_is_kept_however_old_and_a_stage_that_is_none_is_not(tmp_path: Path) -> None:
    part_on_disk(tmp_path, shards(), Layers(2, 4, COUNT))
    Stage(tmp_path, manifest(shards(tied=True))).open(never)
    now = max(path.stat().st_mtime for path in (tmp_path / STAGING).iterdir())
    sweep(tmp_path, now + 2 * KEPT_S)
    (left,) = (tmp_path / STAGING).iterdir()
    assert held_layers(left) == ((2, 4),)


def test_a_file_that_was_cut_short_makes_a_part_none(tmp_path: Path) -> None:
    files = shards()
    stage = part_on_disk(tmp_path, files, Layers(2, 4, COUNT))
    (part,) = parts_held(tmp_path)
    os.truncate(files_of(Path(part.path)) / "model-1.safetensors", 10)
    stage.open(never)
    assert parts_held(tmp_path) == ()


# --- over the network ---


@pytest.fixture
def lan(tmp_path: Path) -> Iterator[Lan]:
    made = Lan(tmp_path)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("single", [False, True])
def test_a_part_comes_over_the_network_then_another_then_the_whole(
    lan: Lan, tmp_path: Path, single: bool
) -> None:
    files = shards()
    if single:
        files = {"config.json": files["config.json"], FILE: safetensors(tensors_of())}
    folder = tmp_path / "far"
    folder.mkdir()
    for path, found in files.items():
        (folder / path).write_bytes(found)
    total = sum(map(len, files.values()))
    getter, store = lan.getter(), lan.store(folder)
    came: list[int] = []
    for attempt, layers in enumerate((Layers(2, 4, COUNT), Layers(4, 6, COUNT), None)):
        getter.want("m", store.address, attempt=attempt, layers=layers)
        place = lan.fetched(getter)
        came.append(getter.news("m").received_bytes)
        assert place.exists() is (layers is None)
        if layers is not None:
            spans = [part.layers for part in parts_held(getter.models)]
            assert spans == [((2, 4), (4, 6))[: attempt + 1]]
    assert came[0] < 0.6 * total and came[1] < came[0]
    assert sum(came) == total, "nothing came twice"
    assert content(getter.models / "m") == files
    assert parts_held(getter.models) == ()
