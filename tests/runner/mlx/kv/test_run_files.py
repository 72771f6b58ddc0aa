"""The files of runs: what is written is read again, and what was spoilt is never used."""

from __future__ import annotations

import errno
import random
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import runner.mlx.kv.run_files as run_files_module
from bus.models.kv import (
    BadRun,
    DiskOrder,
    DiskReport,
    DiskRun,
    KvKey,
    KvLimits,
    StoredPart,
    kv_files,
    read_header,
    read_parts,
    run_path,
    write_run,
)
from runner.engine import EntryId
from runner.mlx.kv.run_files import RunFiles
from runner.schedule.prefixes import TokenChain
from tests.harness.nodes import eventually

KEYS = {"": KvKey("f0", "k0"), "lora": KvKey("f1", "k1")}


def run_of(length: int = 130, salt: int = 0, seed: bytes = b"", adapter: str = "") -> DiskRun:
    tokens = array("i", [(salt * 7 + at * 3) % 251 for at in range(length)])
    chain = TokenChain(tokens, seed=seed)
    return DiskRun(chain.run_name(length), seed, tokens, adapter)


def parts_of(run: DiskRun) -> list[StoredPart]:
    length = len(run.tokens)
    chance = random.Random(length)
    return [
        StoredPart("F32", (1, 2, length, 4), memoryview(chance.randbytes(1 * 2 * length * 4 * 4))),
        StoredPart("BF16", (1, 1, length, 8), memoryview(chance.randbytes(length * 8 * 2))),
    ]


def read(path: Path, name: str, key: str = "k0") -> tuple[DiskRun, list[StoredPart]]:
    with path.open("rb") as file:
        header = read_header(file, name, key)
        return header.run, read_parts(file, header, lambda: True)


@pytest.fixture
def whole(tmp_path: Path) -> tuple[Path, DiskRun]:
    run = run_of(seed=b"key-1")
    path = run_path(tmp_path, run.name)
    size = write_run(path, run, "k0", parts_of(run), lambda: True)
    assert size == path.stat().st_size
    return path, run


def test_a_run_is_read_as_it_was_written(whole: tuple[Path, DiskRun]) -> None:
    path, run = whole
    again, parts = read(path, run.name)
    assert (again.tokens, again.seed, again.adapter) == (run.tokens, run.seed, run.adapter)
    assert [(part.dtype, part.shape, bytes(part.content)) for part in parts] == [
        (part.dtype, part.shape, bytes(part.content)) for part in parts_of(run)
    ]
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_the_file_is_a_safetensors_file(whole: tuple[Path, DiskRun]) -> None:
    import mlx.core as mx

    path, run = whole
    tensors: Any = mx.load(str(path))
    assert tensors["tokens"].tolist() == run.tokens.tolist()
    assert tensors["part.1"].dtype == mx.bfloat16


def test_every_flipped_bit_and_every_cut_is_found(whole: tuple[Path, DiskRun]) -> None:
    path, run = whole
    content = path.read_bytes()
    chance = random.Random(1)
    spots = {*range(16), *(chance.randrange(len(content)) for _ in range(200)), len(content) - 1}
    for at in spots:
        spoilt = bytearray(content)
        spoilt[at] ^= 1 << chance.randrange(8)
        path.write_bytes(bytes(spoilt))
        with pytest.raises(BadRun):
            read(path, run.name)
    for length in (0, 5, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(BadRun):
            read(path, run.name)
    path.write_bytes(content + b"x")
    with pytest.raises(BadRun):
        read(path, run.name)


def test_a_file_for_another_key_or_of_another_name_is_not_taken(
    whole: tuple[Path, DiskRun],
) -> None:
    path, run = whole
    for name, key in ((run.name, "k1"), (run_of(salt=3).name, "k0")):
        with pytest.raises(BadRun):
            read(path, name, key)


# --- the threads ---


class Site:
    """The files of one runner, with what it said and reported."""

    def __init__(self, root: Path, **limits: Any) -> None:
        whole: dict[str, Any] = {"most_bytes": 1 << 20, "least_tokens": 64, "unused_s": 3600.0}
        self.files = RunFiles(KvLimits(root, **{**whole, **limits}), "model", KEYS)
        self.said: list[str] = []
        self.files.say = self.said.append
        self.all: list[DiskReport] = []

    def next(self) -> DiskReport:
        """The next report."""
        seen = len(self.all)

        def more() -> bool:
            self.all.extend(self.files.reports())
            return len(self.all) > seen

        eventually(more, 10, "a report")
        return self.all[seen]

    def wrote(self, run: DiskRun, parts: Sequence[StoredPart] | None = None) -> DiskReport:
        self.files.write(EntryId(1), run, parts_of(run) if parts is None else parts)
        return self.next()

    def orders(self, *orders: DiskOrder) -> DiskReport:
        self.files.submit(orders)
        return self.next()


def test_two_runners_of_a_model_use_the_same_files(tmp_path: Path) -> None:
    first, second = Site(tmp_path / "kv"), Site(tmp_path / "kv")
    run = run_of()
    assert first.wrote(run).what == "written"
    assert second.wrote(run).what == "written"
    third = Site(tmp_path / "kv")
    found = third.next()
    assert (found.what, found.run.tokens) == ("found", run.tokens)
    assert third.orders(DiskOrder("read", run.name)).what == "read"
    parts = third.files.take(run.name)
    assert parts is not None and bytes(parts[0].content) == bytes(parts_of(run)[0].content)
    assert third.files.take(run.name) is None
    first.files.submit([DiskOrder("delete", run.name)])
    eventually(lambda: not kv_files(tmp_path / "kv"), 10, "the file is deleted")
    assert third.orders(DiskOrder("read", run.name)).what == "lost"
    assert not (first.said or second.said or third.said)
    for site in (first, second, third):
        site.files.close()


def test_a_damaged_file_is_named_deleted_and_lost(tmp_path: Path) -> None:
    site = Site(tmp_path / "kv")
    run = run_of(adapter="lora")
    assert site.wrote(run).what == "written"
    (file,) = kv_files(tmp_path / "kv")
    assert file.path.parent.name == "f1"
    content = bytearray(file.path.read_bytes())
    content[len(content) // 2] ^= 4
    file.path.write_bytes(content)
    assert site.orders(DiskOrder("read", run.name)).what == "lost"
    assert len(site.said) == 1 and "damaged" in site.said[0]
    assert not kv_files(tmp_path / "kv")
    site.files.close()


def test_a_full_disk_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_files_module, "write_run", full)
    site = Site(tmp_path / "kv")
    assert site.wrote(run_of()).what == "unsaved"
    assert site.wrote(run_of(salt=1)).what == "unsaved"
    assert len(site.said) == 1 and "No space left" in site.said[0]
    site.files.close()


def test_what_does_not_fit_or_is_evicted_is_not_written(tmp_path: Path) -> None:
    site = Site(tmp_path / "kv", most_bytes=1000)
    assert site.wrote(run_of()).what == "unsaved"
    assert not kv_files(tmp_path / "kv")
    site.files.close()


def test_the_folder_stays_within_its_bytes(tmp_path: Path) -> None:
    size = sum(len(part.content) for part in parts_of(run_of()))
    site = Site(tmp_path / "kv", most_bytes=3 * size)
    for salt in range(6):
        assert site.wrote(run_of(salt=salt)).what == "written"
        assert sum(file.size_bytes for file in kv_files(tmp_path / "kv")) <= 3 * size
    assert 1 <= len(kv_files(tmp_path / "kv")) <= 2
    site.files.close()
