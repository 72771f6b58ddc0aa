"""What of a fetched folder was not fetched, and how a folder is put aside: over real folders."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bus.process.clock import now
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.weights import KeepAsked
from worker.eviction import NotLetGo, added_to, is_whole, put_away
from worker.eviction.folders import content_of, lacking
from worker.eviction.grants import Content
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
        (
            lambda f: (f / "card.toml").symlink_to("config.json"),
            "card.toml in its folder was added",
        ),
        (lambda f: (f / ".notes").write_text(""), ".notes in its folder was added"),
        (
            lambda f: (f / "more.json").symlink_to("config.json"),
            "more.json in its folder was added",
        ),
        (lambda f: later(f / "config.json"), "config.json in its folder was changed"),
        (lambda f: (f / ORIGIN_FILE).unlink(), "no record that it fetched"),
        (lambda f: note_origin(f, Origin("copied")), "no record that it fetched"),
        (
            lambda f: note_origin(f, Origin("derived", files={"a": "b"})),
            "no record that it fetched",
        ),
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
        put_away(folder, models, now() + 60, content_of(folder))
    assert (folder / "model.safetensors").exists()


def test_a_folder_is_put_aside_in_time_or_stays(models: Path) -> None:
    folder = models / "someone" / "model"
    with pytest.raises(NotLetGo, match="too slow"):
        put_away(folder, models, now(), content_of(folder))
    assert is_whole(folder, 64)
    real, aside = put_away(folder, models, now() + 60, content_of(folder))
    assert not folder.exists() and is_whole(aside, 64) and real == folder.resolve()


def asking(content: Content) -> KeepAsked:
    """The question of a node that wants to let go a copy of this content."""
    return KeepAsked(
        question="q",
        asker=NodeId("n2"),
        model=ModelId("someone/model"),
        content=content.weights,
        card=content.card,
        card_at_s=content.card_at_s,
    )


def test_a_copy_is_kept_for_another_of_the_same_weights_alone(models: Path) -> None:
    folder = models / "someone" / "model"
    content = content_of(folder)
    assert content.weights and lacking(folder, 64, asking(content)) == ""
    assert lacking(folder, 64, asking(Content())) == ""
    assert lacking(folder, 65, asking(content)) == "the node's copy is incomplete"
    hashes = {"model.safetensors": "0" * 64, "config.json": "1" * 40}
    note_origin(folder, Origin("pulled", ("o/m",), "c", hashes))
    assert content_of(folder).weights not in ("", content.weights)
    assert lacking(folder, 64, asking(content)) == "the node's copy has other content"
    note_origin(folder, Origin("put"))
    assert content_of(folder).weights == "" and lacking(folder, 64, asking(content)) == ""


def test_a_copy_is_kept_for_another_with_the_same_card_no_older(models: Path) -> None:
    folder = models / "someone" / "model"
    card = folder / "card.toml"
    none = content_of(folder)
    card.write_text("pin = false")
    mine = content_of(folder)
    assert mine.card and lacking(folder, 64, asking(mine)) == "", "the same one lies here"
    assert lacking(folder, 64, asking(none)) == "", "of a copy without a card nothing is lost"
    os.utime(card, (mine.card_at_s - 60, mine.card_at_s - 60))
    assert lacking(folder, 64, asking(mine)) == "the node's copy has an older card.toml"
    os.utime(card, (mine.card_at_s + 60, mine.card_at_s + 60))
    assert lacking(folder, 64, asking(mine)) == ""
    card.write_text("pin = true")
    assert lacking(folder, 64, asking(mine)) == "the node's copy has a different card.toml"
    card.unlink()
    assert lacking(folder, 64, asking(mine)) == "the node's copy has no card.toml"


def test_a_folder_goes_with_the_card_that_was_granted_and_no_other(models: Path) -> None:
    folder = models / "someone" / "model"
    granted = content_of(folder)
    (folder / "card.toml").write_text("pin = false")
    with pytest.raises(NotLetGo, match="changed meanwhile"):
        put_away(folder, models, now() + 60, granted)
    assert added_to(folder) == "" and (folder / "card.toml").exists()
    put_away(folder, models, now() + 60, content_of(folder))
    assert not folder.exists()


def test_what_is_not_all_there_is_not_whole(models: Path) -> None:
    folder = models / "someone" / "model"
    assert is_whole(folder, 64) and not is_whole(folder, 65)
    (folder / "model.safetensors").unlink()
    assert not is_whole(folder, 64) and not is_whole(models / "none", 0)


def test_a_gguf_model_in_parts_is_whole_and_told_apart_by_its_hashes(tmp_path: Path) -> None:
    names = ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf")
    for name in names:
        (tmp_path / name).write_bytes(bytes(32))
    assert is_whole(tmp_path, 64) and not is_whole(tmp_path, 65)
    (tmp_path / names[1]).unlink()
    assert not is_whole(tmp_path, 32)
    contents: set[str] = set()
    for digit in "01":
        note_origin(tmp_path, Origin("pulled", files=dict.fromkeys(names, digit * 64)))
        contents.add(content_of(tmp_path).weights)
    assert len(contents) == 2 and "" not in contents
