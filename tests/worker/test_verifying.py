"""A model's files held against what they are to be: over real folders with one thing wrong."""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from worker.models.file_hashes import Interrupted
from worker.models.files import Origin, note_origin
from worker.verifying import total_bytes, verify

HEADER = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
FILES = {
    "config.json": b"{}",
    "model.safetensors": struct.pack("<Q", len(HEADER)) + HEADER + bytes(16),
    "tokenizer.json": random.Random(3).randbytes(70_000),
}


def never() -> bool:
    return False


def git_hash(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


def put(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def fetched(tmp_path: Path) -> Path:
    """A model that came with hashes of both kinds."""
    folder = put(tmp_path / "m")
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    hashes["config.json"] = git_hash(FILES["config.json"])
    note_origin(folder, Origin("pulled", ("o/m",), "c", hashes))
    return folder


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_model_as_it_came_is_well_and_every_byte_is_read(fetched: Path) -> None:
    read: list[int] = []
    found = verify(fetched, read.append, never)
    assert (found.against, found.files, found.wrong, found.unlisted) == ("hashes", 3, (), 0)
    assert sum(read) == total_bytes(fetched) == sum(map(len, FILES.values()))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (flip, "the hash is"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "the hash is"),
        (lambda path: path.unlink(), "the file is missing"),
    ],
)
@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_that_is_not_as_it_came_is_named(
    fetched: Path, name: str, spoil: Callable[[Path], None], words: str
) -> None:
    spoil(fetched / name)
    found = verify(fetched, lambda _: None, never)
    (wrong,) = found.wrong
    assert wrong.path == name and words in wrong.what and found.wrong_count == 1


def test_what_was_added_has_no_hash_and_what_a_note_names_elsewhere_is_not_read(
    fetched: Path,
) -> None:
    (fetched / "card.toml").write_text("")
    assert verify(fetched, lambda _: None, never).unlisted == 1
    note_origin(fetched, Origin("pulled", files={"../../etc/hostname": "0" * 64}))
    (wrong,) = verify(fetched, lambda _: None, never).wrong
    assert wrong.what == "the file is missing"


def test_of_what_a_person_put_there_a_cut_file_is_found_and_a_flipped_byte_is_not(
    tmp_path: Path,
) -> None:
    folder = put(tmp_path / "m")
    flip(folder / "model.safetensors")
    found = verify(folder, lambda _: None, never)
    assert (found.against, found.wrong) == ("headers", ())
    (folder / "model.safetensors").write_bytes(FILES["model.safetensors"][:-1])
    (wrong,) = verify(folder, lambda _: None, never).wrong
    assert "is truncated" in wrong.what


def test_a_snapshot_of_a_cache_is_held_against_the_names_of_its_blobs(tmp_path: Path) -> None:
    repository = tmp_path / "models--o--m"
    snapshot, blobs = repository / "snapshots" / "abc", repository / "blobs"
    for folder in (snapshot, blobs):
        folder.mkdir(parents=True)
    for name, content in FILES.items():
        blob = blobs / (
            hashlib.sha256(content).hexdigest() if len(content) > 9 else git_hash(content)
        )
        blob.write_bytes(content)
        (snapshot / name).symlink_to(blob)
    found = verify(snapshot, lambda _: None, never)
    assert (found.against, found.files, found.wrong) == ("hashes", 3, ())
    flip((snapshot / "tokenizer.json").resolve())
    (wrong,) = verify(snapshot, lambda _: None, never).wrong
    assert wrong.path == "tokenizer.json"


def test_a_verification_is_given_up_when_it_is_told_to(fetched: Path) -> None:
    with pytest.raises(Interrupted):
        verify(fetched, lambda _: None, lambda: True)
