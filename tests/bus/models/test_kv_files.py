"""The folder with the KV of long prompts: its limits, its eviction, and what a deletion leaves."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from bus.models.kv.files import (
    UNFINISHED,
    UNFINISHED_S,
    KvLimits,
    delete_gone,
    evict,
    kv_files,
    make_private,
    model_folder,
    purge,
)

NOW_S = 1_000_000.0
Planted = tuple[str, int, float]
FILES = st.lists(
    st.tuples(
        st.sampled_from(["a", "org/b"]),
        st.integers(min_value=0, max_value=50),
        st.floats(min_value=0.0, max_value=200.0),
    ),
    max_size=12,
)


def plant(root: Path, files: list[Planted]) -> None:
    """Files of (model, bytes, seconds since the last use)."""
    root.mkdir(parents=True, exist_ok=True)
    for number, (model, size, age_s) in enumerate(files):
        folder = model_folder(root, model) / "key"
        make_private(folder, root)
        path = folder / f"{number:032x}-64.safetensors"
        path.write_bytes(bytes(size))
        os.utime(path, (NOW_S - age_s, NOW_S - age_s))


def limits(root: Path, most_bytes: int = 100, unused_s: float = 100.0) -> KvLimits:
    return KvLimits(root, most_bytes, 1024, unused_s)


@settings(deadline=None, max_examples=60)
@given(FILES, st.integers(min_value=0, max_value=60))
def test_the_rest_fits_and_nothing_goes_without_need(files: list[Planted], room: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "kv"
        plant(root, files)
        gone = evict(limits(root), room_bytes=room, now_s=NOW_S)
        left = kv_files(root)
        total = sum(file.size_bytes for file in left)
        assert total <= max(100 - room, 0)
        assert all(NOW_S - file.used_at_s <= 100.001 for file in left)
        assert len(left) + len(gone) == len(files)
        for file in gone:
            newer = sum(f.size_bytes for f in left if f.used_at_s >= file.used_at_s)
            too_old = NOW_S - file.used_at_s > 99.999
            assert too_old or newer + file.size_bytes > 100 - room


def test_files_of_one_model_are_listed_and_deleted(tmp_path: Path) -> None:
    root = tmp_path / "kv"
    plant(root, [("a", 5, 1), ("org/b", 7, 1), ("org/b", 1, 1)])
    assert {file.model for file in kv_files(root)} == {"a", "org/b"}
    assert [file.tokens for file in kv_files(root, "a")] == [64]
    assert purge(root, "org/b") == (2, 8)
    assert [file.model for file in kv_files(root)] == ["a"]
    assert [entry.name for entry in root.iterdir()] == ["a"]
    assert purge(root) == (1, 5)
    assert purge(root) == (0, 0)
    assert purge(tmp_path / "nothing") == (0, 0)


def test_files_of_models_that_are_gone_are_deleted(tmp_path: Path) -> None:
    root = tmp_path / "kv"
    plant(root, [("a", 5, 1), ("org/b", 7, 1)])
    assert delete_gone(root, ["org/b", "c"]) == 1
    assert [file.model for file in kv_files(root)] == ["org/b"]


def test_a_file_that_cannot_be_deleted_stays_and_the_others_go(tmp_path: Path) -> None:
    plant(tmp_path, [("gone", 1, 0.0), ("gone", 1, 0.0)])
    stubborn = model_folder(tmp_path, "gone") / "key" / "a-1.safetensors"
    (stubborn / "inside").mkdir(parents=True)  # a folder in a file's place is not unlinked
    assert delete_gone(tmp_path, ["stays"]) == 2
    assert [file.path for file in kv_files(tmp_path)] == [stubborn]


def test_what_a_dead_writer_left_goes_and_what_is_being_written_stays(tmp_path: Path) -> None:
    root = tmp_path / "kv"
    plant(root, [("a", 5, 1)])
    for name, age_s in (("dead", UNFINISHED_S + 1), ("alive", 1.0)):
        path = root / "a" / "key" / f"{name}{UNFINISHED}"
        path.write_bytes(bytes(90))
        os.utime(path, (NOW_S - age_s, NOW_S - age_s))
    evict(limits(root, 100, 1e6), now_s=NOW_S)
    assert {file.path.name for file in kv_files(root)} == {f"{0:032x}-64.safetensors", "alive.part"}


def test_only_the_user_may_open_the_folders(tmp_path: Path) -> None:
    root = tmp_path / "kv"
    folder = model_folder(root, "org/b") / "key"
    make_private(folder, root)
    for place in (root, folder.parent, folder):
        assert place.stat().st_mode & 0o777 == 0o700
