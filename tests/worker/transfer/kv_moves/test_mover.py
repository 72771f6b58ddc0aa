"""Copies between two nodes with real sockets and files, some of them damaged on the way."""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bus.client import Letters, Speaker
from bus.links.reactor import PollReactor
from bus.models.kv import (
    DiskRun,
    KvLimits,
    StoredPart,
    TokenChain,
    check_run,
    files_mark,
    kv_files,
    kv_key,
    make_private,
    model_folder,
    run_path,
    short_hashes,
    write_run,
)
from bus.process.logs import Log
from bus.wire.ids import Boot, ModelId, NodeId
from bus.wire.kv import RunSought, SeekRun
from worker.models.file_hashes import Hashes
from worker.transfer.disk_thread import DiskThread
from worker.transfer.kv_moves.lender import RunLender
from worker.transfer.kv_moves.mover import RunMover, Seek
from worker.transfer.kv_moves.shelf import RunShelf
from worker.transfer.kv_moves.sweep import CopySweep
from worker.transfer.source import StoreAddress
from worker.transfer.store import Beside, Store
from worker.transfer.thread import ThreadParts, open_link

MODEL, HOW = ModelId("m"), "0123"
LENGTH = 1_500


class Peer:
    """A node: its store, its files of KV, and its copies."""

    def __init__(
        self,
        reactor: PollReactor,
        folder: Path,
        name: str,
        *,
        salt: int = 0,
        bytes_per_s: float = 0.0,
    ) -> None:
        self.reactor, self.name = reactor, NodeId(name)
        self.model = folder / name / "model"
        self.model.mkdir(parents=True)
        (self.model / "config.json").write_text("{}")
        (self.model / "model.safetensors").write_bytes(random.Random(salt).randbytes(5_000))
        self.root = folder / name / "kv"
        limits = KvLimits(self.root, 1 << 30, 1024, 3600.0, moves=True)
        speaker = Speaker(self.name, "worker", Boot("b"))
        log = Log(node=name, process="test", level="critical")
        self.hashing = DiskThread("hashing", reactor.call)
        self.disk = DiskThread("kv", reactor.call)
        link, beside = open_link("router", None), Beside()
        self.address = StoreAddress(self.name, link.bind("tcp://127.0.0.1:*"))
        hashes, pack = Hashes(folder / name / "hashes"), Letters(speaker).write
        self.store = Store(
            reactor,
            link,
            pack,
            self.hashing,
            hashes,
            log,
            bytes_per_s=bytes_per_s,
            beside=beside,
        )
        parts = ThreadParts(
            reactor,
            open_link,
            pack,
            self.hashing,
            hashes,
            beside,
            self.store.send,
            lambda: {MODEL: self.model},
            0.0,
        )
        shelf = RunShelf(limits)
        RunLender(parts, limits, shelf, self.disk, self.name)
        self.mover = RunMover(parts, limits, self.disk, self.name, log)
        self.sweep = CopySweep(parts, shelf, self.disk, log)

    @property
    def folder(self) -> Path:
        return model_folder(self.root, MODEL) / kv_key(files_mark(self.model), HOW).folder

    def write(self, chain: TokenChain) -> Path:
        """Write a run, as a runner does; about 3 MB."""
        tokens = chain.first(chain.length)
        run = DiskRun(chain.run_name(chain.length), chain.seed, tokens)
        content = random.Random(1).randbytes(chain.length * 2 * 256 * 4)
        part = StoredPart("F32", (1, 2, chain.length, 256), memoryview(content))
        make_private(self.folder, self.root)
        path = run_path(self.folder, run.name)
        write_run(path, run, HOW, [part], lambda: True)
        return path

    def close(self) -> None:
        self.mover.close()
        self.sweep.close()
        self.store.close()
        self.hashing.close()
        self.disk.close()


class Pair:
    """Two nodes on one loop."""

    def __init__(self, folder: Path) -> None:
        self.reactor = PollReactor()
        self.folder = folder
        self.peers: list[Peer] = []
        self.turns = 0

    def peer(self, name: str, **parts: Any) -> Peer:
        self.peers.append(Peer(self.reactor, self.folder, name, **parts))
        return self.peers[-1]

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + 20.0
        while not condition():
            assert time.monotonic() < deadline, f"not in time: {what}"
            self.reactor.turn(0.02)
            self.turns += 1

    def sought(
        self, at: Peer, chain: TokenChain, *of: Peer, saves_s: float = 30.0, speed: float = 1e9
    ) -> list[RunSought]:
        """All answers to a question of a runner at `at`."""
        answers: list[RunSought] = []
        question = SeekRun(
            model=MODEL,
            prompt="p",
            folder=at.folder.name,
            how=HOW,
            tokens=chain.length,
            have=0,
            hashes=short_hashes(chain),
            saves_s=(saves_s,),
            read_bytes_per_s=1e9,
        )
        speeds = {peer.address: speed for peer in of}
        at.mover.seek(Seek(question, at.model, speeds, answers.append))
        self.until(lambda: answers and answers[-1].what != "coming", "an answer")
        return answers


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    for peer in pair.peers:
        peer.close()
    pair.reactor.close()


def chain_of(salt: int = 0, key: bytes = b"") -> TokenChain:
    chance = random.Random(salt)
    return TokenChain(array("i", [chance.randrange(1000) for _ in range(LENGTH)]), seed=key)


