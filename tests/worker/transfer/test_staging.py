"""A stage on a real disk, whatever state it was left in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bus.wire.ids import ModelId
from bus.wire.messages.weights import PIECE_BYTES, Manifest
from tests.worker.transfer.test_download import files_of, manifest_for
from worker.models.files import ORIGIN_FILE, origin_of
from worker.models.local_models import STAGING
from worker.transfer.file_checks import FileChecks
from worker.transfer.pieces import Piece, Pieces
from worker.transfer.staging import KEPT_S, PlaceTaken, Stage, begun, sweep

M = ModelId("m")
FILES = files_of(pieces=3)
MANIFEST = manifest_for(FILES)
BIG = "model.safetensors"


def never() -> bool:
    return False


def part(piece: Piece) -> bytes:
    return FILES[piece.path][piece.offset : piece.offset + PIECE_BYTES]


def pieces() -> list[Piece]:
    return [
        Piece(path, index)
        for path, found in FILES.items()
        for index in range(-(-len(found) // PIECE_BYTES))
    ]


def opened(models: Path, manifest: Manifest = MANIFEST) -> Stage:
    stage = Stage(models, manifest)
    stage.open(never)
    return stage


def filled(models: Path) -> Stage:
    stage = opened(models)
    for piece in pieces():
        stage.write(piece, part(piece))
    return stage


def test_what_was_written_is_there_when_the_stage_is_opened_again(tmp_path: Path) -> None:
    stage = opened(tmp_path)
    stage.write(Piece(BIG, 2), part(Piece(BIG, 2)))
    stage.write(Piece("config.json", 0), b"{}")
    assert stage.check("config.json", never) == ()
    again = Stage(tmp_path, MANIFEST).open(never)
    assert again.have == {BIG: b"\0\0\1\0", "config.json": b"\1", "empty.txt": b""}
    assert again.free_bytes > 0
    assert begun(tmp_path, M) == {MANIFEST.digest} and not begun(tmp_path, ModelId("x"))


def test_a_whole_model_is_checked_published_and_its_stages_are_gone(tmp_path: Path) -> None:
    opened(tmp_path, manifest_for(files_of(2, 1)))
    stage = filled(tmp_path)
    assert all(stage.check(path, never) == () for path in FILES)
    assert stage.publish(never, ["n2"]) == tmp_path / "m"
    origin = origin_of(tmp_path / "m")
    assert origin[:3] == ("copied", ("n2",), "")
    assert origin.files == {entry.path: entry.sha256 for entry in MANIFEST.files}
    (tmp_path / "m" / ORIGIN_FILE).unlink()
    assert {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()} == FILES
    assert list((tmp_path / STAGING).iterdir()) == []


def test_a_check_names_the_pieces_that_are_wrong_and_they_can_be_taken_back(tmp_path: Path) -> None:
    stage = filled(tmp_path)
    with open(tmp_path / STAGING / MANIFEST.digest / "files" / BIG, "r+b") as file:
        for offset in (5, 3 * PIECE_BYTES + 1):
            file.seek(offset)
            file.write(b"??")
    assert stage.check(BIG, never) == (0, 3)
    stage.spoil(BIG, (0, 3))
    again = Stage(tmp_path, MANIFEST).open(never)
    assert again.have[BIG] == b"\0\1\1\0"


def test_a_file_that_was_found_right_in_an_earlier_life_is_hashed_again(tmp_path: Path) -> None:
    stage = filled(tmp_path)
    assert all(stage.check(path, never) == () for path in FILES)
    with open(tmp_path / STAGING / MANIFEST.digest / "files" / "config.json", "r+b") as file:
        file.write(b"??")  # as after a power cut, or by hand
    again = Stage(tmp_path, MANIFEST)
    checks = FileChecks(M, 0, 0.0)
    checks.begin(MANIFEST, again.open(never), 0.0)
    assert checks.unchecked == set(FILES), "none of them is published before it is hashed"
    assert again.check("config.json", never) == (0,)


def test_a_manifest_whose_whole_hash_is_wrong_is_told_from_a_rotten_disk(tmp_path: Path) -> None:
    lie = [
        entry.model_copy(update={"sha256": "0" * 64}) if entry.path == BIG else entry
        for entry in MANIFEST.files
    ]
    stage = Stage(tmp_path, MANIFEST.model_copy(update={"files": tuple(lie)}))
    stage.open(never)
    for piece in pieces():
        stage.write(piece, part(piece))
    assert stage.check(BIG, never) is None


def test_a_model_that_came_another_way_stays_and_what_is_none_is_in_the_way(tmp_path: Path) -> None:
    there = tmp_path / "m"
    there.mkdir()
    (there / "notes.txt").write_text("mine")
    with pytest.raises(PlaceTaken):
        filled(tmp_path).publish(never)
    (there / "config.json").write_text("{}")
    (there / BIG).write_bytes(b"")
    opened(tmp_path).publish(never)
    assert (there / "notes.txt").read_text() == "mine" and (there / BIG).read_bytes() == b""


def test_old_stages_and_those_that_publishing_left_are_swept(tmp_path: Path) -> None:
    names = {}
    for seed, age_s in ((1, 0.0), (2, KEPT_S - 60.0), (3, KEPT_S + 60.0), (4, 0.0)):
        manifest = manifest_for(files_of(seed, 1))
        opened(tmp_path, manifest)
        note = tmp_path / STAGING / manifest.digest / "stage.json"
        os.utime(note, (1e9 - age_s, 1e9 - age_s))
        names[seed] = manifest.digest
    (tmp_path / STAGING / names[4] / "files").rename(tmp_path / "published")
    sweep(tmp_path, 1e9)
    assert {stage.name for stage in (tmp_path / STAGING).iterdir()} == {names[1], names[2]}
    sweep(tmp_path / "no such folder", 1e9)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    written=st.sets(st.sampled_from(pieces())),
    noted=st.sets(st.sampled_from(pieces())),
    damage=st.sampled_from(["none", "no note", "short note", "long note", "no file", "short file"]),
)
def test_whatever_a_crash_left_the_model_is_right_in_the_end(
    tmp_path_factory: pytest.TempPathFactory,
    written: set[Piece],
    noted: set[Piece],
    damage: str,
) -> None:
    """`noted` without `written` is a power failure: the note reached the disk, the data did not."""
    models = tmp_path_factory.mktemp("models")
    stage = opened(models)
    for piece in written | noted:
        stage.write(piece, part(piece) if piece in written else bytes(len(part(piece))))
    folder = models / STAGING / MANIFEST.digest
    note = folder / "have" / str([entry.path for entry in MANIFEST.files].index(BIG))
    match damage:
        case "no note":
            note.unlink()
        case "short note":
            note.write_bytes(b"\1")
        case "long note":
            note.write_bytes(b"\1" * 99)
        case "no file":
            (folder / "files" / BIG).unlink()
        case "short file":
            os.truncate(folder / "files" / BIG, 10)
        case _:
            pass
    stage = Stage(models, MANIFEST)
    found = Pieces(MANIFEST, stage.open(never))
    for _ in range(2):
        while (piece := found.next()) is not None:
            assert found.take(piece.path, piece.offset, part(piece)) == "new"
            stage.write(piece, part(piece))
        for path in FILES:
            bad = stage.check(path, never)
            assert bad is not None
            stage.spoil(path, bad)
            found.spoil(path, bad)
    assert found.complete
    place = stage.publish(never)
    (place / ORIGIN_FILE).unlink()
    assert {path.name: path.read_bytes() for path in place.iterdir()} == FILES
