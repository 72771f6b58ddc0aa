"""How long loads took is kept over restarts, and what cannot be read is as if it were not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bus.process.logs import Log
from bus.wire.ids import ModelId
from worker.slots import beside
from worker.slots.beside import SlotNotes, stored_figures


@pytest.fixture
def log() -> Log:
    return Log(node="n", process="test", level="critical")


def test_the_last_load_of_each_model_is_known_after_a_restart(tmp_path: Path, log: Log) -> None:
    file = tmp_path / "weights" / "load_seconds.json"
    notes = SlotNotes(file, tmp_path, log)
    for seconds in (9.0, 3.141):
        notes.loaded(ModelId("a"), seconds)
    notes.loaded(ModelId("owner/b"), 1.0)
    notes.close()
    assert notes.load_s == stored_figures(file) == {"a": 3.14, "owner/b": 1.0}


def test_as_many_are_kept_as_may_be(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "MOST_FIGURES", 2)
    notes = SlotNotes(tmp_path / "f", tmp_path, log)
    for name in ("a", "b", "a", "c"):
        notes.loaded(ModelId(name), 1.0)
    notes.close()
    assert list(notes.load_s) == ["a", "c"]


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": "x", "b": -1, "c": 2}', "[" * 99_999])
def test_a_file_that_cannot_be_read_tells_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "f").write_text(content)
    assert stored_figures(tmp_path / "f") == ({"c": 2.0} if '"c"' in content else {})


def test_a_disk_that_takes_nothing_is_survived(tmp_path: Path, log: Log) -> None:
    (tmp_path / "f").mkdir()
    notes = SlotNotes(tmp_path / "f", tmp_path, log)
    notes.loaded(ModelId("a"), 2.0)
    notes.sweep()
    notes.close()
    assert notes.load_s == json.loads('{"a": 2.0}')


def test_speeds_are_averaged_rarely_and_kept_beside_the_load_times(
    tmp_path: Path, log: Log
) -> None:
    notes = SlotNotes(tmp_path / "load_seconds.json", tmp_path, log)
    for second, speed in ((0.0, 100.0), (29.0, 900.0), (30.0, 200.0), (60.0, 131.0)):
        notes.decoded(ModelId("a"), speed, second)
    notes.close()
    assert notes.tokens_per_s == stored_figures(tmp_path / beside.SPEEDS_FILE) == {"a": 130.0}
    assert notes.load_s == {}
