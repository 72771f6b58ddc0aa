"""What of a fetched folder was not fetched, and how a folder is put aside: over real folders."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bus.process.clock import now
from worker.eviction import NotLetGo, added_to, is_whole, put_away
from worker.eviction.folders import content_of
from worker.eviction.keeping import lacking
from worker.models.files import ORIGIN_FILE, Origin, note_origin

FILES = {"config.json": b"{}", "model.safetensors": bytes(64), "1_Pooling/config.json": b"{}"}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder of models, with one that was fetched."""
    folder = tmp_path / "models" / "someone" / "model"
    for name, content in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    note_origin(folder, Origin("copied", ("n2",), files=hashes))
    return tmp_path / "models"


def later(path: Path) -> None:
    came_s = (path.parent / ORIGIN_FILE).stat().st_mtime
    path.write_bytes(b"{ }")
    os.utime(path, (came_s + 60, came_s + 60))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: (f / "card.toml").write_text(""), "card.toml in its folder was put there"),
        (lambda f: (f / ".notes").write_text(""), ".notes in its folder was put there"),
        (lambda f: (f / "more.json").symlink_to("config.json"), "more.json in its folder was put"),
        (lambda f: later(f / "config.json"), "config.json in its folder was changed"),
        (lambda f: (f / ORIGIN_FILE).unlink(), "nothing says file by file"),
        (lambda f: note_origin(f, Origin("copied")), "nothing says file by file"),
        (lambda f: note_origin(f, Origin("derived", files={"a": "b"})), "nothing says"),
    ],
)
def test_what_a_person_did_to_a_folder_keeps_it(
    models: Path, change: Callable[[Path], object], words: str
) -> None:
    folder = models / "someone" / "model"
    assert added_to(folder) == ""
    change(folder)
    assert words in added_to(folder)
    with pytest.raises(NotLetGo, match=words):
        put_away(folder, models, now() + 60, in_part=False)
    assert (folder / "model.safetensors").exists()


def test_a_folder_is_put_aside_in_time_or_stays(models: Path) -> None:
    folder = models / "someone" / "model"
    with pytest.raises(NotLetGo, match="too slow"):
        put_away(folder, models, now(), in_part=False)
    assert is_whole(folder, 64)
    real, aside = put_away(folder, models, now() + 60, in_part=False)
    assert not folder.exists() and is_whole(aside, 64) and real == folder.resolve()


def test_a_copy_is_kept_for_another_of_the_same_weights_alone(models: Path) -> None:
    folder = models / "someone" / "model"
    content = content_of(folder)
    assert content and lacking(folder, 64, content) == lacking(folder, 64, "") == ""
    assert lacking(folder, 65, content) == "its copy is not whole"
    hashes = {"model.safetensors": "0" * 64, "config.json": "1" * 40}
    note_origin(folder, Origin("pulled", ("o/m",), "c", hashes))
    assert content_of(folder) not in ("", content)
    assert lacking(folder, 64, content) == "its copy has another content"
    note_origin(folder, Origin("pulled", ("o/m",), "c", {"model.safetensors": "1" * 40}))
    assert content_of(folder) == "" and lacking(folder, 64, content) == ""


def test_what_is_not_all_there_is_not_whole(models: Path) -> None:
    folder = models / "someone" / "model"
    assert is_whole(folder, 64) and not is_whole(folder, 65)
    (folder / "model.safetensors").unlink()
    assert not is_whole(folder, 64) and not is_whole(models / "none", 0)