def test_a_copy_has_the_bytes_of_its_original_and_says_whose_it_is(pair: Pair) -> None:
    one, two = pair.peer("one"), pair.peer("two")
    original = one.write(chain_of(key=b"key-1"))
    answers = pair.sought(two, chain_of(key=b"key-1"), one)
    assert [answer.what for answer in answers] == ["coming", "moved"]
    (copy,) = kv_files(two.root)
    assert copy.path.read_bytes() == original.read_bytes() and copy.origin == "one"
    assert copy.path.stat().st_mode & 0o777 == 0o600
    run = check_run(copy.path, chain_of(key=b"key-1").run_name(LENGTH), HOW, lambda: True)
    assert run.seed == b"key-1"


def test_keys_other_models_and_other_ways_of_computing_share_nothing(pair: Pair) -> None:
    one, two, other = pair.peer("one"), pair.peer("two"), pair.peer("other", salt=1)
    one.write(chain_of(key=b"key-1"))
    for key in (b"", b"key-2", b"key-1\0lora"):
        assert [a.what for a in pair.sought(two, chain_of(key=key), one)] == ["none"]
    assert [a.what for a in pair.sought(other, chain_of(key=b"key-1"), one)] == ["none"]
    assert not kv_files(two.root) and not kv_files(other.root)


def test_a_copy_that_is_dearer_than_computing_is_not_made(pair: Pair) -> None:
    one, two = pair.peer("one"), pair.peer("two")
    one.write(chain_of())
    dear = pair.sought(two, chain_of(), one, saves_s=2.0, speed=1e6)
    assert [answer.what for answer in dear] == ["dearer"]
    assert not kv_files(two.root)


def test_a_copy_that_is_late_is_given_up_and_its_link_is_known_to_be_slow(pair: Pair) -> None:
    """The store sends much less than its link was said to carry: 3 MB take 2 s instead of none."""
    one, two = pair.peer("one", bytes_per_s=1e6), pair.peer("two")
    one.write(chain_of())
    late = pair.sought(two, chain_of(), one, saves_s=0.8)
    assert [answer.what for answer in late] == ["coming", "failed"]
    assert 0 < late[0].wait_s <= 0.8
    assert not kv_files(two.root), "not even an unfinished file is left"
    again = pair.sought(two, chain_of(), one, saves_s=0.8)
    assert [answer.what for answer in again] == ["dearer"]


def test_damaged_runs_are_not_kept(pair: Pair) -> None:
    """Flipped bits and cuts of the file that is lent: the offer is made before the damage or
    after it."""
    one, two = pair.peer("one"), pair.peer("two")
    chain = chain_of()
    whole = one.write(chain).read_bytes()
    assert pair.sought(two, chain, one)[-1].what == "moved"
    kv_files(two.root)[0].path.unlink()
    chance = random.Random(3)
    for at in (len(whole) - 1, *(chance.randrange(8_000, len(whole)) for _ in range(4))):
        with (one.folder / f"{chain.run_name(LENGTH)}.safetensors").open("r+b") as file:
            file.seek(at)
            file.write(bytes([whole[at] ^ 1 << chance.randrange(8)]))
        assert pair.sought(two, chain, one)[-1].what == "failed", at
        assert not kv_files(two.root), "not even an unfinished file is left"
        with (one.folder / f"{chain.run_name(LENGTH)}.safetensors").open("r+b") as file:
            file.write(whole)
    with (one.folder / f"{chain.run_name(LENGTH)}.safetensors").open("r+b") as file:
        file.truncate(len(whole) - PIECE)
    assert pair.sought(two, chain, one)[-1].what == "failed"
    assert not kv_files(two.root)


PIECE = 4_096


def test_a_run_with_other_tokens_than_its_name_is_not_kept(pair: Pair) -> None:
    one, two = pair.peer("one"), pair.peer("two")
    lied, honest = chain_of(5), chain_of(6)
    path = one.write(honest)
    path.replace(run_path(one.folder, lied.run_name(LENGTH)))
    answers = pair.sought(two, lied, one)
    assert [answer.what for answer in answers] == ["none"], "its tokens have other hashes"
    assert not kv_files(two.root)


def test_copies_go_when_their_original_is_gone(pair: Pair) -> None:
    one, two, three = pair.peer("one"), pair.peer("two"), pair.peer("three")
    first, second = one.write(chain_of(1)), one.write(chain_of(2))
    for chain in (chain_of(1), chain_of(2)):
        assert pair.sought(two, chain, one)[-1].what == "moved"
    assert pair.sought(three, chain_of(1), two)[-1].what == "moved"
    assert [file.origin for file in kv_files(three.root)] == ["one"], "not where it was copied from"
    own = two.write(chain_of(3))
    first.unlink()
    stores = {peer.name: peer.address for peer in pair.peers}
    for peer in (two, three):
        peer.sweep.sweep(stores)
    pair.until(lambda: not kv_files(three.root) and len(kv_files(two.root)) == 2, "they go")
    left = {file.path.name.partition("@")[0].removesuffix(".safetensors") for file in
            kv_files(two.root)}  # fmt: skip
    assert left == {second.stem, own.stem}


def test_a_node_that_is_gone_costs_the_answer_only(pair: Pair) -> None:
    one, two = pair.peer("one"), pair.peer("two")
    one.write(chain_of())
    one.store.close()
    assert [answer.what for answer in pair.sought(two, chain_of(), one)] == ["none"]
    turns = pair.turns
    assert [answer.what for answer in pair.sought(two, chain_of(), one)] == ["none"]
    assert pair.turns == turns, "it is not asked again at once"
