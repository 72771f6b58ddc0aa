"""Prompts of slots on disk: with a real llama-server, over an unload, damaged files, other keys."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bus.models.kv import KvLimits, kv_files, purge
from bus.wire.messages.requests import Sampling, TokensPrompt
from bus.wire.messages.tokens import Finished
from runner.__main__ import load_text
from runner.llama import SlotDisk
from runner.roles.llama import LlamaRole
from tests.harness.llama_site import PROGRAM, LlamaSite, needs_program, tiny_gguf
from tests.harness.role_site import Site

pytestmark = needs_program
PROMPT = tuple(10 + (number * 7919) % 1900 for number in range(300))
OTHER = tuple(10 + (number * 7907) % 1900 for number in range(300))
GREEDY = Sampling(temperature=0.0)


class DiskSite(LlamaSite):
    """A role with a llama-server that keeps prompts on disk."""

    def __init__(self, folder: Path, model: Path, root: Path, **limits: Any) -> None:
        self.root = root
        given = {"most_bytes": 1 << 30, "least_tokens": 128, "unused_s": 3600.0, **limits}
        factories = {
            "load_sent_text": load_text,
            "llama_server": PROGRAM,
            "kv_limits": KvLimits(root, **given),
        }
        spec = {"context_tokens": 1024, "max_rows": 2, "max_waiting": 4, "path": str(model)}
        folder.mkdir(exist_ok=True)
        Site.__init__(self, folder, LlamaRole, factories, dtype="gguf", **spec)

    def ask(self, name: str, prompt: tuple[int, ...] = PROMPT, key: str | None = "k") -> Finished:
        fields = {"max_tokens": 8, "sampling": GREEDY, "key_id": key}
        self.gateway.submit(name, TokensPrompt(token_ids=prompt), **fields)
        end = self.ended(name)
        assert isinstance(end, Finished)
        return end

    @property
    def files(self) -> list[Path]:
        return [file.path for file in kv_files(self.root) if not file.unfinished]

    def written(self, count: int) -> None:
        """Wait until so many prompts are on disk, and nothing is being written."""
        self.until(lambda: len(self.files) == count and self.is_at_rest)

    @property
    def is_at_rest(self) -> bool:
        return not self.disk.is_busy and not self.disk.is_storing

    @property
    def disk(self) -> SlotDisk:
        disk = self.role._responder.disk
        assert disk is not None
        return disk


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("slots") / "model")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty folder."""
    return tmp_path / "kv"


@dataclass(frozen=True)
class Left:
    """The file that a runner left, and the text of its answer: with the prompt computed, and with
    the KV of the slot, which may differ where tokens are about equally likely."""

    file: Path
    computed: str
    cached: str


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Left:
    folder = tmp_path_factory.mktemp("earlier")
    site = DiskSite(folder / "site", model, folder / "kv")
    try:
        site.ask("a")
        site.written(1)
        assert site.ask("b").usage.cached_tokens == len(PROMPT) - 1
        return Left(site.files[0], site.text("a"), site.text("b"))
    finally:
        site.close()


@pytest.fixture
def left(root: Path, earlier: Left) -> Left:
    """What an earlier runner left in the folder."""
    folders = earlier.file.parents
    shutil.copytree(folders[2], root)
    return replace(earlier, file=root / earlier.file.relative_to(folders[2]))


def test_a_prompt_is_read_back_after_an_unload(
    tmp_path: Path, model: Path, root: Path, left: Left
) -> None:
    file = left.file
    assert oct(file.stat().st_mode & 0o777) == "0o600"
    assert re.fullmatch(r"[0-9a-f]{32}-300\.safetensors", file.name)
    site = DiskSite(tmp_path / "second", model, root)
    try:
        end = site.ask("a")
        assert (site.text("a"), end.usage.cached_tokens) == (left.cached, len(PROMPT) - 1)
        reading = site.role.reading(site.reactor.now())
        assert reading.kv_disk_hits == 1 and reading.kv_disk_read_bytes == file.stat().st_size
        longer = site.ask("b", (*PROMPT, *PROMPT[:40]))
        assert longer.usage.cached_tokens >= len(PROMPT)
        assert site.ask("c", PROMPT, key="other").usage.cached_tokens == 0
        site.written(2)
        assert not list(root.rglob("*.part"))
    finally:
        site.close()


def damage(file: Path, how: str) -> None:
    data = bytearray(file.read_bytes())
    middle = len(data) // 2
    if how == "cut":
        del data[middle:]
    else:
        data[middle] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("how", ["cut", "bit"])
def test_a_damaged_file_is_deleted_and_the_prompt_computed(
    tmp_path: Path, model: Path, root: Path, left: Left, how: str
) -> None:
    damage(left.file, how)
    site = DiskSite(tmp_path / "second", model, root)
    try:
        end = site.ask("a")
        assert (site.text("a"), end.usage.cached_tokens) == (left.computed, 0)
        assert "deleted the KV of a prompt on disk" in site.logged.getvalue()
        site.written(1)
        assert site.host.left is None
    finally:
        site.close()


def test_a_slot_that_is_given_to_another_prompt_can_be_read_back(
    tmp_path: Path, model: Path, root: Path
) -> None:
    site = DiskSite(tmp_path / "site", model, root, least_tokens=200)
    try:
        site.ask("a")
        site.ask("cached")
        for number in range(3):
            site.ask(f"o{number}", (*OTHER[number:], *OTHER[:number]))
        site.written(4)
        again = site.ask("b")
        assert again.usage.cached_tokens == len(PROMPT) - 1
        assert site.text("b") == site.text("cached")
        assert site.role.reading(site.reactor.now()).kv_disk_hits == 1
        site.until(lambda: site.is_at_rest)
        assert purge(root)[0] == 4
        for number in range(2):
            site.ask(f"p{number}", (*OTHER[9 - number :], *OTHER[: 9 - number]))
        assert site.ask("c").usage.cached_tokens == 0
        assert site.text("c") == site.text("a")
    finally:
        site.close()


def test_the_folder_stays_within_its_limits(tmp_path: Path, model: Path, root: Path) -> None:
    site = DiskSite(tmp_path / "site", model, root, most_bytes=3 << 20)
    try:
        for number in range(4):
            site.ask(f"p{number}", (*OTHER[number:], *OTHER[:number]))
            site.until(lambda: site.is_at_rest)
        assert 0 < sum(file.stat().st_size for file in site.files) <= 3 << 20
        assert len(site.files) < 4
        site.ask("short", PROMPT[:100])
    finally:
        site.close()


def test_without_room_on_disk_nothing_is_kept(tmp_path: Path, model: Path, root: Path) -> None:
    site = DiskSite(tmp_path / "site", model, root, most_bytes=0)
    try:
        assert "--slot-save-path" not in site.child.cmdline()
        site.ask("a")
        assert not root.exists()
    finally:
        site.close()


def test_files_of_another_model_are_not_read(
    tmp_path: Path, model: Path, root: Path, left: Left
) -> None:
    other = tiny_gguf(tmp_path / "other")
    os.utime(other / "tiny.gguf")
    site = DiskSite(tmp_path / "second", other, root)
    try:
        assert site.ask("a").usage.cached_tokens == 0
        site.written(2)
    finally:
        site.close()
