"""Cards written on several nodes, over real folders; only the bus between them is a stand-in."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from bus.models.cards import CARD_FILE
from bus.process.clock import wall
from gateway.control import card_on_disk as disk
from gateway.control.card_files import CardChanged, newest_of, tag_of
from tests.harness.card_nodes import CardNodes, M


def test_a_card_is_written_on_all_nodes_that_are_there_at_one_instant_and_the_others_are_named(
    tmp_path: Path,
) -> None:
    nodes = CardNodes(tmp_path)
    found = asyncio.run(nodes.a.write(M, "pin = true\n", ""))
    assert [(one.name, one.done) for one in found] == [
        ("node-a", True), ("node-b", True), ("node-c", False),
    ]  # fmt: skip
    assert "node c is not connected" in found[2].unknown and nodes.text("c") is None
    assert nodes.text("a") == nodes.text("b") == "pin = true\n"
    times = {(nodes.folders[name] / CARD_FILE).stat().st_mtime for name in "ab"}
    assert len(times) == 1 and abs(times.pop() - wall()) < 60
    assert nodes.lying("a") == nodes.lying("b") == {CARD_FILE}


def test_what_is_written_is_newer_than_a_card_of_a_clock_that_is_ahead(tmp_path: Path) -> None:
    nodes = CardNodes(tmp_path)
    ahead_s = wall() + 5_000
    (nodes.folders["b"] / CARD_FILE).write_text("pin = false\n")
    os.utime(nodes.folders["b"] / CARD_FILE, (ahead_s, ahead_s))
    before = newest_of(asyncio.run(nodes.a.read(M, "")))
    assert before is not None and before.name == "node-b"
    found = asyncio.run(nodes.a.write(M, "pin = true\n", ""))
    assert all(one.at_s > ahead_s for one in found if one.done)
    assert nodes.text("b") == "pin = true\n"


def test_of_two_cards_that_are_written_at_once_the_same_stays_on_every_node(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    disk.write_text(folder, "pin = true\n", 20.0)
    with pytest.raises(disk.CardKept, match="written in the meantime"):
        disk.write_text(folder, "pin = false\n", 10.0)
    disk.write_text(folder, "pin = true\n", 20.0)  # asked for again by another process
    assert disk.read_text(folder) == ("pin = true\n", 20.0)


def test_a_card_that_was_changed_meanwhile_is_not_written_over(tmp_path: Path) -> None:
    nodes = CardNodes(tmp_path)
    none = tag_of(newest_of(asyncio.run(nodes.a.read(M, ""))))
    asyncio.run(nodes.a.write(M, "pin = true\n", "", none))
    for change in (nodes.a.write(M, "pin = false\n", "", none), nodes.a.remove(M, "", none)):
        with pytest.raises(CardChanged, match="was changed on node-"):
            asyncio.run(change)
    assert nodes.text("a") == nodes.text("b") == "pin = true\n"
    known = tag_of(newest_of(asyncio.run(nodes.a.read(M, ""))))
    asyncio.run(nodes.a.write(M, "pin = false\n", "", known))
    assert nodes.text("b") == "pin = false\n"


def test_a_card_is_taken_away_everywhere_and_twice_is_no_error(tmp_path: Path) -> None:
    nodes = CardNodes(tmp_path)
    asyncio.run(nodes.a.write(M, "", ""))
    assert [one.done for one in asyncio.run(nodes.a.remove(M, ""))] == [True, True, False]
    assert (nodes.text("a"), nodes.text("b")) == (None, None)
    again = asyncio.run(nodes.a.remove(M, ""))
    assert not any(one.done or one.kept for one in again)


def test_the_bundled_model_the_cache_and_links_keep_theirs_with_the_reason(tmp_path: Path) -> None:
    nodes = CardNodes(tmp_path)
    nodes.changes["a"] = {"bundled": True}
    nodes.changes["b"] = {"origin": "cache"}
    for name in "ab":
        nodes.tell(name)
    bundled, cached, _ = asyncio.run(nodes.a.write(M, "pin = true\n", ""))
    assert not bundled.done and "are part of shoal" in bundled.kept
    assert not cached.done and "Hugging Face's cache" in cached.kept
    assert "<data>/models" in cached.kept
    nodes.changes = {name: {} for name in "abc"}
    mine = tmp_path / "mine.toml"
    mine.write_text("pin = true\n")
    (nodes.folders["a"] / CARD_FILE).symlink_to(mine)
    snapshot = tmp_path / "hub" / "models--org--m" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    shutil.rmtree(nodes.folders["b"])
    nodes.folders["b"].symlink_to(snapshot)
    for name in "ab":
        nodes.tell(name)
    linked, led, _ = asyncio.run(nodes.a.write(M, "pin = false\n", ""))
    assert "is a link" in linked.kept and mine.read_text() == "pin = true\n"
    assert "Hugging Face's cache" in led.kept and not any(snapshot.iterdir())


def test_a_folder_that_is_no_model_any_more_is_left_alone(tmp_path: Path) -> None:
    nodes = CardNodes(tmp_path)
    (nodes.folders["a"] / "config.json").unlink()
    gone, other, _ = asyncio.run(nodes.a.write(M, "pin = true\n", ""))
    assert "no longer contains a model" in gone.kept and not nodes.lying("a")
    assert other.done


def test_a_disk_that_fails_leaves_the_card_as_it_was_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = CardNodes(tmp_path)
    asyncio.run(nodes.a.write(M, "pin = true\n", ""))

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk.os, "fsync", full)
    found = asyncio.run(nodes.a.write(M, "pin = false\n", ""))
    assert not found[0].done and "No space left" in found[0].kept
    assert found[0].text == nodes.text("a") == "pin = true\n"
    assert nodes.lying("a") == {CARD_FILE}
